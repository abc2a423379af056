"""Shared by ``push``, ``pull`` and ``copy``: carry the entries of one cache into another."""

import time
from collections.abc import Sequence

from jaxcache.api import Cache
from jaxcache.cache.bundle.compat import Compatibility, forecast_items, forecast_steps
from jaxcache.cache.diff import DiffSide
from jaxcache.cache.inventory import nothing_there
from jaxcache.cache.move import import_bundle
from jaxcache.cache.move.bundle_file import make_temporary_bundle
from jaxcache.cache.move.export_plan import ExportPlan, empty_warning
from jaxcache.cache.move.items import MoveAction, Step
from jaxcache.cache.move.plan import Plan
from jaxcache.cache.move.signatures import required_signatures
from jaxcache.cache.move.stores import make_source
from jaxcache.cache.trust import Verdict, signing_keys
from jaxcache.cli.bundle import (
    interruptible,
    note_warnings,
    print_forecast,
    receive,
)
from jaxcache.cli.opening import open_target
from jaxcache.cli.options import Format
from jaxcache.cli.output import emit, note
from jaxcache.cli.terminal import confirm, progress_bar
from jaxcache.errors import UsageError
from jaxcache.layouts import names_there
from jaxcache.options import ConfirmOptions
from jaxcache.options.move import CopyOptions, SyncOptions, arrival_of
from jaxcache.render.maintain import removals_table
from jaxcache.render.move import import_view, left_out_lines, sync_view
from jaxcache.store import is_remote
from jaxcache.store.base import Store

#: The verdict on signatures if no bundle comes from elsewhere.
_OURS = Verdict(("this machine",), ())


def copy_between(
    source: Cache,
    target: Cache,
    options: SyncOptions,
    form: Format,
    consent: ConfirmOptions,
    *,
    pulls: bool = False,
) -> int:
    """Plan, ask where something would be removed, carry over, print; return the exit code.

    Args:
        options: a configuration file, too, can require signatures, of all that comes into a
            directory.
        pulls: the target is where the entries are to be used, and a source without entries is
            none at all.

    Raises:
        NoCacheError: a place cannot be reached, or there is nothing to get.
        UntrustedError: no ``cryptography``, or a list of keys that others may write.
        JaxcacheError: ``read-only``, ``declined``, ``interrupted``.
    """
    vouched = is_remote(target.path) or bool(options.sign and not pulls)
    plan = source.plan_push(target, vouched=vouched, options=options)
    if pulls and not plan.entries:
        raise nothing_there(source.store.url)
    place = plan.target if pulls else None
    is_far = source.store.remote
    outlooks = None if is_far else _forecast(source.store, plan.writes, place, form)
    dry_run = consent.dry_run
    if plan.removals and not (dry_run or consent.yes):
        _ask(plan)
    with interruptible():
        done = source.carry(plan, target, jobs=options.jobs, sign=options.sign, dry_run=dry_run)
    if is_far and target.existing and not (target.existing.remote or done.dry_run):
        outlooks = _forecast(
            target.existing, done.written, place, form
        )  # which costs no request now
    emit(form, sync_view(done, outlooks))
    return done.exit_code


def _forecast(
    store: Store, steps: Sequence[Step], place: str | None, form: Format
) -> Compatibility:
    """Forecast what will hit, and warn people of what will not."""
    outlooks = forecast_steps(store, steps, place)
    print_forecast(outlooks, form)
    return outlooks


def copy_layout_files(
    source: Cache, location: str | None, options: SyncOptions, form: Format, *, dry_run: bool
) -> int:
    """Bring to a place what it lacks of a cache, each file checked; never replace one there.

    Args:
        location: of the target; None for the compiler's own place.

    Raises:
        UsageError: an option that is for JAX's caches alone; ``other-layout``.
        UntrustedError: nothing here is signed; a bundle can be.
    """
    target = open_target(location, None, source.layout.name)
    path = target.location.path
    export = offer_files(source, options, since=DiffSide(path, {}, files=names_there(path)))
    return copy_files(source, export, target, options, form, dry_run=dry_run)


def offer_files(
    source: Cache, options: SyncOptions, *, since: DiffSide | None = None
) -> ExportPlan:
    """Choose what a layout offers whose files need each other.

    Args:
        since: a place whose files need not travel again.

    Raises:
        UsageError: an option that is for JAX's caches alone.
    """
    if options.exclude or options.max_size_bytes is not None:
        raise UsageError("--exclude and --max-size are for JAX's caches; prune first")
    return source.layout.exports.plan_export(
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
    source: Cache, target: Cache, options: CopyOptions, form: Format, *, dry_run: bool
) -> int:
    """Copy entries of JAX from one cache into another, file by file."""
    plan = source.plan_push(target, on_conflict=options.on_conflict, vouched=False, options=options)
    if all(step.action is MoveAction.LEFT for step in plan.steps):
        note(f"warning: {empty_warning(source.store.url)}")
    with interruptible(), progress_bar("copying") as progress:
        done = import_bundle.receive(
            None if dry_run else target.make(),
            make_source(source.store, plan),
            plan,
            now_ns=source.clock(),
            atomic=options.atomic,
            jobs=options.jobs,
            signers=signing_keys(options.sign),
            progress=progress,
        )
    note(*left_out_lines(step.problem for step in done.steps if step.is_left_out))
    outlooks = forecast_items((step.item for step in done.steps), None, target.location.path)
    print_forecast(outlooks, form)
    emit(form, import_view(done, outlooks, _OURS, manifest_sha256=None))
    return done.exit_code


def copy_files(
    source: Cache,
    export: ExportPlan,
    target: Cache,
    options: SyncOptions,
    form: Format,
    *,
    dry_run: bool,
) -> int:
    """Copy files of a layout whose files need each other, through a temporary bundle."""
    wanted = options.require_signed or bool(options.sign)
    required_signatures(source.store, source.layout, wanted=wanted)
    if not export.writes:
        note_warnings(export)
    bundle, exported = make_temporary_bundle(source.store, export)
    note(*left_out_lines(exported.left_out))
    with bundle.file:
        return receive(
            target,
            bundle,
            form,
            arrival_of(options),
            verdict=_OURS,
            export=exported.outcome,
            dry_run=dry_run,
        )
