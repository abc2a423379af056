"""``push`` and ``pull`` as a view."""

from collections.abc import Iterator, Sequence

from jaxcache.cache.bundle.compat import Compatibility
from jaxcache.cache.prune.removal import freed_bytes
from jaxcache.cache.sync.execute import Synced
from jaxcache.cache.sync.plan import SyncPlan, Transfer
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
    carried = plan.transfers if done is None else done.carried
    removed = plan.removals if done is None else done.removed.removed if done.removed else ()
    left_out = (*plan.left_out, *(done.damaged if done else ()))
    failed = [fields_of(f.transfer) | {"detail": f.reason} for f in (done.failed if done else ())]
    document = {
        "cache_dir": plan.target,
        "source": plan.source,
        "dry_run": done is None,
        "carried": carried,
        "carried_bytes": sum(t.info.size_bytes for t in carried),
        "present": plan.present + (len(done.overtaken) if done else 0),
        "no_room": plan.no_room,
        "gone": done.gone if done else (),
        "unfinished": done.unfinished if done else (),
        "untrusted": done.untrusted if done else (),
        "left_out": left_out,
        "failed": failed,
        "removed": removed,
        "max_size_unmet": plan.unmet,
        "ledger_segments": len(plan.segments) if done is None else done.segments,
        "forecast": forecast_document(outlooks),
    }
    columns = [key_column(lambda t: t.key or t.info.name), size_column(lambda t: t.info.size_bytes)]
    return View(
        document,
        carried,
        columns,
        [t.key for t in carried],
        records=_records(plan, done, carried, failed),
        page=[Table(columns, carried)] if done is None and carried else (),
        notes=[*_notes(plan, done), _summary(plan, done, carried)],
    )


def _records(
    plan: SyncPlan, done: Synced | None, carried: Sequence[Transfer], failed: Sequence[Document]
) -> Iterator[Document]:
    outcomes = [("carried", carried), ("no-room", plan.no_room), ("left-out", plan.left_out)]
    if done:
        outcomes += [
            ("present", done.overtaken),
            ("gone", done.gone),
            ("unfinished", done.unfinished),
            ("untrusted", done.untrusted),
            ("left-out", done.damaged),
        ]
    for outcome, found in outcomes:
        yield from ({"outcome": outcome, **fields_of(one)} for one in found)
    yield from ({"outcome": "failed", **one} for one in failed)


def _notes(plan: SyncPlan, done: Synced | None) -> Iterator[str]:
    """Yield the files that were not copied, with the reason."""
    yield from left_out_lines((*plan.left_out, *(done.damaged if done else ())))
    for young in done.unfinished if done else ():
        yield f"left out {young.info.name}: still being written; run it again in a minute"
    for failed in done.failed if done else ():
        yield f"{failed.transfer.info.name}: {failed.reason}"
    for some, what in (
        (done.gone if done else (), "gone: removed from the source meanwhile"),
        (done.untrusted if done else (), "left out: not signed by a key that you trust"),
        (plan.no_room, "left out: --max-size leaves no room for them"),
    ):
        if some:
            yield f"{format_count(len(some), 'entry')} {what}"
    if plan.unmet:
        yield "--max-size cannot be met: what is there already exceeds it"


def _summary(plan: SyncPlan, done: Synced | None, carried: Sequence[Transfer]) -> str:
    """Return one line: how much went where, and how much was there."""
    size = format_size(sum(t.info.size_bytes for t in carried))
    verb, removing = ("would copy", "would remove") if done is None else ("copied", "removed")
    removed = plan.removals if done is None else done.removed.removed if done.removed else ()
    present = plan.present + (len(done.overtaken) if done else 0)
    line = f"{verb} {format_count(len(carried), 'entry')}, {size}, to {plan.target}"
    line += f"; {present:,} there already"
    if removed:
        freed = format_size(freed_bytes(removed))
        line += f"; {removing} {format_count(len(removed), 'entry')}, {freed}"
    return line
