"""The results and plans of ``push`` and ``pull`` as JSON, TSV and sentences."""

from collections.abc import Iterator, Sequence

from jaxcache.cache.prune.removal import freed_bytes
from jaxcache.cache.sync import Failed, Synced, SyncPlan, Transfer
from jaxcache.entry.names import parse_key, printable
from jaxcache.render.document import Document, envelope, problem_document, to_document
from jaxcache.render.table import Column, render_table, short_key
from jaxcache.units import format_count, format_size


def sync_document(plan: SyncPlan, done: Synced | None) -> Document:
    """Return the document of ``push --json`` and ``pull --json``.

    Args:
        done: what became of the plan; None for a dry run.
    """
    carried = plan.transfers if done is None else done.carried
    removed = plan.removals if done is None else done.removed.removed if done.removed else ()
    return {
        **envelope(plan.target),
        "source": printable(plan.source),
        "dry_run": done is None,
        "carried": [transfer_document(t) for t in carried],
        "carried_bytes": sum(t.info.size_bytes for t in carried),
        "present": plan.present + (len(done.overtaken) if done else 0),
        "no_room": [transfer_document(t) for t in plan.no_room],
        "gone": [transfer_document(t) for t in (done.gone if done else ())],
        "unfinished": [transfer_document(t) for t in (done.unfinished if done else ())],
        "untrusted": [transfer_document(t) for t in (done.untrusted if done else ())],
        "left_out": [
            problem_document(p) for p in (*plan.left_out, *(done.damaged if done else ()))
        ],
        "failed": [_failed_document(f) for f in (done.failed if done else ())],
        "removed": [to_document(r) for r in removed],
        "max_size_unmet": plan.unmet,
        "ledger_segments": len(plan.segments) if done is None else done.segments,
    }


def transfer_document(transfer: Transfer) -> Document:
    """One file that goes over; ``replaces_damaged`` where the target had the start of it."""
    return {
        "key": transfer.key and printable(transfer.key),
        "file": printable(transfer.info.name),
        "size_bytes": transfer.info.size_bytes,
        "replaces_damaged": transfer.there is not None,
    }


def _failed_document(failed: Failed) -> Document:
    return {**transfer_document(failed.transfer), "detail": failed.reason}


def sync_records(plan: SyncPlan, done: Synced | None) -> Iterator[Document]:
    """One document per file, with what became of it."""
    for transfer in plan.transfers if done is None else done.carried:
        yield {"outcome": "carried", **transfer_document(transfer)}
    for transfer in plan.no_room:
        yield {"outcome": "no-room", **transfer_document(transfer)}
    for problem in plan.left_out:
        yield {"outcome": "left-out", **problem_document(problem)}
    if done is None:
        return
    for transfer in done.overtaken:
        yield {"outcome": "present", **transfer_document(transfer)}
    for transfer in done.gone:
        yield {"outcome": "gone", **transfer_document(transfer)}
    for transfer in done.unfinished:
        yield {"outcome": "unfinished", **transfer_document(transfer)}
    for transfer in done.untrusted:
        yield {"outcome": "untrusted", **transfer_document(transfer)}
    for problem in done.damaged:
        yield {"outcome": "left-out", **problem_document(problem)}
    for failed in done.failed:
        yield {"outcome": "failed", **_failed_document(failed)}


def transfer_row(transfer: Transfer) -> str:
    """One line: key (or file) and size in bytes."""
    return f"{printable(transfer.key or transfer.info.name)}\t{transfer.info.size_bytes}"


def transfers_table(transfers: Sequence[Transfer], *, width: int, color: bool) -> str:
    """The same for people."""
    columns = [Column("KEY", elastic=True, least=16), Column("SIZE", right=True)]
    rows = []
    for transfer in transfers:
        key = parse_key(transfer.key or "")
        name = short_key(*key) if key else printable(transfer.key or transfer.info.name)
        rows.append([name, format_size(transfer.info.size_bytes)])
    return render_table(columns, rows, width=width, color=color)


def sync_notes(plan: SyncPlan, done: Synced | None) -> Iterator[str]:
    """Yield the files that were not copied, with the reason."""
    for problem in (*plan.left_out, *(done.damaged if done else ())):
        yield f"left out {printable(problem.file)}: {printable(problem.detail)}"
    for failed in done.failed if done else ():
        yield f"{printable(failed.transfer.info.name)}: {printable(failed.reason)}"
    if done and done.gone:
        count = format_count(len(done.gone), "entry")
        yield f"{count} gone: removed from the source meanwhile"
    if done and done.unfinished:
        count = format_count(len(done.unfinished), "entry")
        yield f"{count} still being written: run it again for them"
    if done and done.untrusted:
        count = format_count(len(done.untrusted), "entry")
        yield f"{count} left out: no key that you trust has signed them"
    if plan.no_room:
        count = format_count(len(plan.no_room), "entry")
        yield f"{count} stay behind: --max-size leaves no room for them"
    if plan.unmet:
        yield "--max-size cannot be met: what is there already exceeds it"


def sync_summary(plan: SyncPlan, done: Synced | None) -> str:
    """One line: how much went where, and how much was there."""
    carried = plan.transfers if done is None else done.carried
    size = format_size(sum(t.info.size_bytes for t in carried))
    verb = "would copy" if done is None else "copied"
    removed = plan.removals if done is None else done.removed.removed if done.removed else ()
    present = plan.present + (len(done.overtaken) if done else 0)
    line = f"{verb} {format_count(len(carried), 'entry')}, {size}, to {printable(plan.target)}"
    line += f"; {present:,} there already"
    if removed:
        verb = "would remove" if done is None else "removed"
        line += (
            f"; {verb} {format_count(len(removed), 'entry')}, {format_size(freed_bytes(removed))}"
        )
    return line
