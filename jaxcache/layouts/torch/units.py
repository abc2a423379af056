"""Units that are removed as one: a graph that torch looks up, with all that exists only for it.

A unit is an AOT graph with its FX graphs and their code, or an FX graph that no AOT graph refers
to. To meet a limit, two kinds of files are removed before any unit: those that torch never reads
because another under their key serves, and code that no graph needs. Torch may still use such code:
what it compiles without its caches leaves no graph. Compiler probes stay: they are small, and cost
9 s to compile again.

Torch's own locks are ``locks/<key>.lock``, held with ``flock`` while a kernel is compiled. Source:
``torch/utils/_filelock.py`` (the ``filelock`` package, ``flock`` on Unix) and
``torch/_inductor/codecache.py``: ``CppCodeCache`` of 2.13. Graphs and generated ``.py`` are
written by rename without a lock, and need none to be removed.
"""

import contextlib
import errno
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from jaxcache.cache.files import RECORD_KINDS, UNCOUNTED_KINDS, counted_bytes
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import pinned_keys
from jaxcache.cache.prune.removable import (
    Hold,
    RemovableItem,
    RemovableSet,
    Removal,
    RemovalKind,
    other_item,
    protect_young,
)
from jaxcache.core.atomic import open_lock
from jaxcache.core.eviction import Candidate, estimate_hits
from jaxcache.core.system import try_flock
from jaxcache.errors import UsageError
from jaxcache.layouts.torch.graph import GraphFacts
from jaxcache.layouts.torch.inventory import Dependencies, dependencies_of, resolve_dependencies
from jaxcache.layouts.torch.names import GraphFile, TorchKind, lock_path, parse_path
from jaxcache.layouts.torch.scan import GraphEntry, TorchScan
from jaxcache.model import FileInfo
from jaxcache.options import PruneOptions
from jaxcache.store.base import Store, StoreError
from jaxcache.store.local import LocalStore
from jaxcache.units import NS_PER_SECOND

_LOCKED = frozenset({TorchKind.KERNEL_SOURCE, TorchKind.KERNEL, TorchKind.PROBE})


@contextlib.contextmanager
def hold_lock(store: Store, name: str) -> Iterator[bool]:
    """Hold the lock of a file, without waiting; False if another process has it.

    The lock's file stays where it is: another process may be waiting on it. No lock is taken
    in a bucket, where no process can hold one, and on a full disk, where none can be made.

    Raises:
        StoreError: the lock's file cannot be opened.
    """
    path = parse_path(name)
    if not isinstance(store, LocalStore) or path.kind not in _LOCKED or path.key is None:
        yield True
        return
    directory, _, lock = lock_path(path.key).rpartition("/")
    try:
        with store.directory(directory, make=True) as opened:
            fd, _ = open_lock(opened, lock)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            yield True
            return
        raise StoreError(name, (error.strerror or str(error)).lower(), code="io-error") from error
    try:
        yield try_flock(fd)
    finally:
        os.close(fd)


#: Torch's way from a graph to its code. Whatever interrupts a removal or a repair in this order,
#: torch never finds something whose parts are gone.
_ORDER = (
    TorchKind.PRECOMPILED,
    TorchKind.AOT,
    TorchKind.FX,
    TorchKind.SOURCE,
    TorchKind.KERNEL,
    TorchKind.KERNEL_SOURCE,
)
_UNREAD = GraphFacts()


file_lock = hold_lock


def removal_rank(name: str) -> int:
    """The place of a file in the order of removal."""
    kind = parse_path(name).kind
    return _ORDER.index(kind) if kind in _ORDER else -1


def find_removable(
    store: Store,
    scan_result: TorchScan,
    options: PruneOptions | None,
    *,
    now_ns: int,
    keep: Collection[str] = (),
) -> RemovableSet:
    """Tell what a plan could remove.

    Args:
        scan_result: with every graph read.
        options: None where a person chooses among the graphs.
        keep: keys that must stay, with all that they need.

    Raises:
        UsageError: an option that has no meaning here.
    """
    if options and options.legacy:
        raise UsageError("--legacy is for JAX's caches")
    needs = resolve_dependencies(store, scan_result.inventory)
    grace_ns = int(options.grace_seconds * NS_PER_SECOND) if options else 0
    size_bytes = counted_bytes(scan_result.inventory.files())
    tidy = bool(
        options and (options.orphans or _is_over(options, size_bytes, len(scan_result.entries)))
    )
    entries = {e.file: e for e in scan_result.entries}
    others: list[RemovableItem] = []
    duplicates: set[str] = set()
    ledger = Ledger.load(store)
    ledger.check_pins()
    pinned = frozenset(pinned_keys(ledger))
    if tidy:
        kept = {e.file for e in scan_result.entries if e.key in keep or e.key in pinned}
        duplicate_names = _duplicates(scan_result) - kept
        for graph in scan_result.inventory.graphs:
            if graph.info.name in duplicate_names and _is_old(graph.info, now_ns, grace_ns):
                duplicates.add(graph.info.name)
                # Another file under its key serves instead, so that its seconds are not lost.
                removal = _removal(graph.info, entries)._replace(compile_seconds=0.0)
                others.append(other_item(removal, reason="duplicate"))
    protected: dict[str, Hold] = {**dict.fromkeys(keep, "kept"), **dict.fromkeys(pinned, "pinned")}
    units = list(_units(scan_result, needs, entries, duplicates, now_ns, grace_ns, protected))
    # The needs of a file that cannot be read are unknown, so that nothing is an orphan.
    unread = {
        name: detail
        for name, facts in scan_result.facts.items()
        for kind, detail in facts.problems
        if kind == "unreadable"
    } | dict(needs.unread)
    if tidy and not unread:
        needed = {part.file.name for unit in units for part in unit.parts}
        code = scan_result.inventory.code
        for kind, info in scan_result.inventory.files():
            if kind in code and info.name not in needed and _is_old(info, now_ns, grace_ns):
                others.append(other_item(_removal(info, entries), reason="unreferenced"))
    for info, kind in scan_result.inventory.others:
        if options and info.type == "file" and _is_old(info, now_ns, grace_ns):
            if tidy and kind is TorchKind.TEMP:
                removal = _removal(info, entries, "temp-file")
                others.append(other_item(removal, reason="temp-file"))
            if options.takes_quarantine and kind is TorchKind.QUARANTINE:
                others.append(other_item(_removal(info, entries, "quarantine")))
    return RemovableSet(
        [*others, *units],
        len(scan_result.entries),
        size_bytes,
        rank=removal_rank,
        uncounted=_uncounted(scan_result),
        unread=unread,
    )


def _uncounted(scan_result: TorchScan) -> dict[str, int]:
    """Sum up what no limit counts, by the names in the cache that hold nothing else."""
    sizes: Counter[str] = Counter()
    counted = set()
    for kind, info in scan_result.inventory.files():
        name = info.name.partition("/")[0]
        if kind not in UNCOUNTED_KINDS:
            counted.add(name)
        elif kind not in RECORD_KINDS and info.type == "file":
            sizes[name] += info.size_bytes
    return {name: size for name, size in sizes.items() if name not in counted}


def _is_over(options: PruneOptions, size_bytes: int, entries: int) -> bool:
    """Whether a cache exceeds a limit of ``prune``."""
    over_size = options.max_size_bytes is not None and size_bytes > options.max_size_bytes
    return over_size or (options.max_entries is not None and entries > options.max_entries)


def _is_old(info: FileInfo, now_ns: int, grace_ns: int) -> bool:
    return info.mtime_ns <= now_ns - grace_ns


def _removal(
    info: FileInfo, entries: dict[str, GraphEntry], kind: RemovalKind = "generated-code"
) -> Removal:
    entry = entries.get(info.name)
    if entry is None:
        used_ns = max(info.mtime_ns, info.atime_ns)
        return Removal(kind, info, None, None, "", "requested", used_ns, None)
    seconds = entry.compile_seconds
    used_ns = entry.last_used_ns
    return Removal("entry", info, None, entry.key, entry.module, "requested", used_ns, seconds)


def _units(
    scan_result: TorchScan,
    needs: Dependencies,
    entries: dict[str, GraphEntry],
    duplicates: Collection[str],
    now_ns: int,
    grace_ns: int,
    protected: Mapping[str, Hold],
) -> Iterator[RemovableItem]:
    """Put the graphs of a scan together as units, leaving out duplicates."""
    graphs = [g for g in scan_result.inventory.graphs if g.info.name not in duplicates]
    referred = {
        key
        for g in graphs
        if g.tier == "aotautograd"
        for key in scan_result.facts.get(g.info.name, _UNREAD).references
    }
    for graph in graphs:
        if graph.info.name not in entries:
            continue
        if graph.tier == "aotautograd" or graph.key not in referred:
            below = dependencies_of(graph, scan_result.facts, needs, scan_result.inventory)
            files = {i.name: i for i in below if i.name not in duplicates}
            infos = (graph.info, *files.values())
            parts = [entries[info.name] for info in infos if info.name in entries]
            used_ns = min(max(part.last_used_ns for part in parts), now_ns)
            created_ns = max(info.mtime_ns for info in infos)
            entry = entries[graph.info.name]
            worthless = any(problem != "foreign-globals" for problem in entry.problems)
            holds = [
                *(protected.get(part.key) for part in parts),
                *(protect_young(info.mtime_ns, now_ns, grace_ns) for info in infos),
            ]
            yield RemovableItem(
                removal=_removal(graph.info, entries),
                group=next((part.function for part in parts if part.function), "") or "",
                created_ns=created_ns,
                candidate=Candidate(
                    entry.file,
                    max(1, entry.size_bytes),
                    used_ns,
                    0.0 if worthless else math.fsum(p.compile_seconds or 0.0 for p in parts),
                    estimate_hits(0, created_ns, used_ns),
                ),
                used_from="fs-atime",
                held_by=next(filter(None, holds), None),
                parts=tuple(_removal(info, entries) for info in files.values()),
                alternatives=tuple(_alternatives(graph, files, scan_result)),
            )


def _alternatives(
    graph: GraphFile, files: Iterable[str], scan_result: TorchScan
) -> Iterator[frozenset[str]]:
    """For each key that a graph refers to, yield its files, of which it needs one."""
    for key in scan_result.facts.get(graph.info.name, _UNREAD).references:
        if names := frozenset(name for name in files if parse_path(name).key == key):
            yield names


def _duplicates(scan_result: TorchScan) -> set[str]:
    """Return files that torch never reads: another under the same key serves whenever they would.

    Torch tries the files of a key in the order of their names and takes the first whose guards
    hold (``GuardedCache.iterate_over_candidates``, ``torch/_inductor/codecache.py`` of 2.13).
    """
    first: set[tuple[str, str | None]] = set()
    duplicates: set[str] = set()
    for graph in sorted(scan_result.inventory.graphs, key=lambda g: (g.key, g.info.name)):
        facts = scan_result.facts.get(graph.info.name, _UNREAD)
        if graph.info.name not in scan_result.facts or facts.problems or facts.gone:
            continue
        served = (graph.key, facts.guards)
        if served in first or (graph.key, None) in first:
            duplicates.add(graph.info.name)
        first.add(served)
    return duplicates
