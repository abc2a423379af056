"""``top`` as a page that is drawn again and again, and as a view."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from jaxcache.cache.watch import CacheSnapshot, Change
from jaxcache.render.columns import entry_column, seconds_column, size_column, text_column
from jaxcache.render.stats import live_line
from jaxcache.render.view import Block, Column, Line, Table, View
from jaxcache.units import (
    NS_PER_SECOND,
    format_ago,
    format_compiling,
    format_count,
    format_duration,
    format_size,
    rfc3339,
)

#: Changes that are kept to be shown; older ones only count.
_KEPT = 500
_STYLES = {"hit": "green", "new": "cyan", "gone": "yellow"}
NO_DATES = (
    "only hits of programs under jaxcache run, or with JAXCACHE_LIVE=1, are visible here, "
    "not those of plain JAX"
)


@dataclass(slots=True)
class ChangeTotals:
    """The changes seen since the start."""

    started_ns: int
    new: int = 0
    new_bytes: int = 0
    hits: int = 0
    saved_seconds: float = 0.0
    gone: int = 0
    hits_show: bool = True
    """Whether something records uses: ``-atime`` files, the live layer, or a run."""
    latest: list[Change] = field(default_factory=list)
    """The last first."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Compile seconds of the new entries, by key."""

    @property
    def new_seconds(self) -> float:
        """The compile seconds of all new entries."""
        return math.fsum(self.seconds.values())

    def add(self, look: CacheSnapshot) -> None:
        """Count what happened."""
        changes = look.changes
        self.hits_show = look.dates_uses or look.live is not None or look.records_uses
        for change in changes:
            seconds = change.entry.compile_seconds or 0.0
            if change.kind == "new":
                self.new += 1
                self.new_bytes += change.entry.size_bytes
                self.seconds[change.entry.key] = seconds
            elif change.kind == "hit":
                self.hits += 1
                self.saved_seconds += seconds
            else:
                self.gone += 1
        self.seconds.update(
            (e.key, e.compile_seconds or 0.0) for e in look.timed if e.key in self.seconds
        )
        if look.uses is not None:
            self.hits = look.uses.hits or 0
            self.saved_seconds = look.uses.saved_seconds or 0.0
        self.latest = [*reversed(changes), *self.latest][:_KEPT]


def tally_line(tally: ChangeTotals, now_ns: int) -> str:
    """Return the sums so far: ``in 2m: 3 new (1.2 MB, 40 s), 5 hits (1m saved), 0 gone``."""
    elapsed = format_duration((now_ns - tally.started_ns) / NS_PER_SECOND)
    hits = "hits: not recorded"
    if tally.hits or tally.hits_show:
        saved = format_compiling(tally.saved_seconds, tally.hits)
        hits = f"{format_count(tally.hits, 'hit')} ({saved} saved)"
    return (
        f"in {elapsed}: {tally.new:,} new ({format_size(tally.new_bytes)}, "
        f"{format_compiling(tally.new_seconds, tally.new)}), {hits}, {tally.gone:,} gone"
    )


def below_threshold_line(count: int) -> str:
    """Say how many compiles were not written, and what writes them."""
    return (
        f"not written: {format_count(count, 'compile')} under JAX's threshold (1 s by default); "
        "jaxcache warm, or JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0, writes them"
    )


def top_page(
    look: CacheSnapshot, tally: ChangeTotals, *, now_ns: int, rows: int, newest: bool = False
) -> Iterator[Block]:
    """Yield a page with the sums and the last ``rows`` changes, or the ``newest`` entries."""
    yield Line(look.cache_dir, style="bold")
    yield str(look.total)
    if now_ns - tally.started_ns >= NS_PER_SECOND:
        yield tally_line(tally, now_ns)
    if look.live and (line := live_line(look.live)):
        yield f"live layer: {line}"
    elif not (tally.hits_show or tally.hits):
        yield NO_DATES
    if look.too_quick:
        yield below_threshold_line(look.too_quick)
    yield ""
    if newest and tally.latest:
        written = Column("WRITTEN", _COLUMNS[0].value, lambda c: format_ago(c.at_ns, now_ns))
        yield Table([written, *_COLUMNS[2:]], tally.latest[:rows])
    elif tally.latest:
        yield Table(_COLUMNS, tally.latest[:rows])
    else:
        why = "" if look.too_quick else "; by default JAX writes only compiles of 1 s or longer"
        yield f"no entry has come or gone yet{why}"


def _time(change: Change) -> str:
    return datetime.fromtimestamp(change.at_ns / NS_PER_SECOND).strftime("%H:%M:%S")


_COLUMNS = [
    Column("TIME", lambda c: rfc3339(c.at_ns), _time),
    text_column("WHAT", lambda c: c.kind, styles=_STYLES),
    entry_column(lambda c: c.entry),
    size_column(lambda c: c.entry.size_bytes),
    seconds_column(lambda c: c.entry.compile_seconds),
]


def changes_view(changes: Sequence[Change]) -> View:
    """Return the view of changes as they come, one line each."""
    return View(None, changes, _COLUMNS)


def once_view(look: CacheSnapshot, newest: Sequence[Change], page: Iterable[Block]) -> View:
    """Return the view of ``top --once``."""
    document = {
        "cache_dir": look.cache_dir,
        "total": look.total,
        "dates_uses": look.dates_uses,
        **({"live": look.live} if look.live else {}),
        "newest": newest,
    }
    return View(document, newest, _COLUMNS, page=page)
