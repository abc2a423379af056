"""``diff`` as a view."""

from collections.abc import Iterator, Sequence

from jaxcache.cache.diff import Diff, DiffEntry, DiffSide, sum_sizes
from jaxcache.render.columns import key_column
from jaxcache.render.view import Column, Document, Table, View, fields_of, to_document
from jaxcache.units import format_compile, format_count, format_size

#: A difference: the mark and the words for where it is, the key or file, what to show of both.
_Row = tuple[str, str, str, tuple[object, object], tuple[str, str]]


def diff_view(diff: Diff) -> View:
    """Return the view of ``diff``; ``cache_dir`` is the left side.

    Marks: ``<`` only left, ``>`` only right, ``!`` another executable, ``~`` other seconds only,
    ``x`` damaged.
    """
    sides = (("left", diff.left, diff.only_left), ("right", diff.right, diff.only_right))
    document = fields_of(diff) | {name: _side(side, only) for name, side, only in sides}
    records = [{"where": name, **fields_of(h)} for name, _, only in sides for h in only]
    records += [{"where": "both", **fields_of(p)} for p in diff.differing]
    keys = [h.key for h in (*diff.only_left, *diff.only_right)]
    rows = list(_rows(diff))
    columns = [
        Column("WHERE", lambda row: row[0], lambda row: row[1]),
        key_column(lambda row: row[2]),
        Column("SIZE", lambda row: row[3][0], lambda row: row[4][0], right=True),
        Column("COMPILE", lambda row: row[3][1], lambda row: row[4][1], right=True),
    ]
    return View(
        document,
        rows,
        columns,
        sorted(to_document(keys + [p.left.key for p in diff.differing])),
        records=records,
        page=() if diff.equal else [Table(columns, rows)],
        notes=[_summary(diff)],
    )


def _side(side: DiffSide, only: Sequence[DiffEntry]) -> Document:
    size_bytes, seconds = sum_sizes(only)
    return {
        "location": side.location,
        "entries": len(side.entries),
        "only_size_bytes": size_bytes,
        "only_compile_seconds": seconds,
        "damaged": side.damaged,
    }


def _rows(diff: Diff) -> Iterator[_Row]:
    for mark, where, side in (("x<", "left", diff.left), ("x>", "right", diff.right)):
        for p in side.damaged:
            yield mark, f"{where}: {p.kind}", p.file, (p.kind, p.detail), ("", "")
    for mark, where, entries in (("<", "left", diff.only_left), (">", "right", diff.only_right)):
        for h in entries:
            yield mark, where, h.key, (h.size_bytes, h.compile_seconds), _shown(h)
    for pair in diff.differing:
        left = pair.left
        right = pair.right
        values = (
            (left.size_bytes, right.size_bytes),
            (left.compile_seconds, right.compile_seconds),
        )
        shown = [", ".join(both) for both in zip(_shown(left), _shown(right), strict=True)]
        mark = "!" if pair.payload_differs else "~"
        yield mark, "both: differing", left.key, values, (shown[0], shown[1])


def _shown(held: DiffEntry) -> tuple[str, str]:
    return format_size(held.size_bytes), format_compile(held.compile_seconds)


def _summary(diff: Diff) -> str:
    """Return one line on how the sides differ, with what is at stake."""
    if diff.equal:
        return f"equal: {format_count(diff.same, 'entry')} on both sides"
    words = [f"{diff.same} the same"]
    for what, entries in (("left", diff.only_left), ("right", diff.only_right)):
        size_bytes, seconds = sum_sizes(entries)
        if entries:
            at_stake = f"{format_size(size_bytes)}, {format_compile(seconds)}"
            words.append(f"{len(entries)} only {what} ({at_stake})")
    if diff.differing:
        payloads = sum(p.payload_differs for p in diff.differing)
        words.append(f"{len(diff.differing)} differ ({payloads} in their executables)")
    if damaged := len(diff.left.damaged) + len(diff.right.damaged):
        words.append(f"{damaged} damaged")
    return ", ".join(words)
