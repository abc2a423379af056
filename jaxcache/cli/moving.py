"""Shared by ``push``, ``pull`` and ``copy``: carry the entries of one cache into another."""

import time
from collections.abc import Sequence

from jaxcache.cache.bundle.compat import Compatibility, forecast_items, forecast_steps
from jaxcache.cache.diff import DiffSide
from jaxcache.cache.index import Index
from jaxcache.cache.move import import_bundle
from jaxcache.cache.move.bundle_file import make_temporary_bundle
from jaxcache.cache.move.export_plan import ExportPlan, empty_warning
from jaxcache.cache.move.plan import MoveAction, Plan, Step
from jaxcache.cache.move.stores import make_source
from jaxcache.cache.move.sync import execute, plan_sync
from jaxcache.cache.trust import Verdict
from jaxcache.cli.bundle import (
    interruptible,
    note_warnings,
    place_of,
    print_forecast,
    receive,
    required_signatures,
    signing_keys,
)
from jaxcache.cli.opening import Opened, locate_target
from jaxcache.cli.options import Format, require_writable
from jaxcache.cli.output import emit, note
from jaxcache.cli.terminal import confirm
from jaxcache.cli.terminal.progress import progress_bar
from jaxcache.errors import NoCacheError, UsageError
from jaxcache.layouts.sides import names_there
from jaxcache.options import ConfirmOptions
from jaxcache.options.move import CopyOptions, SyncOptions, arrival_of
from jaxcache.render.bundle import import_view, left_out_lines
from jaxcache.render.prune import removals_table
from jaxcache.render.sync import sync_view
from jaxcache.store import find_store, is_remote, make_store
from jaxcache.store.base import Store
from jaxcache.store.location import index_directory

#: What is said of signatures where no bundle comes from elsewhere.
_OURS = Verdict(("this machine",), ())


def copy_between(
    opened: Opened,
    location: str,
    options: SyncOptions,
    form: Format,
    consent: ConfirmOptions,
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
    source = opened.store
    target = find_store(location)
    if target is not None:
        require_writable(target)
    signers = signing_keys(options.sign)
    is_vouched = is_remote(location) or (options.sign and not pulls)
    incoming = options.require_signed or not is_vouched
    plan = _plan(opened, target, location, options, incoming=incoming)
    if pulls and not plan.entries:
        raise NoCacheError(
            f"cache not found: {source.url}",
            hint="check the path in the URL; jaxcache push fills it",
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


def _plan(
    opened: Opened,
    target: Store | None,
    location: str,
    options: SyncOptions,
    *,
    incoming: bool = True,
    on_conflict: str | None = None,
) -> Plan:
    """Compare the two caches.

    Args:
        incoming: the entries come from elsewhere, so signatures may be required.
        on_conflict: see :func:`jaxcache.cache.move.sync.plan_copy`.
    """
    signed = required_signatures(opened, wanted=options.require_signed) if incoming else None
    index = None
    if options.max_size_bytes is not None and target is not None and target.remote:
        index = Index.load(index_directory(), target.url, now_ns=time.time_ns())
    with progress_bar("comparing") as progress:
        return plan_sync(
            opened.store,
            target,
            options,
            target_url=place_of(location),
            now_ns=time.time_ns(),
            signed=signed,
            index=index,
            on_conflict=on_conflict,
            progress=progress,
        )


def _forecast(
    store: Store, steps: Sequence[Step], place: str | None, form: Format
) -> Compatibility:
    """Forecast what will hit, and warn people of what will not."""
    outlooks = forecast_steps(store, steps, place)
    print_forecast(outlooks, form)
    return outlooks


def copy_layout_files(
    source: Opened, location: str | None, options: SyncOptions, form: Format, *, dry_run: bool
) -> int:
    """Bring to a place what it lacks of a cache, each file checked; never replace one there.

    Args:
        location: of the target; None for the compiler's own place.

    Raises:
        UsageError: an option that is for JAX's caches alone; ``other-layout``.
        UntrustedError: nothing here is signed; a bundle can be.
    """
    target = locate_target(location, None, source.layout.name)
    export = offer_files(source, options, since=DiffSide(target, {}, files=names_there(target)))
    return copy_files(source, export, target, options, form, dry_run=dry_run)


def offer_files(
    source: Opened, options: SyncOptions, *, since: DiffSide | None = None
) -> ExportPlan:
    """Choose what a layout offers whose files need each other.

    Args:
        since: a place whose files need not travel again.

    Raises:
        UsageError: an option that is for JAX's caches alone.
    """
    if options.exclude or options.max_size_bytes is not None:
        raise UsageError("--exclude and --max-size are for JAX's caches; prune first")
    return source.layout.plan_export(
        source.store,
        keys=options.include,
        filters=options.filters,
        since=since,
        side_caches=options.side_caches and not (options.include or options.filters),
        now_ns=time.time_ns(),
        progress=None,
    )


def _ask(plan: Plan) -> None:
    note(removals_table(plan.removals, time.time_ns()))
    confirm(f"Remove these from {plan.target}?", "nothing was changed")


def copy_cache(
    opened: Opened, location: str, options: CopyOptions, form: Format, *, dry_run: bool
) -> int:
    """Copy entries of JAX from one cache into another, file by file."""
    signers = signing_keys(options.sign)
    if store := find_store(location):
        require_writable(store)
    plan = _plan(opened, store, location, options, on_conflict=options.on_conflict)
    if all(step.action is MoveAction.LEFT for step in plan.steps):
        note(f"warning: {empty_warning(opened.store.url)}")
    with interruptible(), progress_bar("copying") as progress:
        done = import_bundle.receive(
            None if dry_run else store or make_store(location),
            make_source(opened.store, plan),
            plan,
            now_ns=time.time_ns(),
            atomic=options.atomic,
            jobs=options.jobs,
            signers=signers,
            progress=progress,
        )
    note(*left_out_lines(step.problem for step in done.steps if step.is_left_out))
    outlooks = forecast_items((step.item for step in done.steps), None, location)
    print_forecast(outlooks, form)
    emit(form, import_view(done, outlooks, _OURS, manifest_sha256=None))
    return done.exit_code


def copy_files(
    opened: Opened,
    export: ExportPlan,
    target: str,
    options: SyncOptions,
    form: Format,
    *,
    dry_run: bool,
) -> int:
    """Copy files of a layout whose files need each other, through a temporary bundle."""
    required_signatures(opened, wanted=options.require_signed or bool(options.sign))
    if not export.writes:
        note_warnings(export)
    bundle, exported = make_temporary_bundle(opened.store, export)
    note(*left_out_lines(exported.left_out))
    with bundle.file:
        return receive(
            bundle,
            target,
            form,
            arrival_of(options),
            verdict=_OURS,
            export=exported.outcome,
            dry_run=dry_run,
        )
