"""Plan one prune over several caches, with one limit for all of them, and carry it out.

The plan has the names of files with the directory of their cache before them.
"""

import contextlib
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxcache.cache.prune.execute import remove
from jaxcache.cache.prune.plan import PrunePlan, plan_items
from jaxcache.cache.prune.plan_cache import Prunable, find_prunable
from jaxcache.cache.prune.removable import RemovableItem, RemovableSet
from jaxcache.cache.prune.removal import Execution, Removal, SkippedRemoval
from jaxcache.core.names import LOCKFILE, OWN_DIR
from jaxcache.errors import JaxcacheError
from jaxcache.options import PruneOptions
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.layouts.base import Layout


class Member(NamedTuple):
    """One cache of several."""

    store: Store
    layout: "Layout"


def plan_prune_of_several(
    root: str,
    members: Mapping[str, Member],
    options: PruneOptions,
    *,
    index_directory: Path | None,
    now_ns: int,
    workers: int,
) -> PrunePlan:
    """Plan one prune over several caches.

    Args:
        members: by the cache's directory relative to the root.

    Raises:
        UsageError: ``no-bound``.
        JaxcacheError: as for one cache; a KEY of ``--keep`` must fit in one of them.
    """
    options.check()
    scan_options: dict[str, Any] = {
        "index_directory": index_directory,
        "now_ns": now_ns,
        "workers": workers,
    }
    scan_options |= {"progress": None, "with_seconds": True}
    prunable: dict[str, Prunable] = {}
    misfits: list[JaxcacheError] = []
    for name, member in members.items():
        try:
            prunable[name] = find_prunable(*member, options, **scan_options)
        except JaxcacheError as error:
            if error.code != "no-match":
                raise
            misfits.append(error)
            prunable[name] = find_prunable(*member, options.replace(keep=()), **scan_options)
    if misfits and len(misfits) == len(members):
        raise misfits[0]
    sets = [one.removable for one in prunable.values()]
    together = RemovableSet(
        [_put_below(name, item) for name, one in prunable.items() for item in one.removable.items],
        sum(one.size_bytes for one in sets),
        sum(one.fixed_bytes for one in sets),
    )
    plan = plan_items(
        together,
        sum(one.entries for one in prunable.values()),
        options,
        cache_dir=root,
        now_ns=now_ns,
        rank=_rank_below(members),
    )
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
    file = removal.file
    atime = removal.atime
    return removal._replace(
        file=file._replace(name=f"{name}/{file.name}"),
        atime=atime and atime._replace(name=f"{name}/{atime.name}"),
    )


def _take_out(name: str, removal: Removal) -> Removal:
    """Return a removal as its cache knows it."""
    file = removal.file
    atime = removal.atime
    return removal._replace(
        file=file._replace(name=file.name.removeprefix(f"{name}/")),
        atime=atime and atime._replace(name=atime.name.removeprefix(f"{name}/")),
    )


def _rank_below(members: Mapping[str, Member]) -> Callable[[str], int]:
    def rank(path: str) -> int:
        name = _cache_of(path, members)
        rank_in_cache = members[name].layout.removals.removal_rank
        return rank_in_cache(path.removeprefix(f"{name}/")) if rank_in_cache else 0

    return rank


def _cache_of(path: str, members: Mapping[str, Member]) -> str:
    """Return the cache that a file of a plan belongs to; no cache lies below another."""
    directory = os.path.dirname(path)
    while directory not in members:
        directory = os.path.dirname(directory)
    return directory


def remove_from_several(members: Mapping[str, Member], removals: Sequence[Removal]) -> Execution:
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
        inside = [_take_out(name, removal) for removal in chosen]
        done = remove(member.store, inside, file_lock=member.layout.removals.file_lock)
        outside = {r.file.name: removal for r, removal in zip(inside, chosen, strict=True)}
        removed += [outside[r.file.name] for r in done.removed]
        spared += [replace(s, removal=outside[s.removal.file.name]) for s in done.spared]
        longest_seconds = max(longest_seconds, done.longest_hold_seconds)
    return Execution(tuple(removed), tuple(spared), longest_seconds)


def remove_emptied(members: Mapping[str, Member], removed: Sequence[Removal]) -> tuple[str, ...]:
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
