"""Look at a cache, or at several with one limit for all, as far as a plan to remove needs it.

The plan for several has the names of files with the directory of their cache before them.
"""

import contextlib
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from jaxcache.cache.entry_headers import HeaderRequest, read_facts
from jaxcache.cache.inventory import count_bytes
from jaxcache.cache.prune.execute import remove
from jaxcache.cache.prune.plan import PrunePlan, plan_items, plan_removal, weighs_seconds
from jaxcache.cache.prune.removable import RemovableItem, RemovableSet
from jaxcache.cache.prune.removal import Execution, Removal, SkippedRemoval
from jaxcache.cache.selection import REMOVAL_PREFIX, Selection, select_by_keys
from jaxcache.core.names import LOCKFILE, OWN_DIR
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.model import ScanResult
from jaxcache.options import PruneOptions

if TYPE_CHECKING:
    from jaxcache.layouts import ReadCache

#: The most entries to open only to report the cost of their removal.
_PRICED_AT_ONCE = 1_000


def plan_cache_prune(cache: "ReadCache", options: PruneOptions) -> PrunePlan:
    """Scan a cache and plan its pruning, opening as few entries as the policy allows.

    Raises:
        UsageError: ``no-bound``.
        NoCacheError
        UsageError: ``short-prefix``.
        JaxcacheError: ``no-match`` or ``ambiguous-key`` for ``options.keep``; ``no-record-of-use``
            where ``used_since`` would take entries of a cache that records no use at all.
    """
    options.check()
    prunable = find_prunable(cache, options)
    url = cache.store.url
    plan = plan_items(prunable.removable, options, cache_dir=url, now_ns=cache.now_ns)
    plan = replace(plan, uncounted_bytes=prunable.uncounted_bytes)
    return plan if prunable.has_seconds else _price(cache, plan)


class Prunable(NamedTuple):
    """What a prune can choose from in one cache."""

    removable: RemovableSet
    uncounted_bytes: int
    """The size of the ledger, which no limit counts."""
    has_seconds: bool
    """Whether the compile seconds of all entries were read."""


def find_prunable(
    cache: "ReadCache", options: PruneOptions, *, with_seconds: bool = False
) -> Prunable:
    """Scan a cache as far as the options of a prune need it.

    Args:
        with_seconds: read the compile seconds of all entries in any case.

    Raises:
        JaxcacheError: as :func:`plan_cache_prune`.
    """
    selection = Selection.parse((), options.filters)
    needed = selection.scan_options(has_headers=cache.layout.has_headers)
    headers = with_seconds or weighs_seconds(options) or needed["headers"]
    scan_result = _scan(cache, headers=headers, details=needed["details"])
    # Each must fit an entry, so that a typing error deletes nothing.
    kept = (
        {e.key for e in select_by_keys(scan_result.entries, options.keep)}
        if options.keep
        else set()
    )
    if options.filters:
        kept |= {e.key for e in scan_result.entries} - {
            e.key for e in selection.pick(scan_result.entries, cache.now_ns)
        }
    removable = cache.layout.removals.find_removable(
        cache.store, scan_result, options, now_ns=cache.now_ns, keep=kept
    )
    uncounted_bytes = count_bytes(scan_result.inventory.files())[1]
    return Prunable(removable, uncounted_bytes, has_seconds=headers)


def plan_cache_removal(
    cache: "ReadCache", keys: Sequence[str] = (), filters: Sequence[str] = ()
) -> PrunePlan:
    """Plan to remove exactly the entries that KEY arguments and filters choose.

    Raises:
        NoCacheError
        UsageError: ``short-prefix``.
        JaxcacheError: ``no-match``, ``ambiguous-key``, or ``pinned``.
    """
    if not (keys or filters):
        raise UsageError("nothing is selected to be removed", hint="give a KEY, or --filter")
    selection = Selection.parse(keys, filters)
    scan_result = _scan(cache, **selection.scan_options(has_headers=cache.layout.has_headers))
    chosen = selection.pick(scan_result.entries, cache.now_ns, shortest_prefix=REMOVAL_PREFIX)
    removable = cache.layout.removals.find_removable(
        cache.store, scan_result, None, now_ns=cache.now_ns, keep=()
    )
    return _price(cache, plan_removal(removable, chosen, cache_dir=cache.store.url))


def _scan(cache: "ReadCache", *, headers: bool, details: bool) -> "ScanResult":
    details |= not cache.layout.has_headers  # only the contents show which files belong together
    indexed = headers or details or cache.store.remote
    return cache.scan(headers=headers, details=details, indexed=indexed)


def _price(cache: "ReadCache", plan: PrunePlan) -> PrunePlan:
    """Fill in the compile seconds of removals that a scan without headers left unknown.

    Not where that takes a request for each, or longer than to remove them.
    """
    unknown = [r for r in plan.removals if r.key is not None and r.compile_seconds is None]
    has_headers = cache.layout.has_headers
    if cache.store.remote or not has_headers or len(unknown) > _PRICED_AT_ONCE:
        return plan
    requests = [HeaderRequest(r.file.name, r.file.size_bytes, None, True) for r in unknown]
    headers = (facts.header for facts in read_facts(cache.store, requests, workers=cache.workers))
    seconds = {
        r.name: float(header.compile_seconds)
        for r, header in zip(requests, headers, strict=True)
        if header and header.compile_seconds is not None
    }
    removals = (
        r._replace(compile_seconds=seconds.get(r.file.name, r.compile_seconds))
        for r in plan.removals
    )
    return replace(plan, removals=tuple(removals))


def plan_prune_of_several(
    root: str, members: "Mapping[str, ReadCache]", options: PruneOptions, *, now_ns: int
) -> PrunePlan:
    """Plan one prune over several caches.

    Args:
        members: by the cache's directory relative to the root.

    Raises:
        UsageError: ``no-bound``.
        JaxcacheError: as for one cache; a KEY of ``--keep`` must fit in one of them.
    """
    options.check()
    prunable: dict[str, Prunable] = {}
    misfits: list[JaxcacheError] = []
    for name, member in members.items():
        try:
            prunable[name] = find_prunable(member, options, with_seconds=True)
        except JaxcacheError as error:
            if error.code != "no-match":
                raise
            misfits.append(error)
            anything = options.replace(keep=())
            prunable[name] = find_prunable(member, anything, with_seconds=True)
    if misfits and len(misfits) == len(members):
        raise misfits[0]
    sets = [one.removable for one in prunable.values()]
    together = RemovableSet(
        [_put_below(name, item) for name, one in prunable.items() for item in one.removable.items],
        sum(one.entries for one in sets),
        sum(one.size_bytes for one in sets),
        sum(one.fixed_bytes for one in sets),
        rank=_rank_below(members),
    )
    plan = plan_items(together, options, cache_dir=root, now_ns=now_ns)
    return replace(plan, uncounted_bytes=sum(one.uncounted_bytes for one in prunable.values()))


def _put_below(name: str, item: RemovableItem) -> RemovableItem:
    """Put the directory of its cache before every name of an item."""
    return replace(
        item,
        removal=_put_removal_below(name, item.removal),
        group=item.group and f"{name}/{item.group}",
        candidate=item.candidate._replace(name=f"{name}/{item.candidate.name}"),
        parts=tuple(_put_removal_below(name, part) for part in item.parts),
        alternatives=tuple(
            frozenset(f"{name}/{file}" for file in files) for files in item.alternatives
        ),
    )


def _put_removal_below(name: str, removal: Removal) -> Removal:
    return _rename(removal, lambda file: f"{name}/{file}")


def _rename(removal: Removal, rename: Callable[[str], str]) -> Removal:
    file = removal.file
    atime = removal.atime
    return removal._replace(
        file=file._replace(name=rename(file.name)),
        atime=atime and atime._replace(name=rename(atime.name)),
    )


def _rank_below(members: "Mapping[str, ReadCache]") -> Callable[[str], int]:
    def rank(path: str) -> int:
        name = _cache_of(path, members)
        rank_in_cache = members[name].layout.removals.removal_rank
        return rank_in_cache(path.removeprefix(f"{name}/")) if rank_in_cache else 0

    return rank


def _cache_of(path: str, members: "Mapping[str, ReadCache]") -> str:
    """Return the cache that a file of a plan belongs to; no cache is inside another."""
    directory = os.path.dirname(path)
    while directory not in members:
        directory = os.path.dirname(directory)
    return directory


def remove_from_several(
    members: "Mapping[str, ReadCache]", removals: Sequence[Removal]
) -> Execution:
    """Carry out the removals of a plan, one cache after another.

    Raises:
        LockedError: as for one cache.
    """
    by_cache: defaultdict[str, list[Removal]] = defaultdict(list)
    for removal in removals:
        by_cache[_cache_of(removal.file.name, members)].append(removal)
    removed: list[Removal] = []
    spared: list[SkippedRemoval] = []
    longest_seconds = 0.0
    for name, chosen in by_cache.items():
        member = members[name]
        inside = [_rename(r, lambda path, n=name: path.removeprefix(f"{n}/")) for r in chosen]  # type: ignore[misc]
        done = remove(member.store, inside, file_lock=member.layout.removals.file_lock)
        outside = {r.file.name: removal for r, removal in zip(inside, chosen, strict=True)}
        removed += [outside[r.file.name] for r in done.removed]
        spared += [replace(s, removal=outside[s.removal.file.name]) for s in done.spared]
        longest_seconds = max(longest_seconds, done.longest_hold_seconds)
    return Execution(tuple(removed), tuple(spared), longest_seconds)


def remove_emptied(
    members: "Mapping[str, ReadCache]", removed: Sequence[Removal]
) -> tuple[str, ...]:
    """Remove the directories of caches whose last entry was removed; return their names.

    A directory with a file that is not jaxcache's or JAX's own stays, and so does a quarantine.
    """
    gone = []
    for name in dict.fromkeys(_cache_of(r.file.name, members) for r in removed):
        store, path = members[name].store, members[name].store.url
        if any(info.type == "file" and info.name != LOCKFILE for info in store.list()):
            continue
        if os.path.isdir(os.path.join(path, OWN_DIR, "quarantine")):
            continue
        shutil.rmtree(os.path.join(path, OWN_DIR), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(path, LOCKFILE))
        with contextlib.suppress(OSError):
            os.rmdir(path)
            gone.append(name)
    return tuple(gone)
