"""Plan what a cache can do without: pure, from a scan to a list of removals with reasons.

Rules combine freely: what any of them names goes, what is pinned, kept or too young to be judged
stays. Sizes count everything in the directory, also what JAX's own cap never counts: ``-atime``
files, XLA's side caches, entries without a suffix, leftovers, quarantine.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jaxcache.cache.prune.policy import Candidate, choose_for_room, eviction_order
from jaxcache.cache.prune.removable import (
    Item,
    Lookup,
    removable_entries,
    removable_others,
    total_bytes,
)
from jaxcache.cache.prune.removal import Hold, Reason, Removal, Subject, freed_bytes
from jaxcache.cache.scan import Scan
from jaxcache.errors import JaxcacheError
from jaxcache.model import Entry
from jaxcache.options import PolicyName, PruneOptions
from jaxcache.units import NS_PER_SECOND, format_size


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The removals that are planned, and their cost; nothing has happened yet."""

    cache_dir: str
    policy: PolicyName | None
    """None where a person, not a policy, chose."""
    removals: tuple[Removal, ...]
    """In the order in which they go."""
    kept: int
    """Entries that stay."""
    size_bytes_before: int
    size_bytes_after: int
    protected: int = 0
    """Entries that a rule or bound would have taken and a pin, ``--keep`` or their youth saved."""
    unmet: tuple[Reason, ...] = ()
    """Bounds that what may go does not suffice for."""
    options: PruneOptions | None = field(default=None, compare=False)
    """None where a person chose."""
    held: Mapping[Hold, int] = field(default_factory=dict)
    """The protected entries by what protects them."""
    undated: int = 0
    """Entries that ``used_since`` takes though nothing ever recorded a use of them."""


def plan_prune(
    seen: Scan,
    options: PruneOptions,
    *,
    cache_dir: str,
    now_ns: int,
    keep: Collection[str] = (),
    lookup: Lookup | None = None,
) -> PrunePlan:
    """Decide what goes.

    Args:
        seen: a deep scan; with heads if the policy is ``cost`` and a bound needs an order.
        now_ns: the time to judge ages by.
        keep: keys that must stay.
        lookup: the ledger: exact seconds, uses, pins.

    Raises:
        UsageError: ``no-bound``.
        JaxcacheError: ``bound-out-of-reach`` where files that are no entries, and may not go,
            alone exceed the bound: then it would empty the cache and still not hold.
    """
    options.check()
    items = list(
        removable_entries(
            seen,
            now_ns=now_ns,
            grace_seconds=options.grace_seconds,
            keep=frozenset(keep),
            lookup=lookup,
        )
    )
    entry_count = len(items)
    items += removable_others(
        seen, _other_subjects(options), now_ns=now_ns, grace_seconds=options.grace_seconds
    )
    before = total_bytes(seen)
    _check_reachable(before - sum(i.removal.size_bytes for i in items), options.max_size_bytes)
    _mark_by_rules(items, options, now_ns)
    _mark_superseded(items, options)
    saved = [i for i in items if i.reason and i.protected]
    for item in saved:
        item.reason = None
    unmet = _mark_by_bounds(items, before, options, now_ns)
    removals = tuple(
        i.removal._replace(reason=i.reason)
        for i in sorted((i for i in items if i.reason), key=_order)
        if i.reason
    )
    held = [i for i in items if i.removal.subject == "entry"] if unmet else saved
    holds = Counter(i.held_by for i in held if i.held_by)
    return PrunePlan(
        cache_dir=cache_dir,
        policy=options.policy,
        removals=removals,
        kept=entry_count - sum(r.subject == "entry" for r in removals),
        size_bytes_before=before,
        size_bytes_after=before - freed_bytes(removals),
        protected=holds.total(),
        unmet=unmet,
        options=options,
        held=holds,
        undated=sum(i.reason == "used-since" and not i.dated for i in items),
    )


def _check_reachable(fixed_bytes: int, bound_bytes: int | None) -> None:
    if bound_bytes and fixed_bytes > bound_bytes:
        raise JaxcacheError(
            f"files that are no entries take {format_size(fixed_bytes)}, more than --max-size",
            code="bound-out-of-reach",
            hint="let them go too, with --side-caches, --quarantine or --orphans; "
            "jaxcache stats shows what they are",
        )


def plan_removal(
    seen: Scan,
    chosen: Sequence[Entry],
    *,
    cache_dir: str,
    now_ns: int,
    lookup: Lookup | None = None,
) -> PrunePlan:
    """Plan to remove exactly these entries of a scan.

    Raises:
        JaxcacheError: ``pinned`` where one of them is.
    """
    wanted = {e.file for e in chosen}
    items = [
        i
        for i in removable_entries(seen, now_ns=now_ns, grace_seconds=0, lookup=lookup)
        if i.removal.file.name in wanted
    ]
    for item in items:
        known = lookup(item.removal.key) if lookup and item.removal.key else None
        if known and known.pinned:
            raise JaxcacheError(
                f"{item.removal.key} is pinned",
                code="pinned",
                hint=f"jaxcache pin --remove {item.removal.key}",
            )
    removals = tuple(i.removal for i in items)
    before = total_bytes(seen)
    return PrunePlan(
        cache_dir=cache_dir,
        policy=None,
        removals=removals,
        kept=len(seen.entries) - len(removals),
        size_bytes_before=before,
        size_bytes_after=before - freed_bytes(removals),
    )


def _order(item: Item) -> tuple[bool, int, str]:
    """Entries last: what is worth nothing goes first, should the work be interrupted."""
    removal = item.removal
    return removal.subject == "entry", removal.last_used_ns, removal.file.name


def _other_subjects(options: PruneOptions) -> frozenset[Subject]:
    """The kinds of files beside the entries that may go."""
    chosen: list[Subject] = []
    chosen += ["orphan-atime", "temp-file"] if options.orphans else []
    chosen += ["side-cache"] if options.side_caches else []
    chosen += ["quarantine"] if options.quarantine else []
    return frozenset(chosen)


def _mark_by_rules(items: Iterable[Item], options: PruneOptions, now_ns: int) -> None:
    """Name what a rule takes whatever the bounds say."""
    unused_before = _before(now_ns, options.unused_for_seconds)
    made_before = _before(now_ns, options.older_than_seconds)
    used_since = options.used_since_ns if options.used_since_ns is not None else _NEVER
    for item in items:
        subject, used_ns = item.removal.subject, item.removal.last_used_ns
        if subject == "orphan-atime" or subject == "temp-file":
            item.reason = subject
        elif subject == "quarantine" and not options.by_age:
            item.reason = "quarantine"
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


def _mark_superseded(items: Iterable[Item], options: PruneOptions) -> None:
    """Of each module, name all entries but the last used."""
    if options.keep_last is None:
        return
    modules: defaultdict[str, list[Item]] = defaultdict(list)
    for item in items:
        if item.removal.module and not item.reason:
            modules[item.removal.module].append(item)
    for versions in modules.values():
        versions.sort(
            key=lambda i: (i.removal.last_used_ns, i.created_ns, i.candidate.name), reverse=True
        )
        for item in versions[options.keep_last :]:
            item.reason = "keep-last"


def _mark_by_bounds(
    items: Sequence[Item], size_bytes: int, options: PruneOptions, now_ns: int
) -> tuple[Reason, ...]:
    """Name what must go to meet the bounds; return the bounds that cannot be met."""
    unmet: list[Reason] = []
    if options.max_entries is not None:
        entries = [i for i in items if i.removal.subject == "entry" and not i.reason]
        excess = len(entries) - options.max_entries
        pool = {i.candidate.name: i for i in entries if not i.protected}
        if excess > 0:
            order = eviction_order(_candidates(pool), options.policy, now_ns, per_byte=False)
            for candidate in order[:excess]:
                pool[candidate.name].reason = "max-entries"
        if excess > len(pool):
            unmet.append("max-entries")
    if options.max_size_bytes is not None:
        excess = size_bytes - options.max_size_bytes
        excess -= sum(i.removal.size_bytes for i in items if i.reason)
        bounded = ("entry", "side-cache")
        pool = {
            i.candidate.name: i
            for i in items
            if i.removal.subject in bounded and not i.reason and not i.protected
        }
        for candidate in choose_for_room(_candidates(pool), excess, options.policy, now_ns):
            pool[candidate.name].reason = "max-size"
            excess -= candidate.size_bytes
        if excess > 0:
            unmet.append("max-size")
    return tuple(unmet)


def _candidates(pool: dict[str, Item]) -> Iterator[Candidate]:
    return (i.candidate for i in pool.values())
