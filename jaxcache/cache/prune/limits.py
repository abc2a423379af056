"""Choose what is removed to meet a bound on the size or on the number of entries."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from jaxcache.cache.prune.removable import RemovableItem
from jaxcache.cache.prune.removal import (
    Removal,
    RemovalKind,
    RemovalReason,
    count_entries,
    freed_bytes,
)
from jaxcache.core.eviction import Candidate, choose_for_room, eviction_order
from jaxcache.options import PruneOptions


class PlanBuilder:
    """The removals of a plan while it is made; a file that several need goes with the last."""

    def __init__(self, items: Iterable[RemovableItem]) -> None:
        self.removals: list[Removal] = []
        self._needed = Counter(part.file.name for item in items for part in item.parts)

    def copy(self) -> "PlanBuilder":
        """Return a builder whose choices leave this one as it is."""
        trial = PlanBuilder(())
        trial.removals = list(self.removals)
        trial._needed = self._needed.copy()
        return trial

    def take(self, item: RemovableItem, reason: RemovalReason) -> list[Removal]:
        """Let an item go; return what goes with it."""
        item.reason = reason
        self._needed.subtract(part.file.name for part in item.parts)
        free = [part for part in item.parts if not self._needed[part.file.name]]
        gone = [removal._replace(reason=reason) for removal in (item.removal, *free)]
        self.removals += gone
        return gone

    def candidate(self, item: RemovableItem) -> Candidate:
        """The item as a policy weighs it: with the files that nothing else needs."""
        own = [p.size_bytes for p in item.parts if self._needed[p.file.name] == 1]
        size_bytes = item.candidate.size_bytes + sum(own)
        return item.candidate._replace(size_bytes=size_bytes) if own else item.candidate


def choose_for_limits(
    items: Sequence[RemovableItem],
    builder: PlanBuilder,
    size_bytes: int,
    entries: int,
    options: PruneOptions,
    now_ns: int,
    young: Sequence[tuple[RemovableItem, RemovalReason]] = (),
) -> list[tuple[RemovableItem, RemovalReason]]:
    """Choose what is removed to meet the bounds, in order, as if no item were too young.

    A young item of the choice stays for the next time. If others went in its place, a bound that
    young entries block would cost all older ones, however valuable.

    Args:
        young: what other rules would remove if it were older.
    """
    trial = builder.copy()
    for item, reason in young:
        trial.take(item, reason)
    chosen: list[tuple[RemovableItem, RemovalReason]] = []

    def take(item: RemovableItem, reason: RemovalReason) -> list[Removal]:
        chosen.append((item, reason))
        return trial.take(item, reason)

    if options.max_entries is not None:
        excess = entries - count_entries(trial.removals) - options.max_entries
        pool = _pool(items, ("entry",))
        order: list[Candidate] = []
        if excess > 0:
            candidates = map(trial.candidate, pool.values())
            order = eviction_order(candidates, options.policy, now_ns, per_byte=False)
        for candidate in order:
            if excess <= 0:
                break
            excess -= count_entries(take(pool[candidate.name], "max-entries"))
    if options.max_size_bytes is not None:
        excess = size_bytes - freed_bytes(trial.removals) - options.max_size_bytes
        discarded = _pool(items, ("quarantine",))
        for _, together in groupby(sorted(discarded), without_suffix):
            if excess > 0:  # its directory's name begins with the time: the oldest first
                taken = [take(discarded[name], "max-size") for name in together]
                excess -= sum(map(freed_bytes, taken))
        while excess > 0:  # again where items share files, of which the first frees nothing
            pool = _pool(items, ("entry", "side-cache"))
            candidates = map(trial.candidate, pool.values())
            order = choose_for_room(candidates, excess, options.policy, now_ns)
            if not order:
                break
            for candidate in order:
                if excess > 0:  # else what several had needed became free
                    excess -= freed_bytes(take(pool[candidate.name], "max-size"))
    for item, _ in (*chosen, *young):
        item.reason = None
    return chosen


def unmet_limits(
    builder: PlanBuilder, size_bytes: int, entries: int, options: PruneOptions
) -> Iterator[RemovalReason]:
    """Yield the bounds that the removals do not meet."""
    kept_entries = entries - count_entries(builder.removals)
    kept_bytes = size_bytes - freed_bytes(builder.removals)
    if options.max_entries is not None and kept_entries > options.max_entries:
        yield "max-entries"
    if options.max_size_bytes is not None and kept_bytes > options.max_size_bytes:
        yield "max-size"


def without_suffix(name: str) -> str:
    """The name that an entry and its ``-atime`` share."""
    return name.removesuffix("-atime").removesuffix("-cache")


def _pool(items: Iterable[RemovableItem], kinds: Sequence[RemovalKind]) -> dict[str, RemovableItem]:
    """The items that a bound may still choose, by name."""
    free = (i for i in items if not i.reason and i.held_by in (None, "young"))
    return {i.candidate.name: i for i in free if i.removal.kind in kinds}
