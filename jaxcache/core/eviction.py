"""The order in which entries are removed to meet a bound, and the dates and seconds it goes by.

Four sources record a use: the ledger, JAX's ``-atime`` file, the file system's access time, and,
because a write is a use as well, the modification time. The latest date counts. Dates within a
minute of it belong to the same use, and of these the best source in the order above is named.

Some dates do not show a use:

* A date more than a day ahead of the clock was written by a wrong clock.
* A program that reads every file of a directory, such as a backup, leaves access times that are
  closer together than those of any JAX program (:func:`find_reads`).
* A program that writes every file of a directory, such as ``cp -r``, leaves modification times of
  this kind. They count only where no better source has a date.

Orders are ``lru`` and ``cost``.

``lru`` is JAX's own order (``jax/_src/lru_cache.py``): the least recently used first, equal ones
by key.

``cost`` keeps the compile seconds most likely to be saved again per byte. Its core is the value
of GreedyDual-Size-Frequency, ``frequency × cost / size`` (L. Cherkasova, "Improving WWW Proxies
Performance with Greedy-Dual-Size-Frequency Caching Policy", HPL-98-69R1, 1998; after P. Cao and
S. Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997). GreedyDual ages entries by a
clock that only a running cache can keep; a snapshot has none, so the value decays with the time
since the last use, as in hyperbolic caching (A. Blankstein, S. Sen, M. J. Freedman, "Hyperbolic
Caching", USENIX ATC 2017), but by its root::

    value = compile_seconds / size_bytes * sqrt((1 + hits) / (age + 10 minutes))

Entries that were unused for two weeks are removed first, then those unused for two days, of any
value: an entry that a team used yesterday, or uses every week, must not give way to one that was
once expensive. Among what was used within two days seconds count far more than age: an entry of two
hours ago weighs a quarter of what it weighed when it was used.

The root, because old popularity fades where code is edited, and because an entry that was not used
for some hours is mostly used again. Without a count of hits, an entry that was read after the run
that wrote it counts as 3 hits. ``docs/evidence/eviction.md`` shows how both policies fare on
traces.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from math import inf, sqrt
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple, TypeVar

_NS_PER_SECOND = 10**9
_T = TypeVar("_T")

#: Added to every age: uses closer together are one run of a program and no sign of the next.
_ONE_RUN_SECONDS = 600.0
#: The hits assumed for an entry that was read some time after it was written, if none were counted.
UNCOUNTED_HITS = 3
#: ``cost`` removes entries that are unused for longer than these before all others.
_IDLE_SECONDS = (2 * 86_400.0, 14 * 86_400.0)
#: ``cost`` passes over an entry only where others go at this fraction of its seconds, or less.
_NOTABLE = 4
#: A use so soon after the writing belongs to the run that wrote the entry.
SAME_RUN_SECONDS = 60.0


class Candidate(NamedTuple):
    """A file that a policy may choose to remove."""

    name: str
    """Unique; breaks ties, as in JAX."""
    size_bytes: int
    last_used_ns: int
    compile_seconds: float
    """Seconds that a hit saves (:func:`jaxcache.core.eviction.saved_seconds`)."""
    hits: int = 0
    """Uses after the run that wrote it, counted or estimated (:func:`estimate_hits`)."""


def estimate_hits(counted: int, created_ns: int, last_used_ns: int) -> int:
    """Estimate how often an entry was read: the count, or a guess from its dates."""
    reused = last_used_ns - created_ns > SAME_RUN_SECONDS * _NS_PER_SECOND
    return max(counted, UNCOUNTED_HITS if reused else 0)


def expected_seconds(candidate: Candidate, now_ns: int) -> float:
    """Estimate, up to a factor, the compile seconds that it saves in the time to come."""
    age_seconds = max(0, now_ns - candidate.last_used_ns) / _NS_PER_SECOND
    rate = (1 + candidate.hits) / (age_seconds + _ONE_RUN_SECONDS)
    return candidate.compile_seconds * sqrt(rate)


def recency(candidate: Candidate, now_ns: int) -> int:
    """Return the class of a candidate by its last use: those of a lower one are removed first."""
    age_seconds = (now_ns - candidate.last_used_ns) / _NS_PER_SECOND
    return sum(age_seconds < limit for limit in _IDLE_SECONDS)


def rank_by_value(
    candidate: Candidate, now_ns: int, *, per_byte: bool
) -> tuple[int, float, int, str]:
    """Return what the policy ``cost`` sorts by; the lowest is removed first."""
    value = expected_seconds(candidate, now_ns)
    scale = max(1, candidate.size_bytes) if per_byte else 1
    return recency(candidate, now_ns), value / scale, candidate.last_used_ns, candidate.name


def eviction_order(
    candidates: Iterable[Candidate], policy: str, now_ns: int, *, per_byte: bool = True
) -> list[Candidate]:
    """Sort candidates, the first to go first.

    Args:
        per_byte: whether bytes are what is scarce, or entries.
    """
    if policy == "lru":
        return sorted(candidates, key=lambda c: (c.last_used_ns, c.name))
    return sorted(candidates, key=lambda c: rank_by_value(c, now_ns, per_byte=per_byte))


def choose_for_room(
    candidates: Iterable[Candidate], excess_bytes: int, policy: str, now_ns: int
) -> list[Candidate]:
    """Choose what goes to free ``excess_bytes``, or everything where that does not suffice."""
    if excess_bytes <= 0:
        return []
    order = eviction_order(candidates, policy, now_ns)
    return choose_in_order(order, excess_bytes, policy, now_ns)


def choose_in_order(
    order: Sequence[Candidate], excess_bytes: int, policy: str, now_ns: int
) -> list[Candidate]:
    """The same over candidates that are in the policy's order already."""
    if policy == "lru":
        return _choose_first(order, excess_bytes)
    weighed = ((recency(c, now_ns), c.size_bytes, expected_seconds(c, now_ns), c) for c in order)
    return choose_cheapest(weighed, excess_bytes)


def _choose_first(order: Iterable[Candidate], excess_bytes: int) -> list[Candidate]:
    chosen: list[Candidate] = []
    for candidate in order:
        if excess_bytes <= 0:
            break
        chosen.append(candidate)
        excess_bytes -= candidate.size_bytes
    return chosen


class _Weighed(NamedTuple):
    """An entry of one class, as the choice sees it."""

    size_bytes: int
    lost: float
    """The seconds that its removal is expected to lose."""
    position: int
    """In the order of the policy."""


def choose_cheapest(order: "Iterable[tuple[Any, int, float, _T]]", excess_bytes: int) -> "list[_T]":
    """Choose what to remove: whole classes in order, and of the last one what loses least.

    In that class nothing more loses less: neither to keep one of the chosen after all, nor to
    remove another in its place.

    Args:
        order: class, size, expected seconds, and the candidate itself, the first to go first.
    """
    chosen: list[_T] = []
    for _, group in groupby(order, itemgetter(0)):
        if excess_bytes <= 0:
            break
        candidates: list[_T] = []
        weighed: list[_Weighed] = []
        for position, (_, size_bytes, lost, candidate) in enumerate(group):
            candidates.append(candidate)
            weighed.append(_Weighed(size_bytes, lost, position))
        freed_bytes = sum(item.size_bytes for item in weighed)
        if freed_bytes >= excess_bytes:
            first = _choose_greedily(weighed, excess_bytes)
            weighed = _exchange(first, weighed, excess_bytes)
        chosen += [candidates[item.position] for item in weighed]
        excess_bytes -= freed_bytes
    return chosen


def _choose_greedily(order: "list[_Weighed]", excess_bytes: int) -> "list[_Weighed]":
    """Choose in order, but pass over a large one where smaller ones lose far less.

    This is the greedy algorithm for the minimum knapsack problem: each one that would free the
    rest alone completes one choice, and the search goes on without it.
    """
    chosen: list[_Weighed] = []
    best: list[_Weighed] | None = None
    least_loss = inf  # of the cheapest completion, without what was chosen before the first
    loss = 0.0
    for item in order:
        if item.size_bytes < excess_bytes:
            chosen.append(item)
            excess_bytes -= item.size_bytes
            if best is not None:
                loss += item.lost
        elif loss + item.lost < least_loss / _NOTABLE:
            best = [*chosen, item]
            least_loss = loss + item.lost
        if loss >= least_loss / _NOTABLE:
            break
    return chosen if best is None else best


def _exchange(
    chosen: "list[_Weighed]", everything: "list[_Weighed]", excess_bytes: int
) -> "list[_Weighed]":
    """Keep what need not go, and exchange one for another where that loses less, to the end."""
    remaining = {item.position: item for item in chosen}
    spare_bytes = sum(item.size_bytes for item in chosen) - excess_bytes
    is_changed = True
    while is_changed:
        is_changed = False
        kept = [item for item in everything if item.position not in remaining]
        dearest_first = sorted(remaining.values(), key=lambda item: (-item.lost, -item.position))
        for item in dearest_first:
            if item.size_bytes <= spare_bytes:
                spare_bytes -= item.size_bytes
                del remaining[item.position]
                kept.append(item)
        if not kept or not remaining:
            break
        most = max(item.lost for item in remaining.values())
        kept = [item for item in kept if item.lost < most]
        kept.sort(key=lambda item: -item.size_bytes)
        sizes = [-item.size_bytes for item in kept]
        cheapest = list(accumulate(kept, lambda *pair: min(pair, key=attrgetter("lost"))))
        for item in dearest_first:
            large_enough = bisect_right(sizes, spare_bytes - item.size_bytes)
            other = cheapest[large_enough - 1] if large_enough else item
            if (
                item.position in remaining
                and other.lost < item.lost
                and other.position not in remaining
            ):
                del remaining[item.position]
                remaining[other.position] = other
                spare_bytes += other.size_bytes - item.size_bytes
                is_changed = True
    return sorted(remaining.values(), key=attrgetter("position"))


LastUsedFrom = Literal["ledger", "atime-file", "fs-atime", "arrival", "mtime"]
#: The best source first.
_SOURCES = ("ledger", "atime-file", "fs-atime", "arrival", "mtime")

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
        self,
        use: LastUse,
        *,
        hit_ns: "int | None",
        arrived_ns: "int | None" = None,
        compiled_ns: "int | None" = None,
    ) -> LastUse:
        """Return the last use by the ledger and by what the files gave.

        Args:
            hit_ns: the last hit.
            arrived_ns: the arrival from another place, which counts as a use.
            compiled_ns: the last compile, which dates the entry of a copied directory.
        """
        if use.source == "mtime" and use.at_ns in self._writes and compiled_ns is not None:
            use = LastUse(compiled_ns, "mtime")
        dates: list[tuple[LastUsedFrom, int | None]] = [("ledger", hit_ns), ("arrival", arrived_ns)]
        return last_use([*dates, (use.source, use.at_ns)], self._now_ns)


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
