"""``ls`` as text: TSV for pipes, a table for people."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from jaxcache.cache.ledger.tuning import UNTUNED
from jaxcache.cache.listing import Listing, Summary
from jaxcache.entry.names import printable
from jaxcache.model import Entry
from jaxcache.render.table import Column, render_table, short_key, squeeze
from jaxcache.units import (
    format_ago,
    format_compile,
    format_count,
    format_duration,
    format_size,
    rfc3339,
)

if TYPE_CHECKING:
    from jaxcache.cache.groups import Group


def entries_tsv(entries: Iterable[Entry], *, long: bool = False) -> Iterator[str]:
    """One line per entry, tab-separated.

    Key, size in bytes, compile seconds, last use, problems; with ``long`` also platform, target,
    signature, source. Unknown values are empty; problems are joined by commas.
    """
    for e in entries:
        seconds = "" if e.compile_seconds is None else f"{e.compile_seconds:g}"
        line = (
            f"{printable(e.key)}\t{e.size_bytes}\t{seconds}\t{rfc3339(e.last_used_ns)}"
            f"\t{','.join(e.problems)}"
        )
        if long:
            line += f"\t{e.platform}\t{printable(e.target or '')}\t{printable(e.signature or '')}"
            line += f"\t{printable(e.source or '')}"
        yield line


def groups_tsv(groups: "Iterable[Group]") -> Iterator[str]:
    """One line per group: name, entries, size in bytes, compile seconds, last use."""
    for g in groups:
        s = g.summary
        yield (
            f"{printable(g.name)}\t{s.entries}\t{s.size_bytes}\t{s.compile_seconds:g}"
            f"\t{rfc3339(g.last_used_ns)}"
        )


def entries_table(
    entries: Iterable[Entry], *, now_ns: int, width: int, color: bool, long: bool = False
) -> str:
    """A table of entries, ``width`` columns wide at the most.

    Args:
        long: put signature and source under each entry.
    """
    entries = list(entries)
    columns = [
        Column("KEY", elastic=True, least=16),
        Column("SIZE", right=True),
        Column("COMPILE", right=True),
        Column("USED", right=True),
        Column("PLATFORM", elastic=True, cut="end"),
    ]
    if any(e.problems for e in entries):
        columns.append(Column("PROBLEMS", style="red", elastic=True, cut="end"))
    rows = [
        [
            short_key(e.module, e.hash),
            format_size(e.size_bytes),
            format_compile(e.compile_seconds),
            format_ago(e.last_used_ns, now_ns),
            _target(e),
            ", ".join(e.problems),
        ]
        for e in entries
    ]
    table = render_table(columns, rows, width=width, color=color)
    if not long:
        return table
    title, *lines = table.split("\n")
    for line, entry in zip(lines, entries, strict=True):
        title += f"\n{line}"
        for text in (entry.signature, entry.source):
            title += f"\n    {squeeze(printable(text), width - 4)}" if text else ""
    return title


def _target(entry: Entry) -> str:
    """Return the target of an entry, marked if it was compiled untuned."""
    shown = printable(entry.target or entry.platform)
    return f"{shown} {entry.tuning}" if entry.tuning == UNTUNED else shown


def groups_table(
    groups: "Iterable[Group]", by: str, *, now_ns: int, width: int, color: bool
) -> str:
    """A table of groups, ``width`` columns wide at the most."""
    columns = [
        Column(by.upper(), elastic=True),
        Column("ENTRIES", right=True),
        Column("SIZE", right=True),
        Column("COMPILE", right=True),
        Column("USED", right=True),
    ]
    rows = [
        [
            printable(g.name),
            str(g.summary.entries),
            format_size(g.summary.size_bytes),
            format_duration(g.summary.compile_seconds),
            format_ago(g.last_used_ns, now_ns),
        ]
        for g in groups
    ]
    return render_table(columns, rows, width=width, color=color)


def summary_line(summary: Summary) -> str:
    """One line under a table: ``7 entries, 46.2 kB, 12 s of compiling``."""
    return (
        f"{format_count(summary.entries, 'entry')}, {format_size(summary.size_bytes)}, "
        f"{format_duration(summary.compile_seconds)} of compiling"
    )


def listing_footer(listing: Listing) -> str:
    """Return the line under the table: sums, and the number of rows left out."""
    line = summary_line(listing.summary)
    if hidden := listing.summary.entries - len(listing.entries):
        line += f" ({hidden:,} not shown)"
    return line
