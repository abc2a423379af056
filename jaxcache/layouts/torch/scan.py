"""Graphs as entries: names and sizes of all, and what is inside of those that are wanted."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from jaxcache.cache.parallel import in_processes
from jaxcache.cache.scan import Progress
from jaxcache.layouts.torch.examine import Facts, examine_file, facts_of
from jaxcache.layouts.torch.index import GraphIndex
from jaxcache.layouts.torch.inventory import GraphFile, Inventory, take_inventory
from jaxcache.model import GraphEntry, LastUsedFrom, Platform, Problem
from jaxcache.store.base import MissingError, Store

#: Fewer graphs than this are read before other processes have started.
_PARALLEL_ABOVE = 300
_PROGRESS_EVERY = 64
_PLATFORMS: dict[str, Platform] = {
    "cpu": "cpu",
    "cuda": "gpu",
    "xpu": "gpu",
    "mps": "gpu",
    "hip": "gpu",
    "xla": "tpu",
}


@dataclass(frozen=True, slots=True)
class Scan:
    """A cache as it was seen."""

    entries: tuple[GraphEntry, ...]
    inventory: Inventory
    facts: dict[str, Facts]
    """By file, of the graphs that were read."""
    problems: tuple[Problem, ...]


def scan(
    store: Store,
    *,
    wanted: Callable[[GraphFile], bool] | None = None,
    index: GraphIndex | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Scan:
    """Scan a cache directory, reading all graphs or those for which ``wanted`` is true.

    Raises:
        NoCacheError: the directory cannot be listed.
    """
    inventory = take_inventory(store)
    files = [g for g in inventory.graphs if wanted is None or wanted(g)]
    facts = read_facts(store, files, index=index, workers=workers, progress=progress)
    return make_scan(inventory, facts, keeps_atime=store.keeps_atime)


def look(store: Store, *, index: GraphIndex | None = None) -> Scan:
    """Scan a cache directory by names and by what the index knows; no file is opened."""
    inventory = take_inventory(store)
    known = {g.info.name: index.recall(g.info) for g in inventory.graphs} if index else {}
    facts = {name: found for name, found in known.items() if found is not None}
    return make_scan(inventory, facts, keeps_atime=store.keeps_atime)


def read_facts(
    store: Store,
    files: Sequence[GraphFile],
    *,
    index: GraphIndex | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> dict[str, Facts]:
    """Read graphs, sparing what the index knows; facts by file."""
    facts: dict[str, Facts] = {}
    unread: list[GraphFile] = []
    for file in files:
        known = index.recall(file.info) if index else None
        if known is None:
            unread.append(file)
        else:
            facts[file.info.name] = known
    for done, (file, found) in enumerate(zip(unread, _read(store, unread, workers), strict=True)):
        facts[file.info.name] = found
        if index:
            index.learn(file.info, found)
        if progress and done % _PROGRESS_EVERY == 0:
            progress(done, len(unread))
    return facts


def _read(store: Store, files: Sequence[GraphFile], workers: int) -> Iterator[Facts]:
    location = getattr(store, "path", None)
    done = 0
    if workers > 1 and location is not None and len(files) >= _PARALLEL_ABOVE:
        for found in in_processes(_Reader(str(location)), files, workers):
            yield found
            done += 1
    yield from _read_here(store, files[done:])


class _Reader:
    """Reads chunks in another process; picklable, because it is only a path."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, files: Sequence[GraphFile]) -> list[Facts]:
        from jaxcache.store.local import LocalStore

        return list(_read_here(LocalStore(self.path), files))


def _read_here(store: Store, files: Sequence[GraphFile]) -> Iterator[Facts]:
    for file in files:
        try:
            yield facts_of(examine_file(store, file))
        except MissingError:
            yield Facts(gone=True)


def make_scan(inventory: Inventory, facts: dict[str, Facts], *, keeps_atime: bool) -> Scan:
    """Put names and facts together as entries."""
    graphs = [g for g in inventory.graphs if not facts.get(g.info.name, _UNREAD).gone]
    inner: dict[str, Facts] = {}
    for graph in graphs:
        if graph.tier == "fxgraph" and graph.info.name in facts:
            inner.setdefault(graph.key, facts[graph.info.name])
    entries = [_entry(g, facts.get(g.info.name, _UNREAD), inner, keeps_atime) for g in graphs]
    problems = [
        Problem(g.info.name, kind, detail, g.name)
        for g in graphs
        for kind, detail in facts.get(g.info.name, _UNREAD).problems
    ]
    return Scan(tuple(entries), inventory, facts, (*problems, *inventory.problems()))


def _entry(file: GraphFile, facts: Facts, inner: dict[str, Facts], keeps_atime: bool) -> GraphEntry:
    info = file.info
    used_from: LastUsedFrom = "mtime"
    if keeps_atime and info.atime_ns > info.mtime_ns:
        used_from = "fs-atime"
    below = [inner[key] for key in facts.references if key in inner]
    version = facts.torch_version or next((f.torch_version for f in below), None)
    return GraphEntry(
        key=file.name,
        module=file.tier,
        hash=file.key,
        file=info.name,
        size_bytes=info.size_bytes,
        payload_bytes=None,
        codec="unknown",
        sealed=False,
        compile_seconds=_own_seconds(facts, below),
        created_ns=info.mtime_ns,
        last_used_ns=info.atime_ns if used_from == "fs-atime" else info.mtime_ns,
        last_used_from=used_from,
        platform=_platform(facts.devices),
        target=f"torch {version}" if version else None,
        problems=tuple(kind for kind, _ in facts.problems),
        signature=facts.signature,
        source=facts.source,
        function=facts.function,
        devices=facts.devices,
        guards=facts.guards,
        torch_version=version,
        references=facts.references or ((facts.source_key,) if facts.source_key else ()),
    )


_UNREAD = Facts()


def _own_seconds(facts: Facts, below: Sequence[Facts]) -> float | None:
    """The seconds of a graph without those of the graphs below it: then sums count none twice."""
    if facts.seconds is None:
        return None
    return max(0.0, facts.seconds - sum(f.seconds or 0.0 for f in below))


def _platform(devices: Iterable[str]) -> Platform:
    found = [_PLATFORMS.get(device, "unknown") for device in devices]
    return next((p for p in found if p in ("gpu", "tpu")), found[0] if found else "unknown")


def with_files(entry: GraphEntry, files: Iterable[str]) -> GraphEntry:
    """The entry with the names of the files that exist for it alone or with others."""
    return replace(entry, dependants=tuple(files))
