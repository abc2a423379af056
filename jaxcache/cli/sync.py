"""``jaxcache push`` and ``jaxcache pull``."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from jaxcache.cli.opening import locate_target, open_cache
from jaxcache.cli.options import Format, Output, require_writable
from jaxcache.errors import NoCacheError, UsageError
from jaxcache.options import Consent, DryRun, Place
from jaxcache.options.move import ArrivalOptions, PullOptions, PushOptions, SyncOptions
from jaxcache.store.location import index_folder

if TYPE_CHECKING:
    from jaxcache.cache.bundle.compat import Compatibility
    from jaxcache.cache.move.step import Plan, Step
    from jaxcache.cli.opening import Opened
    from jaxcache.store.base import Store


Url = Annotated[str, typer.Argument(metavar="URL", help="s3://, gs://, az://, or a path.")]
EXAMPLES = {
    "push": "jaxcache push s3://bucket/team/jax --exclude 'jit_debug*'",
    "pull": "jaxcache pull s3://bucket/team/jax --include 'jit_train*'",
}
EXIT_CODES = {"push": (0, 1, 2, 3, 10, 11, 12, 130), "pull": (0, 1, 2, 3, 10, 12, 130)}


def push(
    url: Url,
    place: Place,
    options: PushOptions,
    consent: Consent,
    output: Output,
) -> int:
    """Upload the entries that another cache lacks.

    What is there already is never replaced.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    form = output.form
    if options.make_room:
        if options.max_size_bytes is None:
            hint = "say what may be held there"
            raise UsageError("--prune-remote goes with --max-size", hint=hint)
        consent.check()
    opened = open_cache(place.cache_dir, place.layout)
    if not opened.layout.stands_alone:
        return _carry_files(opened, url, options, form, dry_run=consent.dry_run)
    target = locate_target(url, place.layout, opened.layout.name)
    return _carry_over(opened, target, options, form, consent)


def pull(
    url: Url,
    place: Place,
    options: PullOptions,
    dry: DryRun,
    output: Output,
) -> int:
    """Download the entries that this cache lacks.

    Each entry is checked on arrival; a sound one here is never replaced.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    form = output.form
    opened = open_cache(url, place.layout)
    if not opened.layout.stands_alone:
        return _carry_files(opened, place.cache_dir, options, form, dry_run=dry.dry_run)
    target = locate_target(place.cache_dir, place.layout, opened.layout.name)
    consent = Consent(dry_run=dry.dry_run, yes=True)
    return _carry_over(opened, target, options, form, consent, pulls=True)


def _carry_over(
    opened: "Opened",
    location: str,
    options: SyncOptions,
    form: Format,
    consent: Consent,
    *,
    pulls: bool = False,
) -> int:
    """Plan, ask where something would be removed, carry over, print; return the exit code.

    Args:
        location: of the target.
        options: a configuration file can ask for signatures too, of whatever comes into a
            directory.
        pulls: the target is where the entries are to be used, and a source without entries is
            none at all.

    Raises:
        NoCacheError: a place cannot be reached, or there is nothing to get.
        UntrustedError: no ``cryptography``, or a list of keys that others may write.
        JaxcacheError: ``read-only``, ``declined``, ``interrupted``.
    """
    from jaxcache.cache.move.sync import execute
    from jaxcache.cli.bundle import interruptible, signing_keys
    from jaxcache.cli.output import emit
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.render.sync import sync_view
    from jaxcache.store import find_store, make_store

    source, target = opened.store, find_store(location)
    if target is not None:
        require_writable(target)
    signers = signing_keys(options.sign)
    plan = _plan(opened, target, location, options)
    if pulls and not plan.entries:
        raise NoCacheError(
            f"there is no cache at {source.url}", hint="check the folder in the URL; push fills it"
        )
    place = plan.target if pulls else None
    outlooks = None if source.remote else _forecast(source, plan.writes, place, form)
    if not consent.dry_run:
        if plan.removals and not consent.yes:
            _ask(plan)
        target = target or make_store(location)
    with interruptible(), progress_bar("checking" if consent.dry_run else "copying") as progress:
        done = execute(
            source,
            target,
            plan,
            now_ns=time.time_ns(),
            jobs=options.jobs,
            signers=signers,
            dry_run=consent.dry_run,
            progress=progress,
        )
    if source.remote and target and not (target.remote or done.dry_run):
        outlooks = _forecast(target, done.written, place, form)  # which costs no request now
    emit(form, sync_view(done, outlooks))
    return done.exit_code


def _plan(opened: "Opened", target: "Store | None", location: str, options: SyncOptions) -> "Plan":
    """Compare the two caches, with the signatures that the target requires."""
    from jaxcache.cache.move.sync import plan_sync
    from jaxcache.cli.bundle import place_of, required_signatures
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.store import is_remote

    incoming = options.require_signed or not (options.sign or is_remote(location))
    signed = required_signatures(opened, asked=options.require_signed) if incoming else None
    index = None
    if options.max_size_bytes is not None and target is not None and target.remote:
        from jaxcache.cache.index import Index

        index = Index.load(index_folder(), target.url, now_ns=time.time_ns())
    with progress_bar("comparing") as progress:
        return plan_sync(
            opened.store,
            target,
            options,
            target_url=place_of(location),
            now_ns=time.time_ns(),
            signed=signed,
            index=index,
            progress=progress,
        )


def _forecast(
    store: "Store", steps: "Sequence[Step]", place: str | None, form: Format
) -> "Compatibility":
    """Forecast what will hit, and warn people of what will not."""
    from jaxcache.cache.bundle.compat import forecast_steps
    from jaxcache.cli.bundle import note_outlooks

    outlooks = forecast_steps(store, steps, place)
    note_outlooks(outlooks, form)
    return outlooks


def _carry_files(
    source: "Opened",
    location: str | None,
    options: SyncOptions,
    form: Format,
    *,
    dry_run: bool,
) -> int:
    """Bring to a place what it lacks of a cache, each file checked; never replace one there.

    Args:
        location: of the target; None for the compiler's own place.

    Raises:
        UsageError: an option that is for JAX's caches alone; ``other-layout``.
        UntrustedError: nothing here is signed; a bundle can be.
    """
    from jaxcache.cache.diff import DiffSide
    from jaxcache.cli.bundle import required_signatures
    from jaxcache.cli.copy import copy_files
    from jaxcache.layouts.sides import names_there
    from jaxcache.store import is_remote

    if options.exclude or options.max_size_bytes is not None:
        raise UsageError("--exclude and --max-size are for JAX's caches; prune first")
    target = locate_target(location, None, source.layout.name)
    signed = options.require_signed or bool(options.sign)
    if signed or not is_remote(target):
        required_signatures(source, asked=signed)
    export = source.layout.plan_export(
        source.store,
        keys=options.include,
        filters=options.filters,
        since=DiffSide(target, {}, files=names_there(target)),
        side_caches=options.side_caches and not (options.include or options.filters),
        now_ns=time.time_ns(),
        progress=None,
    )
    return copy_files(source, export, target, ArrivalOptions(), form, dry_run=dry_run)


def _ask(plan: "Plan") -> None:
    from jaxcache.cli.output import note
    from jaxcache.cli.terminal import confirm
    from jaxcache.render.prune import removals_table

    note(removals_table(plan.removals, time.time_ns()))
    confirm(f"Remove these from {plan.target}?", "nothing was changed")
