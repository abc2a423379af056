"""``push`` and ``pull`` as a view."""

from collections.abc import Iterator, Sequence

from jaxcache.cache.bundle.compat import Compatibility
from jaxcache.cache.prune.removal import Removal, freed_bytes
from jaxcache.cache.sync.execute import Synced
from jaxcache.cache.sync.plan import SyncPlan
from jaxcache.render.bundle import forecast_document, left_out_lines
from jaxcache.render.columns import key_column, size_column
from jaxcache.render.document import Document, fields_of
from jaxcache.render.view import Table, View
from jaxcache.units import format_count, format_size


def sync_view(plan: SyncPlan, done: Synced | None, outlooks: Compatibility | None) -> View:
    """Return the view of ``push`` and ``pull``.

    Args:
        done: what became of the plan; None for a dry run.
    """
    result = done or Synced(plan.transfers, segments=len(plan.segments))
    carried, removed = result.carried, _removed(plan, done)
    failed = [fields_of(f.transfer) | {"detail": f.reason} for f in result.failed]
    document = {
        "cache_dir": plan.target,
        "source": plan.source,
        "dry_run": done is None,
        "carried": carried,
        "carried_bytes": result.carried_bytes,
        "present": plan.present + len(result.overtaken),
        "no_room": plan.no_room,
        "gone": result.gone,
        "unfinished": result.unfinished,
        "untrusted": result.untrusted,
        "left_out": (*plan.left_out, *result.damaged),
        "failed": failed,
        "removed": removed,
        "max_size_unmet": plan.unmet,
        "ledger_segments": result.segments,
        "forecast": forecast_document(outlooks),
    }
    columns = [key_column(lambda t: t.key or t.info.name), size_column(lambda t: t.info.size_bytes)]
    return View(
        document,
        carried,
        columns,
        [t.key for t in carried],
        records=_records(plan, result, failed),
        page=[Table(columns, carried)] if done is None and carried else (),
        notes=[*_notes(plan, result), _summary(plan, result, removed, dry_run=done is None)],
    )


def _removed(plan: SyncPlan, done: Synced | None) -> Sequence[Removal]:
    if done is None:
        return plan.removals
    return done.removed.removed if done.removed else ()


def _records(plan: SyncPlan, result: Synced, failed: Sequence[Document]) -> Iterator[Document]:
    for outcome, found in (
        ("carried", result.carried),
        ("no-room", plan.no_room),
        ("left-out", plan.left_out),
        ("present", result.overtaken),
        ("gone", result.gone),
        ("unfinished", result.unfinished),
        ("untrusted", result.untrusted),
        ("left-out", result.damaged),
    ):
        yield from ({"outcome": outcome, **fields_of(one)} for one in found)
    yield from ({"outcome": "failed", **one} for one in failed)


def _notes(plan: SyncPlan, result: Synced) -> Iterator[str]:
    """Yield the files that were not copied, with the reason."""
    yield from left_out_lines((*plan.left_out, *result.damaged))
    for young in result.unfinished:
        yield f"left out {young.info.name}: still being written; run it again in a minute"
    for failed in result.failed:
        yield f"{failed.transfer.info.name}: {failed.reason}"
    for some, what in (
        (result.gone, "gone: removed from the source meanwhile"),
        (result.untrusted, "left out: not signed by a key that you trust"),
        (plan.no_room, "left out: --max-size leaves no room for them"),
    ):
        if some:
            yield f"{format_count(len(some), 'entry')} {what}"
    if plan.unmet:
        yield "--max-size cannot be met: what is there already exceeds it"


def _summary(plan: SyncPlan, result: Synced, removed: Sequence[Removal], *, dry_run: bool) -> str:
    """Return one line: how much went where, and how much was there."""
    verb, removing = ("would copy", "would remove") if dry_run else ("copied", "removed")
    count, size = format_count(len(result.carried), "entry"), format_size(result.carried_bytes)
    line = f"{verb} {count}, {size}, to {plan.target}"
    line += f"; {plan.present + len(result.overtaken):,} there already"
    if removed:
        freed = format_size(freed_bytes(removed))
        line += f"; {removing} {format_count(len(removed), 'entry')}, {freed}"
    return line
