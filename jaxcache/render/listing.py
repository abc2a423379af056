"""``ls`` as a view."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxcache.cache.listing import Listing, group_entries
from jaxcache.entry.summary import Entry
from jaxcache.model import UNTUNED
from jaxcache.render import columns as render_columns
from jaxcache.render.view import Block, Column, Table, View, fields_of
from jaxcache.store import is_remote
from jaxcache.units import differing_columns, format_command, format_count, format_size

_SEVERAL_SHAPES = (
    "a function can have several entries, such as one for each shape of its arguments; "
    "--group-by function adds them up"
)


def listing_view(
    listing: Listing,
    *,
    now_ns: int,
    group_by: str | None = None,
    sort: str = "size",
    limit: int | None = None,
    long: bool = False,
) -> View:
    """Return the view of ``ls``; with ``group_by`` one row per group, at most ``limit``."""
    document = fields_of(listing)
    columns: Sequence[Column]
    rows: Sequence[Any] = listing.entries
    keys = [e.key for e in listing.entries]
    table = Table(columns := _entry_columns(listing.entries, now_ns, long=long), rows)
    if long:
        differing = differing_arguments(listing.entries)
        table = Table(columns, rows, below=lambda e: (differing.get(e.key, e.signature), e.source))
    if group_by:
        groups = group_entries(listing.entries, group_by, sort)
        rows = document["groups"] = groups[:limit]
        columns = group_columns(group_by, now_ns)
        keys = [g.name for g in rows]
        table = Table(columns, rows)

    def page() -> Iterator[Block]:
        if rows:
            yield table
        hidden = listing.summary.entries - len(listing.entries)
        line = str(listing.summary) + (f" ({hidden:,} not shown)" if hidden else "")
        if more := len(groups) - len(rows) if group_by else 0:
            line += f" ({format_count(more, 'group')} not shown)"
        size_bytes = listing.cache_size_bytes
        if listing.cache_entries and not listing.summary.entries:
            line = f"no entry matches; the cache has {format_count(listing.cache_entries, 'entry')}"
            line += f", {format_size(size_bytes)}" if size_bytes else ""
        elif size_bytes and size_bytes != listing.summary.size_bytes:
            line += f"; the whole cache has {format_size(size_bytes)}"
        if listing.record_bytes:
            line += f", records {format_size(listing.record_bytes)}"
        yield line

    notes = [*_notes(listing, sort, long=long)]
    repeated = len({e.module for e in listing.entries}) < len(listing.entries)
    if repeated and not group_by and sort.partition(":")[0] == "compile":
        notes.append(_SEVERAL_SHAPES)
    return View(document, rows, columns, keys, page=page(), notes=notes)


def differing_arguments(entries: Iterable[Entry]) -> dict[str, str]:
    """Return signatures by key that begin with the arguments in which entries of a module differ.

    Entries whose module has one signature, or signatures of several lengths, are left out.
    """
    modules: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    for entry in entries:
        if entry.signature and " → " in entry.signature:
            modules[entry.module][entry.key] = entry.signature.partition(" → ")[0].split(", ")
    signatures = {}
    for rows in modules.values():
        numbers = differing_columns([*rows.values()])
        for key, types in rows.items() if numbers not in ((), (0,)) else ():
            first = ", ".join(f"argument {n} {types[n]}" for n in numbers)
            signatures[key] = f"{first}; all: {', '.join(types)}"
    return signatures


def _notes(listing: Listing, sort: str, *, long: bool) -> Iterator[str]:
    problems = [p for p in listing.problems if p.kind != "unknown-directory"]
    yield from (f"{p.file}: {p.detail}" for p in listing.problems if p not in problems)
    if count := len(problems):
        see = format_command("verify", listing.cache_dir)
        yield f"{format_count(count, 'problem')} found; see them with: {see}"
    unread = sum(e.compile_seconds is None and not e.problems for e in listing.entries)
    if unread and not long and is_remote(listing.cache_dir):
        of = format_count(unread, "entry")
        yield f"use --long for compile seconds of {of} (one request each)"
    quick = sum(e.compile_seconds == 0 for e in listing.entries)
    if quick > 1 and sort.partition(":")[0] == "compile":
        yield (
            f"the order of {quick:,} entries is unknown: each compiled in less than 1 s, of which "
            "plain JAX stores 0 s"
        )


def _entry_columns(entries: Sequence[Entry], now_ns: int, *, long: bool) -> list[Column]:
    functions = any(map(_function, entries))
    columns = [
        render_columns.key_column(lambda e: e.key)._replace(  # those of torch are no hashes
            text=lambda e: render_columns.short_key(e.module, e.hash)
        ),
        *([Column("FUNCTION", None, _function, elastic=True)] if functions else []),
        render_columns.size_column(lambda e: e.size_bytes),
        render_columns.seconds_column(lambda e: e.compile_seconds),
        render_columns.used_column(now_ns),
        Column("TARGET", None, _target, elastic=True, cut="end"),
        Column(
            "PROBLEMS",
            lambda e: e.problems,
            (lambda e: ", ".join(e.problems)) if any(e.problems for e in entries) else None,
            style="red",
            elastic=True,
            cut="end",
        ),
    ]
    if long:
        columns += [
            Column("PLATFORM", lambda e: e.platform),
            Column("TARGET", lambda e: e.target),
            Column("SIGNATURE", lambda e: e.signature),
            Column("SOURCE", lambda e: e.source),
            *([Column("FUNCTION", _function)] if functions else []),
        ]
    return columns


def _function(entry: Entry) -> str:
    """Return the function that a graph of torch was traced from."""
    return getattr(entry, "function", None) or ""


def _target(entry: Entry) -> str:
    """Return the target of an entry, marked if it was compiled untuned."""
    shown = entry.target or entry.platform
    return f"{shown} {entry.tuning}" if entry.tuning == UNTUNED else shown


def group_columns(by: str, now_ns: int) -> list[Column]:
    """Return the columns of groups of entries; of a function, people see its own name."""
    prefix = "jit_" if by == "function" else ""
    return [
        Column(by.upper(), lambda g: g.name, lambda g: g.name.removeprefix(prefix), elastic=True),
        render_columns.count_column("ENTRIES", lambda g: g.summary.entries),
        render_columns.size_column(lambda g: g.summary.size_bytes),
        render_columns.seconds_column(lambda g: g.summary.compile_seconds)._replace(
            text=lambda g: g.summary.compile_total if g.summary.entries else ""
        ),
        render_columns.used_column(now_ns),
    ]
