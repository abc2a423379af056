"""Plan what a cache can do without: pure, from a scan to a list of removals with reasons.

Rules combine freely: what any of them names goes, what is pinned, kept or too young to be judged
stays. Sizes count everything in the directory, also what JAX's own cap never counts: ``-atime``
files, XLA's side caches, entries without a suffix, leftovers, quarantine.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from jaxcache.cache.prune.removable import FindRecord, Removable, RemovableItem, removable
from jaxcache.cache.prune.removal import (
    Hold,
    Removal,
    RemovalKind,
    RemovalReason,
    count_entries,
    describe,
    freed_bytes,
    plan_notes,
)
from jaxcache.cache.scan import Scan
from jaxcache.errors import JaxcacheError
from jaxcache.eviction import POLICIES, Candidate, choose_for_room, eviction_order
from jaxcache.model import Entry, plan_text, result_repr
from jaxcache.options import PruneOptions
from jaxcache.units import NS_PER_SECOND, format_count, format_duration, format_size


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The removals that are planned, and their cost; nothing has happened yet."""

    __repr__ = result_repr

    cache_dir: str
    policy: str | None
    """None where a person, not a policy, chose."""
    removals: tuple[Removal, ...]
    """In the order in which they go."""
    kept: int
    """Entries that stay."""
    size_bytes_before: int
    size_bytes_after: int
    protected: int = 0
    """Entries that a rule or bound would have taken and a pin, ``--keep`` or their youth saved."""
    unmet: tuple[RemovalReason, ...] = ()
    """Bounds that cannot be met."""
    options: PruneOptions | None = field(default=None, compare=False)
    """None where a person chose."""
    held: Mapping[Hold, int] = field(default_factory=dict)
    """The protected entries by what protects them."""
    fixed_bytes: int = 0
    """Bytes of files that are no entries, that stay, and that ``--max-size`` counts."""

    oldest_use_seconds: float = 0.0
    """Age of the last use of the entry that was unused for longest."""
    oldest_seconds: float = 0.0
    """Age of the oldest entry."""
    used_again: int = 0
    """Entries that ``unused_for`` leaves only because they were used after they were written."""
    uncounted_bytes: int = 0
    """The size of the ledger, which bounds itself."""

    def summary(self, removed: Sequence[Removal], verb: str) -> str:
        """Return one line: how much goes, what it frees, what it costs, what stays."""
        if not removed:
            size = f"{format_size(self.size_bytes_before)}{self._uncounted()}"
            line = f"nothing to remove: {format_count(self.kept, 'entry')}, cache size {size}"
            return "; ".join([line, *([] if self.removals or not self.kept else self._ages())])
        kept = self.kept + count_entries(self.removals) - count_entries(removed)
        size = format_size(self.size_bytes_before - freed_bytes(removed))
        return (
            f"{describe(removed, verb)}; leaves {format_count(kept, 'entry')}, cache size {size}"
            f"{self._uncounted()}"
        )

    def _uncounted(self) -> str:
        """Name what a bound on the size leaves out, where there is such a bound."""
        if not (self.uncounted_bytes and self.options and self.options.max_size_bytes):
            return ""
        return f" (ledger and records of {format_size(self.uncounted_bytes)} not counted)"

    def _ages(self) -> Iterator[str]:
        """Say by which ages no rule took anything."""
        if self.options and self.options.unused_for_seconds is not None:
            yield (
                f"the oldest use was {format_duration(self.oldest_use_seconds)} ago "
                "(the later of recorded use and file dates counts; jaxcache ls shows it)"
            )
        if self.options and self.options.older_than_seconds is not None:
            yield f"the oldest entry was written {format_duration(self.oldest_seconds)} ago"

    def __str__(self) -> str:
        total = self.summary(self.removals, "would remove")
        return "\n".join([plan_text(total, self.removals), *plan_notes(self)])


def plan_prune(
    seen: Scan,
    options: PruneOptions,
    *,
    cache_dir: str,
    now_ns: int,
    keep: Collection[str] = (),
    lookup: FindRecord | None = None,
) -> PrunePlan:
    """Decide what goes from a cache of JAX that was scanned; see :func:`plan_items`."""
    found = removable(None, seen, options, now_ns=now_ns, keep=keep, lookup=lookup)
    return plan_items(found, len(seen.entries), options, cache_dir=cache_dir, now_ns=now_ns)


def weighs_seconds(options: PruneOptions) -> bool:
    """Whether the order in which entries go depends on their compile seconds."""
    bounded = options.max_size_bytes is not None or options.max_entries is not None
    return POLICIES[options.policy].weighs_seconds and bounded


def plan_items(
    found: Removable,
    entries: int,
    options: PruneOptions,
    *,
    cache_dir: str,
    now_ns: int,
    rank: Callable[[str], int] | None = None,
) -> PrunePlan:
    """Decide what goes.

    Args:
        found: what could.
        entries: how many there are.
        now_ns: the time to judge ages by.
        rank: of a file: what has a lower one goes before.

    Raises:
        UsageError: ``no-bound``.
        JaxcacheError: ``bound-out-of-reach`` where files that are no entries, and may not go,
            alone exceed the bound: then it would empty the cache and still not hold;
            ``no-record-of-use`` where ``used_since`` would take entries of a cache that records no
            use at all.
    """
    options.check()
    items, before = found.items, found.size_bytes
    _check_reachable(found.fixed_bytes, options.max_size_bytes)
    _mark_by_rules(items, options, now_ns)
    _mark_superseded(items, options)
    saved = [i for i in items if i.reason and i.protected]
    for item in saved:
        item.reason = None
    going = Going(items)
    for item in items:
        if item.reason:
            going.take(item, item.reason)
    unmet = _meet_bounds(items, going, before, entries, options, now_ns)
    owners = [i for i in items if i.removal.kind == "entry"]
    undated = any(i.reason == "used-since" and not i.dated for i in items)
    if undated and not any(i.dated for i in owners):
        raise JaxcacheError(
            f"nothing in {cache_dir} records which entries were used",
            code="no-record-of-use",
            hint="run the program with jaxcache run, which records uses, or limit the size instead",
        )
    unused_before = _before(now_ns, options.unused_for_seconds)
    again = sum(not i.reason and not i.protected and i.created_ns <= unused_before for i in owners)
    held = owners if unmet else saved
    holds = Counter(i.held_by for i in held if i.held_by)
    return replace(
        going.plan(cache_dir, before, entries, rank),
        policy=options.policy,
        protected=holds.total(),
        unmet=unmet,
        options=options,
        held=holds,
        fixed_bytes=found.fixed_bytes,
        oldest_use_seconds=max((now_ns - i.candidate.last_used_ns for i in owners), default=0)
        / 1e9,
        oldest_seconds=max((now_ns - i.created_ns for i in owners), default=0) / 1e9,
        used_again=again,
    )


class Going:
    """The removals of a plan while it is made; a file that several need goes with the last."""

    def __init__(self, items: Iterable[RemovableItem]) -> None:
        self.removals: list[Removal] = []
        self._needed = Counter(part.file.name for item in items for part in item.parts)

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

    def plan(
        self, cache_dir: str, before: int, entries: int, rank: Callable[[str], int] | None
    ) -> PrunePlan:
        """The plan; entries last: what is worth nothing goes first, should it be interrupted."""

        def order(removal: Removal) -> tuple[int, bool, int, str]:
            name = removal.file.name
            first = rank(name) if rank else 0
            return first, removal.kind == "entry", removal.last_used_ns, name

        removals = tuple(sorted(self.removals, key=order))
        return PrunePlan(
            cache_dir=cache_dir,
            policy=None,
            removals=removals,
            kept=entries - count_entries(removals),
            size_bytes_before=before,
            size_bytes_after=before - freed_bytes(removals),
        )


def _check_reachable(fixed_bytes: int, bound_bytes: int | None) -> None:
    if bound_bytes and fixed_bytes > bound_bytes:
        raise JaxcacheError(
            f"files other than entries take {format_size(fixed_bytes)}, more than --max-size",
            code="bound-out-of-reach",
            hint="remove them too, with --side-caches or --orphans; "
            "jaxcache stats shows what they are",
        )


def plan_removal(
    found: Removable,
    entries: Sequence[Entry],
    chosen: Sequence[Entry],
    *,
    cache_dir: str,
    rank: Callable[[str], int] | None = None,
) -> PrunePlan:
    """Plan to remove exactly these entries, what only they need, and what is useless without them.

    Raises:
        JaxcacheError: ``pinned`` where one of them is.
    """
    wanted = {e.file for e in chosen}
    going = Going(found.items)
    for item in found.items:
        name = item.removal.file.name
        if name in wanted and item.held_by == "pinned":
            raise JaxcacheError(
                f"{item.removal.key} is pinned",
                code="pinned",
                hint=f"jaxcache pin --remove {item.removal.key}",
            )
        if name in wanted or any(files <= wanted for files in item.alternatives):
            going.take(item, "requested")
    gone = {r.file.name for r in going.removals}
    parts = {p.file.name: p for item in found.items for p in item.parts}
    going.removals += [parts[name] for name in wanted - gone if name in parts]
    return going.plan(cache_dir, found.size_bytes, len(entries), rank)


def _mark_by_rules(items: Iterable[RemovableItem], options: PruneOptions, now_ns: int) -> None:
    """Name what a rule takes whatever the bounds say."""
    unused_before = _before(now_ns, options.unused_for_seconds)
    made_before = _before(now_ns, options.older_than_seconds)
    used_since = options.used_since_ns if options.used_since_ns is not None else _NEVER
    for item in items:
        kind, used_ns = item.removal.kind, item.candidate.last_used_ns
        if item.reason:
            continue
        if kind == "orphan-atime" or kind == "temp-file":
            item.reason = kind
        elif kind == "quarantine" and not (options.quarantine and options.by_age):
            item.reason = "quarantine" if options.quarantine else None
        elif options.legacy and item.legacy:
            item.reason = "legacy"
        elif options.untuned and item.untuned:
            item.reason = "untuned"
        elif used_ns < used_since:
            item.reason = "used-since"
        elif used_ns <= unused_before:
            item.reason = "unused-for"
        elif item.created_ns <= made_before:
            item.reason = "older-than"


_NEVER = -(2**63)


def _before(now_ns: int, age_seconds: float | None) -> int:
    return _NEVER if age_seconds is None else now_ns - int(age_seconds * NS_PER_SECOND)


def _mark_superseded(items: Iterable[RemovableItem], options: PruneOptions) -> None:
    """Name all entries of each group but the last used."""
    if options.keep_last is None:
        return
    groups: defaultdict[str, list[RemovableItem]] = defaultdict(list)
    for item in items:
        if item.group and not item.reason:
            groups[item.group].append(item)
    for versions in groups.values():
        versions.sort(
            key=lambda i: (i.candidate.last_used_ns, i.created_ns, i.candidate.name), reverse=True
        )
        for item in versions[options.keep_last :]:
            item.reason = "keep-last"


def _meet_bounds(
    items: Sequence[RemovableItem],
    going: Going,
    size_bytes: int,
    entries: int,
    options: PruneOptions,
    now_ns: int,
) -> tuple[RemovalReason, ...]:
    """Take what must go to meet the bounds; return the bounds that cannot be met."""
    unmet: list[RemovalReason] = []
    if options.max_entries is not None:
        excess = entries - count_entries(going.removals) - options.max_entries
        pool = _pool(items, ("entry",))
        order: list[Candidate] = []
        if excess > 0:
            candidates = map(going.candidate, pool.values())
            order = eviction_order(candidates, options.policy, now_ns, per_byte=False)
        for candidate in order:
            if excess <= 0:
                break
            excess -= count_entries(going.take(pool[candidate.name], "max-entries"))
        if excess > 0:
            unmet.append("max-entries")
    if options.max_size_bytes is not None:
        excess = size_bytes - freed_bytes(going.removals) - options.max_size_bytes
        discarded = _pool(items, ("quarantine",))
        for _, together in groupby(sorted(discarded), without_suffix):
            if excess > 0:  # its folder's name begins with the time: the oldest first
                taken = [going.take(discarded[name], "max-size") for name in together]
                excess -= sum(map(freed_bytes, taken))
        while excess > 0:  # again where items share files, of which the first frees nothing
            pool = _pool(items, ("entry", "side-cache"))
            candidates = map(going.candidate, pool.values())
            chosen = choose_for_room(candidates, excess, options.policy, now_ns)
            if not chosen:
                unmet.append("max-size")
                break
            for candidate in chosen:
                if excess > 0:  # else what several had needed became free
                    excess -= freed_bytes(going.take(pool[candidate.name], "max-size"))
    return tuple(unmet)


def without_suffix(name: str) -> str:
    """The name that an entry and its ``-atime`` share."""
    return name.removesuffix("-atime").removesuffix("-cache")


def _pool(items: Iterable[RemovableItem], kinds: Sequence[RemovalKind]) -> dict[str, RemovableItem]:
    """The items that a bound may still take, by name."""
    free = (i for i in items if not i.reason and not i.protected)
    return {i.candidate.name: i for i in free if i.removal.kind in kinds}
