"""``stats`` as a view, and as Prometheus text."""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from jaxcache import units
from jaxcache.cache.files import RECORD_KINDS
from jaxcache.cache.ledger.segments import LiveStats, Uses
from jaxcache.cache.listing import Summary
from jaxcache.cache.stats import Stats
from jaxcache.core.names import LIVE_WORDS
from jaxcache.core.signing import TierRefusal, describe_refusal, refusal_fix
from jaxcache.layouts import JAX
from jaxcache.layouts.base import Words
from jaxcache.render.columns import count_column, size_column, text_column
from jaxcache.render.listing import group_columns
from jaxcache.render.view import Block, Column, Line, Table, View, fields_of, to_document

#: Modules that the page for people shows; the document holds them all.
_SHOWN_MODULES = 15


_NAMES = ("section", "name", "count", "size_bytes", "compile_seconds")
_COLUMNS = [Column(name, itemgetter(name)) for name in _NAMES]


Live = Mapping[str, int | float] | None
_NOT_LIVE = LiveStats(None, ())


def stats_view(
    stats: Stats, counted: LiveStats = _NOT_LIVE, words: Words = JAX.words, *, now_ns: int
) -> View:
    """Return the view of ``stats``.

    Args:
        counted: what the live layer has counted and refused in this cache.
    """
    live, refusals = counted
    ages = [{"name": name, **fields_of(summary)} for name, summary in stats.by_age]
    document = fields_of(stats) | {"by_age": ages, "problems": dict(stats.problems)}
    rows = [dict(zip(_NAMES, row, strict=True)) for row in _rows(stats, live, refusals)]
    document |= fields_of(stats.uses) | ({"live": live} if live else {})
    document |= {"refused": refusals} if refusals else {}
    return View(document, rows, _COLUMNS, page=_page(stats, live, refusals, words, now_ns))


def _rows(
    stats: Stats, live: Live, refusals: Sequence[TierRefusal]
) -> Iterator[tuple[object, ...]]:
    def row(section: str, name: str, s: Summary) -> tuple[object, ...]:
        return section, name, s.entries, s.size_bytes, s.compile_seconds

    yield row("total", "entries", stats.total)
    for f in stats.files:
        yield "file", str(f.kind), f.files, f.size_bytes, None
    for section, groups in (
        ("platform", stats.by_platform),
        ("codec", stats.by_codec),
        ("module", stats.by_module),
    ):
        for group in groups:
            yield row(section, group.name, group.summary)
    for name, summary in stats.by_age:
        yield row("age", name, summary)
    uses = stats.uses
    if uses.hits is not None:
        yield "use", "hits", uses.hits, None, uses.saved_seconds
        yield "use", "misses", uses.misses, None, None
    if stats.never_used.entries:
        yield row("use", "never-used", stats.never_used)
    for name, count in (live or {}).items():
        yield "live", name, count, None, None
    for refusal in refusals:
        yield f"refused-{refusal.reason}", refusal.tier, refusal.entries, None, None


def _page(
    stats: Stats, live: Live, refusals: Sequence[TierRefusal], words: Words, now_ns: int
) -> Iterator[Block]:
    total = stats.total
    others = sum(f.files for f in stats.files) - total.entries
    yield Line(stats.cache_dir, style="bold")
    if total.entries:
        yield from _uses_lines(stats.uses, words)
    else:
        yield f"no entries yet; to fill the cache: {words.fill}"
    if live and (line := live_line(live)):
        yield Line(line, "Live layer   ")
    for refusal in refusals:
        yield Line(f"{describe_refusal(refusal)}; {refusal_fix(refusal)}", "Tier refused ")
    if total.entries:
        sealed = f"; {stats.sealed:,} with a checksum (sealed)" if stats.sealed else ""
        size = f"{total.entries:,}, {units.format_size(total.size_bytes)}"
        seconds = total.compiling or "compile time not read (--long reads it)"
        yield Line(f"{size}, {seconds}{sealed}", "Entries      ")
    if brought := stats.never_used.entries:
        entries = f"{units.format_count(brought, 'entry')} that a move brought"
        see = units.format_command("ls --filter used-from=arrival", stats.cache_dir)
        size = units.format_size(stats.never_used.size_bytes)
        yield Line(f"{entries}, {size}; see them with: {see}", "Never used   ")
    if others:
        size = f"{units.format_size(stats.size_bytes)}, as --max-size counts it"
        if records := sum(f.size_bytes for f in stats.files if f.kind in RECORD_KINDS):
            size += f"; {units.format_size(records)} of jaxcache's own records not counted"
        yield Line(size, "Cache size   ")
    if stats.problems:
        problems = ", ".join(f"{n:,} {kind}" for kind, n in stats.problems)
        see = units.format_command("verify", stats.cache_dir)
        yield Line(f"{problems}; see them with: {see}", "Problems     ", style="red")
    for by, groups in (("module", stats.by_module), ("platform", stats.by_platform)):
        if groups and not (by == "platform" and len(groups) == 1):
            yield ""
            yield Table(group_columns(by, now_ns), groups, limit=_SHOWN_MODULES)
    if total.entries:
        yield ""
        yield Table(_AGES, [row for row in stats.by_age if row[1].entries])
    if others:
        yield ""
        yield Table(_FILES, stats.files)


_AGES = [
    Column("LAST USED", text=lambda row: f"within {row[0]}" if row[0] != "older" else "before"),
    count_column("ENTRIES", lambda row: row[1].entries),
    size_column(lambda row: row[1].size_bytes),
    Column("COMPILE", text=lambda row: row[1].compile_total, right=True),
]
#: Kinds of files whose names need a word more, in JAX's caches and torch's.
_KINDS = {
    "atime": "-atime (JAX's dates of last use)",
    "autotune": "autotune (results of XLA's autotuning)",
    "kernel-cache": "kernel-cache (XLA's compiled kernels)",
    "ledger": "ledger (uses recorded by jaxcache; not in the cache size)",
    "legacy-entry": "entry of JAX up to 0.4.30",
    "lockfile": "lockfile (of JAX)",
    "own": "other records of jaxcache (not in the cache size)",
    "quarantine": "quarantine (damaged entries that were moved there)",
    "stray": "stray-file (of unknown origin)",
    "unknown-directory": "directories of other programs (not in the cache size)",
    "unread": "unread (of kinds that jaxcache does not know; not in the cache size)",
    "compiler-files": "compiler-files (precompiled headers; not in the cache size)",
    "temp": "temp (of an interrupted write)",
}
_FILES = [
    text_column("FILES", lambda f: _KINDS.get(f.kind, f.kind), elastic=True, cut="end"),
    count_column("COUNT", lambda f: f.files),
    size_column(lambda f: f.size_bytes),
]


def _uses_lines(uses: Uses, words: Words) -> Iterator[Line]:
    lead = "Hits         "
    if uses.hits is None or uses.misses is None:
        how = f"; to record them: {words.record}" if words.record else f" for {words.compiler}"
        yield Line(f"not recorded{how}", lead)
        return
    rate = f" ({uses.hit_rate:.0%})" if uses.hit_rate is not None else ""
    if not uses.hits:
        rate += "; plain Python records none"
    yield Line(
        f"{uses.hits:,} of {units.format_count(uses.hits + uses.misses, 'recorded request')}{rate}",
        lead,
    )
    yield Line(f"{uses.misses:,}", "Misses       ")
    yield Line(units.format_compiling(uses.saved_seconds or 0.0, uses.hits), "Saved        ")


def stats_prometheus(stats: Stats, live: Live = None) -> Iterator[str]:
    """Yield lines in the text format of Prometheus, for node_exporter's textfile collector."""
    platforms = [(g.name, g.summary) for g in stats.by_platform]
    seconds = [(n, s.compile_seconds) for n, s in platforms]
    file_bytes = [(str(f.kind), f.size_bytes) for f in stats.files]
    counted: list[tuple[str, int | float]] = list((live or {}).items())
    uses = stats.uses
    recorded = [("hits", uses.hits), ("misses", uses.misses), ("saved_seconds", uses.saved_seconds)]
    used = [(name, value) for name, value in recorded if value is not None]
    for name, meaning, label, samples in (
        ("entries", "Cache entries.", "platform", [(n, s.entries) for n, s in platforms]),
        ("entry_bytes", "Bytes of entries.", "platform", [(n, s.size_bytes) for n, s in platforms]),
        ("compile_seconds", "Compile seconds stored.", "platform", seconds),
        ("files", "Files in the directory.", "kind", [(str(f.kind), f.files) for f in stats.files]),
        ("file_bytes", "Bytes in the directory.", "kind", file_bytes),
        # Always a sample, so that no problem differs from no scrape.
        ("problems", "Problems seen.", "kind", [*stats.problems, ("none", 0)]),
        ("uses", "Recorded uses.", "counter", used),
        ("live", "Counts of the live layer.", "counter", counted),
    ):
        if name in ("live", "uses") and not samples:
            continue
        yield f"# HELP jaxcache_{name} {meaning}"
        yield f"# TYPE jaxcache_{name} gauge"
        for value_of_label, value in samples:
            labels = f'cache_dir="{_escape(stats.cache_dir)}",{label}="{_escape(value_of_label)}"'
            yield f"jaxcache_{name}{{{labels}}} {value}"


def _escape(text: str) -> str:
    """Return a label's value."""
    shown: str = to_document(text)
    return shown.replace("\\", "\\\\").replace('"', '\\"')


def live_line(totals: Mapping[str, float]) -> str:
    """Return what only the live layer counts: ``3 hits came from tiers, 2 written, 1 evicted``.

    All hits and misses are in the ledger (:func:`jaxcache.cache.ledger.segments.count_uses`).
    """
    tier = int(totals.get("hits_tier", 0))
    parts = [f"{units.format_count(tier, 'hit')} came from tiers"] if tier else []
    parts += [f"{int(totals[n]):,} {word}" for n, word in LIVE_WORDS.items() if totals.get(n)]
    if hidden_seconds := totals.get("preload_hidden_seconds"):
        parts.append(f"{units.format_duration(hidden_seconds)} of loads hidden")
    return ", ".join(parts)
