"""``push`` and ``pull`` as a view."""

from collections.abc import Iterator, Sequence

from jaxcache.cache.bundle.compat import Compatibility
from jaxcache.cache.move.items import MoveAction
from jaxcache.cache.move.plan import Outcome
from jaxcache.cache.prune.removal import Removal, freed_bytes
from jaxcache.model import Problem
from jaxcache.render.bundle import forecast_document, left_out_lines, warning_lines
from jaxcache.render.columns import key_column, size_column
from jaxcache.render.document import Document, fields_of
from jaxcache.render.view import Table, View
from jaxcache.units import format_count, format_size

_FAILED = (MoveAction.FAILED, MoveAction.UNTRIED)


def sync_view(done: Outcome, outlooks: Compatibility | None) -> View:
    """Return the view of ``push`` and ``pull``, and of their dry runs."""
    plan = done.plan
    carried = done.written
    removed = _removed(done)
    failed = [fields_of(step) | {"detail": step.detail} for step in done.of(*_FAILED)]
    present = done.count(MoveAction.PRESENT, MoveAction.OVERTAKEN)
    document = {
        "cache_dir": plan.target,
        "source": plan.source,
        "dry_run": done.dry_run,
        "carried": carried,
        "carried_bytes": done.carried_bytes,
        "present": present,
        "no_room": done.of(MoveAction.NO_ROOM),
        "gone": done.of(MoveAction.GONE),
        "unfinished": done.of(MoveAction.UNFINISHED),
        "untrusted": done.of(MoveAction.UNTRUSTED),
        "left_out": _left_out(done),
        "failed": failed,
        "removed": removed,
        "max_size_unmet": plan.unmet,
        "ledger_segments": done.segments,
        "forecast": forecast_document(outlooks),
    }
    columns = [key_column(lambda s: s.key or s.name), size_column(lambda s: s.item.size_bytes)]
    return View(
        document,
        carried,
        columns,
        [step.key for step in carried],
        records=_records(done, failed),
        page=[Table(columns, carried)] if done.dry_run and carried else (),
        notes=[*_notes(done), _summary(done, present, removed)],
    )


def _left_out(done: Outcome) -> list[Problem]:
    """Return the files that do not travel: those with a name that cannot, and damaged ones."""
    steps = (*done.of(MoveAction.STRAY, MoveAction.BLOCKED), *done.of(MoveAction.DAMAGED))
    return [step.problem for step in steps]


def _removed(done: Outcome) -> Sequence[Removal]:
    if done.dry_run:
        return done.plan.removals
    return done.removed.removed if done.removed else ()


def _records(done: Outcome, failed: Sequence[Document]) -> Iterator[Document]:
    for outcome, steps in (
        ("carried", done.written),
        ("no-room", done.of(MoveAction.NO_ROOM)),
        ("left-out", _left_out(done)),
        ("present", done.of(MoveAction.OVERTAKEN)),
        ("gone", done.of(MoveAction.GONE)),
        ("unfinished", done.of(MoveAction.UNFINISHED)),
        ("untrusted", done.of(MoveAction.UNTRUSTED)),
    ):
        yield from ({"outcome": outcome, **fields_of(one)} for one in steps)
    yield from ({"outcome": "failed", **one} for one in failed)


def _notes(done: Outcome) -> Iterator[str]:
    """Yield the files that were not copied, with the reason."""
    yield from left_out_lines(_left_out(done))
    yield from left_out_lines(s.problem for s in done.of(MoveAction.LEFT, MoveAction.UNFINISHED))
    yield from _failures(done)
    for some, what in (
        (done.of(MoveAction.GONE), "gone: removed from the source meanwhile"),
        (done.of(MoveAction.UNTRUSTED), "left out: not signed by a key that you trust"),
        (done.of(MoveAction.NO_ROOM), "left out: --max-size leaves no room for them"),
    ):
        if some:
            yield f"{format_count(len(some), 'entry')} {what}"
    yield from warning_lines(done)


def _failures(done: Outcome) -> Iterator[str]:
    """Yield a line for each file that could not be read or written, and the number of the rest."""
    for step in done.failed:
        yield f"{step.name}: {step.detail}"
    if untried := done.of(MoveAction.UNTRIED):
        yield f"{format_count(len(untried), 'file')} {untried[0].detail}"


def _summary(done: Outcome, present: int, removed: Sequence[Removal]) -> str:
    """Return one line: how much went where, and how much was there."""
    verb, removing = ("would copy", "would remove") if done.dry_run else ("copied", "removed")
    count = format_count(len(done.written), "entry")
    size = format_size(done.carried_bytes)
    line = f"{verb} {count}, {size}, to {done.plan.target}; {present:,} already present"
    if removed:
        freed = format_size(freed_bytes(removed))
        line += f"; {removing} {format_count(len(removed), 'entry')}, {freed}"
    return line
