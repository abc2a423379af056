"""``prune`` and ``rm`` in a cache of torch's compilers: pure planning, then removal in order.

What goes first under a bound: files that torch never comes to because another under their key
serves, code that no graph needs, and then whole units (:mod:`jaxcache.layouts.torch.units`) by the
policy. Removed is in the order in which torch looks things up, AOT graph, FX graph, generated
``.py``, kernel: whatever interrupts it, torch never finds something whose parts are gone. Compiler
probes stay: they are small, and cost 9 s to make anew.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxcache.cache.prune.plan import PrunePlan
from jaxcache.cache.prune.policy import choose_for_room, eviction_order
from jaxcache.cache.prune.removal import (
    Execution,
    Reason,
    Removal,
    Spared,
    Subject,
    freed_bytes,
)
from jaxcache.cache.scan import Progress
from jaxcache.cache.verify.quarantine import QUARANTINE_DIR
from jaxcache.errors import UsageError
from jaxcache.layouts.torch.links import Links
from jaxcache.layouts.torch.locks import holding
from jaxcache.layouts.torch.names import TorchKind, parse_path
from jaxcache.layouts.torch.scan import Scan
from jaxcache.layouts.torch.units import Unit, Units, find_duplicates, make_units, unreferenced
from jaxcache.model import FileInfo, GraphEntry
from jaxcache.options import PruneOptions
from jaxcache.store.base import MissingError, Store, StoreError
from jaxcache.units import NS_PER_SECOND

#: Torch's way from a graph to its code.
_ORDER = {
    kind: rank
    for rank, kind in enumerate(
        (
            TorchKind.AOT,
            TorchKind.FX,
            TorchKind.SOURCE,
            TorchKind.KERNEL,
            TorchKind.KERNEL_SOURCE,
        )
    )
}
_SIDE = frozenset({TorchKind.TRITON, TorchKind.AUTOTUNE, TorchKind.PROFILE, TorchKind.SYSTEM})
_NEVER = -(2**63)


@dataclass(slots=True)
class _Choice:
    """Files that go, with why."""

    reasons: dict[str, tuple[FileInfo, Reason]] = field(default_factory=dict)

    def take(self, files: Iterable[FileInfo], reason: Reason) -> None:
        for info in files:
            self.reasons.setdefault(info.name, (info, reason))

    @property
    def size_bytes(self) -> int:
        return sum(info.size_bytes for info, _ in self.reasons.values())


def plan_graph_prune(
    seen: Scan,
    links: Links,
    options: PruneOptions,
    *,
    cache_dir: str,
    now_ns: int,
    keep: Collection[str] = (),
) -> PrunePlan:
    """Decide what goes.

    Args:
        seen, links: with every graph read.
        keep: keys that must stay, with all that they need.

    Raises:
        UsageError: ``no-bound``; or an option that has no meaning here.
    """
    options.check()
    if options.legacy:
        raise UsageError("--legacy is for JAX's caches")
    choice = _Choice()
    bounded = options.max_size_bytes is not None or options.max_entries is not None
    tidy = bounded or options.orphans
    old_ns = now_ns - int(options.grace_seconds * NS_PER_SECOND)
    duplicates: set[str] = set()
    if tidy:
        kept = {e.file for e in seen.entries if e.key in keep}
        found = find_duplicates(seen) - kept
        infos = (g.info for g in seen.inventory.graphs if g.info.name in found)
        gone = [info for info in infos if info.mtime_ns <= old_ns]
        choice.take(gone, "duplicate")
        duplicates = {info.name for info in gone}
    units = make_units(
        seen,
        links,
        duplicates=duplicates,
        now_ns=now_ns,
        grace_seconds=options.grace_seconds,
        keep=keep,
    )
    if tidy and not _has_unread(seen):
        code = (i for i in unreferenced(seen, units) if i.mtime_ns <= old_ns)
        choice.take(code, "unreferenced")
    choice.take(*_others(seen, options, "temp-file", old_ns))
    choice.take(*_others(seen, options, "quarantine", old_ns))
    saved = _apply_rules(units, choice, options, now_ns)
    unmet = _meet_bounds(seen, units, choice, options, now_ns)
    return _plan(seen, choice, options, cache_dir, saved, unmet)


def _has_unread(seen: Scan) -> bool:
    """Whether a graph could not be opened: what it needs is not known then, and is no orphan."""
    return any(k == "unreadable" for facts in seen.facts.values() for k, _ in facts.problems)


def _others(
    seen: Scan, options: PruneOptions, subject: Reason, old_ns: int
) -> tuple[list[FileInfo], Reason]:
    found: list[FileInfo] = []
    for info, kind in seen.inventory.others:
        if info.mtime_ns > old_ns or info.type != "file":
            continue
        if subject == "temp-file" and options.orphans and kind is TorchKind.TEMP:
            found.append(info)
        inside = info.name.startswith(f"{QUARANTINE_DIR}/")
        if subject == "quarantine" and options.quarantine and inside:
            found.append(info)
    return found, subject


def _apply_rules(units: Units, choice: _Choice, options: PruneOptions, now_ns: int) -> int:
    """Take what a rule names whatever the bounds say; return how many were protected from it."""
    _mark_by_rules(units.units, options, now_ns)
    saved = 0
    for unit in units.units:
        if unit.reason and unit.protected:
            unit.reason = None
            saved += 1
        elif unit.reason:
            choice.take(units.release(unit), unit.reason)
    return saved


def _mark_by_rules(units: Sequence[Unit], options: PruneOptions, now_ns: int) -> None:
    unused_before = _before(now_ns, options.unused_for_seconds)
    made_before = _before(now_ns, options.older_than_seconds)
    used_since = options.used_since_ns if options.used_since_ns is not None else _NEVER
    versions: defaultdict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        if unit.used_ns < used_since:
            unit.reason = "used-since"
        elif unit.used_ns <= unused_before:
            unit.reason = "unused-for"
        elif unit.created_ns <= made_before:
            unit.reason = "older-than"
        elif unit.function:
            versions[unit.function].append(unit)
    if options.keep_last is not None:
        for found in versions.values():
            found.sort(key=lambda u: (u.used_ns, u.created_ns, u.name), reverse=True)
            for unit in found[options.keep_last :]:
                unit.reason = "keep-last"


def _before(now_ns: int, age_seconds: float | None) -> int:
    return _NEVER if age_seconds is None else now_ns - int(age_seconds * NS_PER_SECOND)


def _meet_bounds(
    seen: Scan, units: Units, choice: _Choice, options: PruneOptions, now_ns: int
) -> tuple[Reason, ...]:
    """Take what must go to meet the bounds; return the bounds that cannot be met."""
    unmet: list[Reason] = []
    if options.max_entries is not None:
        left = len(seen.entries) - _graphs(info for info, _ in choice.reasons.values())
        free = _free(units)
        order = eviction_order(
            (units.candidate(u, now_ns) for u in free.values()),
            options.policy,
            now_ns,
            per_byte=False,
        )
        for candidate in order:
            if left <= options.max_entries:
                break
            left -= _graphs(_take(units, free[candidate.name], choice, "max-entries"))
        if left > options.max_entries:
            unmet.append("max-entries")
    if options.max_size_bytes is not None:
        excess = seen.inventory.total_bytes() - choice.size_bytes - options.max_size_bytes
        while excess > 0:  # again where units share files, of which the first frees nothing
            free = _free(units)
            candidates = (units.candidate(u, now_ns) for u in free.values())
            chosen = choose_for_room(candidates, excess, options.policy, now_ns)
            if not chosen:
                unmet.append("max-size")
                break
            for candidate in chosen:
                if excess <= 0:  # what several had needed became free
                    break
                freed = _take(units, free[candidate.name], choice, "max-size")
                excess -= sum(info.size_bytes for info in freed)
    return tuple(unmet)


def _free(units: Units) -> dict[str, Unit]:
    return {u.name: u for u in units.units if not u.reason and not u.protected}


def _take(units: Units, unit: Unit, choice: _Choice, reason: Reason) -> list[FileInfo]:
    unit.reason = reason
    freed = units.release(unit)
    choice.take(freed, reason)
    return freed


def _graphs(files: Iterable[FileInfo]) -> int:
    kinds = (parse_path(info.name).kind for info in files)
    return sum(kind in (TorchKind.AOT, TorchKind.FX) for kind in kinds)


def plan_graph_removal(
    seen: Scan, links: Links, chosen: Sequence[GraphEntry], *, cache_dir: str, now_ns: int
) -> PrunePlan:
    """Plan to remove these graphs, what exists only for them, and what is useless without them."""
    wanted = {e.file for e in chosen}
    keys = {e.hash for e in chosen}
    units = make_units(seen, links, now_ns=now_ns, grace_seconds=0)
    choice = _Choice()
    for unit in units.units:
        needs = {parse_path(name).key for name in unit.files}
        if unit.name in wanted or (keys & needs and _lost(unit, wanted, seen)):
            _take(units, unit, choice, "requested")
    choice.take((g.info for g in seen.inventory.graphs if g.info.name in wanted), "requested")
    return _plan(seen, choice, None, cache_dir, 0, ())


def _lost(unit: Unit, wanted: Collection[str], seen: Scan) -> bool:
    """Whether a unit refers to a key all of whose files go."""
    facts = seen.facts.get(unit.name)
    for key in facts.references if facts else ():
        files = {n for n in unit.files if parse_path(n).key == key}
        if files and files <= set(wanted):
            return True
    return False


def _plan(
    seen: Scan,
    choice: _Choice,
    options: PruneOptions | None,
    cache_dir: str,
    protected: int,
    unmet: tuple[Reason, ...],
) -> PrunePlan:
    entries = {e.file: e for e in seen.entries}
    removals = tuple(sorted(_removals(choice, entries), key=_order))
    before = seen.inventory.total_bytes()
    return PrunePlan(
        cache_dir=cache_dir,
        policy=options.policy if options else None,
        removals=removals,
        kept=len(entries) - sum(r.subject == "entry" for r in removals),
        size_bytes_before=before,
        size_bytes_after=before - freed_bytes(removals),
        protected=protected,
        unmet=unmet,
    )


def _removals(choice: _Choice, entries: dict[str, GraphEntry]) -> Iterator[Removal]:
    for info, reason in choice.reasons.values():
        entry = entries.get(info.name)
        used_ns = entry.last_used_ns if entry else max(info.mtime_ns, info.atime_ns)
        subject: Subject = "generated-code"
        if entry:
            subject = "entry"
        elif reason in ("temp-file", "quarantine"):
            subject = reason
        seconds = entry.compile_seconds if entry else None
        if reason == "duplicate":  # another file under its key serves instead
            seconds = 0.0
        yield Removal(
            subject,
            info,
            None,
            entry.key if entry else None,
            entry.module if entry else "",
            reason,
            used_ns,
            seconds,
        )


def _order(removal: Removal) -> tuple[int, int, str]:
    kind = parse_path(removal.file.name).kind
    return _ORDER.get(kind, -1), removal.last_used_ns, removal.file.name


def remove(
    store: Store, removals: Sequence[Removal], *, progress: Progress | None = None
) -> Execution:
    """Remove files in the order of the plan, each looked at again before.

    Kernels go under torch's lock, which is not waited for. Folders stay, even empty ones: torch
    makes one and writes into it in two steps.
    """
    removed: list[Removal] = []
    spared: list[Spared] = []
    for done, removal in enumerate(removals, 1):
        reprieve = _remove_one(store, removal)
        if reprieve:
            spared.append(reprieve)
        else:
            removed.append(removal)
        if progress:
            progress(done, len(removals))
    return Execution(tuple(removed), tuple(spared), 0.0)


def _remove_one(store: Store, removal: Removal) -> Spared | None:
    name = removal.file.name
    try:
        with holding(store, name) as held:
            if not held:
                return Spared(removal, "used", "torch is compiling it")
            if store.delete(name, expected=removal.file):
                return None
        try:
            store.info(name)
        except MissingError:
            return Spared(removal, "gone", "another process removed it")
        return Spared(removal, "changed", "changed since the plan was made")
    except StoreError as error:
        return Spared(removal, "failed", error.reason)
