"""``top`` as a page that is drawn again and again, and as lines."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from jaxcache.cache.watch import Change, Look
from jaxcache.entry.names import printable
from jaxcache.render.document import Document, entry_document, envelope, summary_document
from jaxcache.render.listing import live_line, summary_line
from jaxcache.render.prose import wrap
from jaxcache.render.table import Column, render_table, short_key
from jaxcache.units import NS_PER_SECOND, format_compile, format_duration, format_size, rfc3339

#: Changes that are kept to be shown; older ones only count.
_KEPT = 500
_STYLES = {"hit": "green", "new": "cyan", "gone": "yellow"}
NO_DATES = (
    "hits show only for programs under jaxcache run or warm: "
    "JAX dates a use only where jax_compilation_cache_max_size is set"
)


@dataclass(slots=True)
class Tally:
    """The changes seen since the start."""

    started_ns: int
    new: int = 0
    new_bytes: int = 0
    new_seconds: float = 0.0
    hits: int = 0
    saved_seconds: float = 0.0
    gone: int = 0
    latest: list[Change] = field(default_factory=list)
    """The last first."""

    def add(self, changes: Sequence[Change]) -> None:
        """Count what happened."""
        for change in changes:
            seconds = change.entry.compile_seconds or 0.0
            if change.kind == "new":
                self.new += 1
                self.new_bytes += change.entry.size_bytes
                self.new_seconds += seconds
            elif change.kind == "hit":
                self.hits += 1
                self.saved_seconds += seconds
            else:
                self.gone += 1
        self.latest = [*reversed(changes), *self.latest][:_KEPT]


def tally_line(tally: Tally, now_ns: int) -> str:
    """Return the sums so far: ``in 2m: 3 new (1.2 MB, 40 s), 5 hits (1m saved), 0 gone``."""
    elapsed = format_duration((now_ns - tally.started_ns) / NS_PER_SECOND)
    return (
        f"in {elapsed}: {tally.new:,} new ({format_size(tally.new_bytes)}, "
        f"{format_duration(tally.new_seconds)} of compiling), {tally.hits:,} hits "
        f"({format_duration(tally.saved_seconds)} saved), {tally.gone:,} gone"
    )


def top_page(look: Look, tally: Tally, *, now_ns: int, width: int, height: int, color: bool) -> str:
    """A page of at most ``height`` lines."""
    lines = [printable(look.cache_dir), summary_line(look.total)]
    lines += wrap(tally_line(tally, now_ns), width)
    if look.live:
        lines += wrap(f"live layer: {live_line(look.live)}", width)
    elif not look.dates_uses:
        lines += wrap(NO_DATES, width)
    lines.append("")
    if not tally.latest:
        return "\n".join([*lines, "nothing has happened yet"][:height])
    columns = [
        Column("TIME"),
        Column("WHAT", styles=_STYLES),
        Column("KEY", elastic=True, least=16),
        Column("SIZE", right=True),
        Column("COMPILE", right=True),
    ]
    rows = [
        [
            datetime.fromtimestamp(c.at_ns / NS_PER_SECOND).strftime("%H:%M:%S"),
            c.kind,
            short_key(c.entry.module, c.entry.hash),
            format_size(c.entry.size_bytes),
            format_compile(c.entry.compile_seconds),
        ]
        for c in tally.latest[: max(1, height - len(lines) - 1)]
    ]
    lines += render_table(columns, rows, width=width, color=color).splitlines()
    return "\n".join(lines[:height])


def change_document(change: Change) -> Document:
    """One change: what, when, and the entry as in ``ls``."""
    return {
        "change": change.kind,
        "changed_at": rfc3339(change.at_ns),
        **entry_document(change.entry),
    }


def change_tsv(change: Change) -> str:
    """Time, what, key, bytes, compile seconds; tab-separated."""
    e = change.entry
    seconds = "" if e.compile_seconds is None else f"{e.compile_seconds:g}"
    return f"{rfc3339(change.at_ns)}\t{change.kind}\t{printable(e.key)}\t{e.size_bytes}\t{seconds}"


def look_document(look: Look, newest: Sequence[Change]) -> Document:
    """Return the document of ``top --once --json``."""
    return {
        **envelope(look.cache_dir),
        "total": summary_document(look.total),
        "dates_uses": look.dates_uses,
        **({"live": look.live} if look.live else {}),
        "newest": [change_document(c) for c in newest],
    }
