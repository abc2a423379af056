"""Decide when an entry was last used, by what evidence, and how many seconds it saves.

Four sources record a use: the ledger, JAX's ``-atime`` file, the file system's access time, and,
because a write is a use as well, the modification time. The latest date counts. Dates within a
minute of it belong to the same use, and of these the best source in the order above is named.

Some dates do not show a use:

* A date more than a day ahead of the clock was written by a wrong clock.
* A program that reads every file of a directory, such as a backup, leaves access times that are
  closer together than those of any JAX program (:func:`find_reads`).
* A program that writes every file of a directory, such as ``cp -r``, leaves modification times of
  this kind. They count only where no better source has a date.

``docs/eviction.md`` explains the rule to users.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal, NamedTuple

LastUsedFrom = Literal["ledger", "atime-file", "fs-atime", "mtime"]
#: The best source first.
_SOURCES = ("ledger", "atime-file", "fs-atime", "mtime")

_NS_PER_SECOND = 10**9
#: One use leaves dates in several places within this time.
_SAME_USE_NS = 60 * _NS_PER_SECOND
#: A date further ahead of the clock than this is wrong. Machines that share a directory differ by
#: seconds, and by hours where one takes local time for UTC.
_AHEAD_NS = 24 * 3600 * _NS_PER_SECOND

#: A sweep reads this many files at least, each within 0.5 ms on average and with no pause longer
#: than a tick of the kernel's clock. JAX takes more than 3 ms to trace, look up and load an entry.
_SWEEP_FILES = 5
_SWEEP_FILE_NS = 500_000
_TICK_NS = 10_000_000
#: A ``relatime`` mount keeps the date of an earlier read for a day; the hour is for slow backups.
_RELATIME_NS = 25 * 3600 * _NS_PER_SECOND

#: The header has whole seconds, rounded down; half a second is the mean of what that drops.
_ROUNDED_AWAY_SECONDS = 0.5


class LastUse(NamedTuple):
    """The last use of an entry."""

    at_ns: int
    """0 where no date can be right."""
    source: LastUsedFrom
    """The best source that has this date."""


def last_use(dates: "Iterable[tuple[LastUsedFrom, int | None]]", now_ns: int) -> LastUse:
    """Return the last use of an entry.

    Args:
        dates: sources and their dates in nanoseconds since the epoch; None for no date.
    """
    possible = [
        (at_ns, source)
        for source, at_ns in dates
        if at_ns is not None and is_possible(at_ns, now_ns)
    ]
    if not possible:
        return LastUse(0, "mtime")
    latest_ns = max(possible)[0]
    same_use = [pair for pair in possible if pair[0] >= latest_ns - _SAME_USE_NS]
    at_ns, source = min(same_use, key=lambda pair: (_SOURCES.index(pair[1]), -pair[0]))
    return LastUse(at_ns, source)


def is_possible(at_ns: int, now_ns: int) -> bool:
    """Return whether a date can be right: it is not in the future."""
    return 0 <= at_ns <= now_ns + _AHEAD_NS


class Sweeps:
    """Periods in which one program read, or wrote, every file of a directory."""

    def __init__(self, periods: "list[tuple[int, int]]") -> None:
        self._starts = [start for start, _ in periods]
        self._ends = [end for _, end in periods]

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, at_ns: int) -> bool:
        index = bisect_right(self._starts, at_ns) - 1
        return index >= 0 and at_ns <= self._ends[index]


NO_SWEEPS = Sweeps([])


def find_reads(files: "Iterable[tuple[int, int]]") -> Sweeps:
    """Find the sweeps that read every file of a directory.

    Args:
        files: the modification time and the access time of each.
    """
    oldest_ns = None
    reads: list[int] = []
    for written_ns, read_ns in files:
        latest_ns = max(written_ns, read_ns)
        oldest_ns = latest_ns if oldest_ns is None else min(oldest_ns, latest_ns)
        if read_ns > written_ns:
            reads.append(read_ns)
    periods = _find_dense(sorted(reads))
    if oldest_ns is None or not periods or oldest_ns < periods[0][0] - _RELATIME_NS:
        return NO_SWEEPS  # one file was left out
    return Sweeps(periods)


def find_writes(dates: "Iterable[int]") -> Sweeps:
    """Find the sweeps that wrote every file of a directory, by the modification times."""
    ascending = sorted(dates)
    periods = _find_dense(ascending)
    return Sweeps(periods) if periods and ascending[0] >= periods[0][0] else NO_SWEEPS


def _find_dense(dates: "list[int]") -> "list[tuple[int, int]]":
    """Return the periods in which ascending dates are closer together than uses."""
    periods: list[tuple[int, int]] = []
    start = 0
    for index, at_ns in enumerate(dates):
        if index and at_ns - dates[index - 1] > _TICK_NS:
            periods += _period(dates[start], dates[index - 1], index - start)
            start = index
    if dates:
        periods += _period(dates[start], dates[-1], len(dates) - start)
    return periods


def _period(start_ns: int, end_ns: int, files: int) -> "list[tuple[int, int]]":
    is_dense = end_ns - start_ns <= files * _SWEEP_FILE_NS + _TICK_NS
    return [(start_ns, end_ns)] if files >= _SWEEP_FILES and is_dense else []


class FileDates(NamedTuple):
    """The dates of one entry's files in nanoseconds since the epoch; None for no date."""

    written_ns: int
    read_ns: "int | None" = None
    """The access time."""
    stamp_ns: "int | None" = None
    """The date in the ``-atime`` file."""
    changed_ns: "int | None" = None
    """The last change of the inode, which a program cannot set."""


class LastUses:
    """The rule for the entries of one directory.

    Args:
        reads: sweeps among the access times.
        writes: sweeps among the modification times.
    """

    def __init__(self, now_ns: int, reads: Sweeps = NO_SWEEPS, writes: Sweeps = NO_SWEEPS) -> None:
        self._now_ns = now_ns
        self.reads = reads
        self._writes = writes

    def of(self, dates: FileDates) -> LastUse:
        """Return the last use of an entry by the dates of its files."""
        written_ns: int | None = dates.written_ns
        if not is_possible(dates.written_ns, self._now_ns):
            written_ns = dates.changed_ns
        elif dates.stamp_ns is not None and dates.written_ns in self._writes:
            written_ns = None
        read_ns = dates.read_ns
        if read_ns is not None and (read_ns <= dates.written_ns or read_ns in self.reads):
            read_ns = None
        return last_use(
            [("atime-file", dates.stamp_ns), ("fs-atime", read_ns), ("mtime", written_ns)],
            self._now_ns,
        )

    def with_record(
        self, use: LastUse, *, hit_ns: "int | None", compiled_ns: "int | None" = None
    ) -> LastUse:
        """Return the last use by the ledger and by what the files gave.

        Args:
            hit_ns: the last hit.
            compiled_ns: the last compile, which dates the entry of a copied directory.
        """
        if use.source == "mtime" and use.at_ns in self._writes and compiled_ns is not None:
            use = LastUse(compiled_ns, "mtime")
        return last_use([("ledger", hit_ns), (use.source, use.at_ns)], self._now_ns)


def mean_seconds(measured: "Iterable[float]") -> "dict[int, float]":
    """Return the mean of measured compile times by the whole seconds that a header has for them."""
    times: defaultdict[int, list[float]] = defaultdict(list)
    for seconds in measured:
        times[int(seconds)].append(seconds)
    return {header: sum(some) / len(some) for header, some in times.items()}


def saved_seconds(
    measured: "float | None", header: "float | None", means: "dict[int, float]"
) -> float:
    """Return the seconds that a hit of an entry saves: the time of its compile.

    Args:
        measured: as the ledger has it.
        header: whole seconds, rounded down; None where they are unknown.
        means: of :func:`mean_seconds`, over the entries of the same cache.
    """
    if measured is not None:
        return measured
    whole = int(header or 0)
    return means.get(whole, whole + _ROUNDED_AWAY_SECONDS)
