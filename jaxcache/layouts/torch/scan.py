"""Graphs as entries: names and sizes of all, and what is inside of those that are wanted.

As one side of ``diff`` they are compared by the code that they name, not by their bytes: no two
compiles give equal bytes, because an entry contains how long it took. Two caches hold the same if
their entries name the same generated code.
"""

import json
import math
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from jaxcache.cache.bundle.format import Bundle, ContentReader
from jaxcache.cache.diff import DiffEntry, DiffSide
from jaxcache.cache.files import require_objects
from jaxcache.cache.index import FactIndex
from jaxcache.cache.scan import NO_AIDS, ScanAids
from jaxcache.cache.untrusted_json import build
from jaxcache.core.eviction import FileDates, LastUses
from jaxcache.entry.summary import Entry
from jaxcache.layouts.torch.graph import GraphFacts, read_graph, read_graph_file
from jaxcache.layouts.torch.inventory import TorchInventory, take_inventory
from jaxcache.layouts.torch.names import GraphFile, as_graph
from jaxcache.layouts.torch.pickled import MAX_BYTES
from jaxcache.model import Depth, FileInfo, Platform, Problem, report_progress
from jaxcache.store.base import MissingError, Store
from jaxcache.store.concurrency import spread

#: Fewer graphs than this are read before other processes have started.
PARALLEL_ABOVE = 300
#: The most graphs without an index row that a plain listing reads: about 2 s of work.
_READ_AT_ONCE = 500
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
class GraphEntry(Entry):
    """One graph in a cache of torch's compilers: an entry of AOTAutogradCache or FxGraphCache.

    Its module is the tier, ``aotautograd`` or ``fxgraph``; several files may share a key, each
    with guards of its own. ``compile_seconds`` are without those of the graphs that it refers to.
    """

    function: str | None = None
    """The function that it was traced from, if its stack traces show it."""
    devices: tuple[str, ...] = ()
    """As torch calls them: ``cpu``, ``cuda``, …"""
    guards: str | None = None
    """The condition on symbolic sizes under which it serves; None: always."""
    torch_version: str | None = None
    references: tuple[str, ...] = ()
    """Keys of what it needs: FX graphs of an AOT graph, the generated ``.py`` of an FX graph."""
    dependants: tuple[str, ...] = ()
    """Files that belong to it: generated ``.py``, kernels; filled on request."""


@dataclass(frozen=True, slots=True)
class TorchScan:
    """A cache as it was seen."""

    entries: tuple[GraphEntry, ...]
    inventory: TorchInventory
    facts: dict[str, GraphFacts]
    """The facts of the graphs that were read, by file."""
    problems: tuple[Problem, ...]


class GraphIndex(FactIndex):
    """The index of a cache of torch's compilers: of each graph, its facts as JSON."""

    #: Depends on the fields, so that facts of a version with others are read again.
    magic = b"jaxcache-torch-index 8 %08x\n" % zlib.crc32(repr(GraphFacts.__slots__).encode())
    facts = ("facts",)
    texts = frozenset(facts)

    def recall(self, info: FileInfo) -> GraphFacts | None:
        """Return the facts of a file; None if it has changed since."""
        row = self._row(info)
        if row is None:
            return None
        return build(GraphFacts, json.loads(self._texts[row[-1]]))

    def learn(self, info: FileInfo, facts: GraphFacts) -> None:
        """Remember what was read, if the file is settled and could be read."""
        unreadable = any(kind == "unreadable" for kind, _ in facts.problems)
        if not facts.gone and not unreadable and self._is_settled(info):
            self._put(info, [self._id(json.dumps(asdict(facts)))])


def scan(
    store: Store,
    aids: ScanAids = NO_AIDS,
    depth: Depth = Depth.DECODED,
    *,
    deep: bool = True,  # noqa: ARG001 - every directory is walked anyway
) -> TorchScan:
    """Scan a cache directory by names and by what the index knows.

    Args:
        depth: whether to read the graphs that the index does not know (``DECODED``), or as many of
            them as a plain look has time for (``AT_HAND``).

    Raises:
        NoCacheError: the directory cannot be listed.
    """
    inventory = take_inventory(store)
    if not aids.unfilled:
        require_objects(store, inventory.graphs)
    index: GraphIndex | None = aids.index
    recalled = {g.info.name: index.recall(g.info) for g in inventory.graphs} if index else {}
    facts = {name: graph_facts for name, graph_facts in recalled.items() if graph_facts is not None}
    scan_result = make_scan(inventory, facts)
    return decode(store, scan_result, scan_result.entries, aids, depth)


def decode(
    store: Store,
    scan_result: TorchScan,
    wanted: Iterable[Entry],
    aids: ScanAids = NO_AIDS,
    depth: Depth = Depth.DECODED,
) -> TorchScan:
    """Read some graphs of a scan, and those that they refer to, whose seconds are needed."""
    if depth < Depth.AT_HAND:  # nothing in a graph is cheaper to read than all of it
        return scan_result
    names = {e.file for e in wanted} - scan_result.facts.keys()
    if not names:
        return scan_result
    unread = [g for g in scan_result.inventory.graphs if g.info.name in names]
    facts = _read(store, unread[:_READ_AT_ONCE] if depth is Depth.AT_HAND else unread, aids)
    keys = {key for graph_facts in facts.values() for key in graph_facts.references}
    facts = scan_result.facts | facts
    below = [g for g in scan_result.inventory.graphs if g.key in keys and g.info.name not in facts]
    facts |= _read(store, below, aids)
    return make_scan(scan_result.inventory, facts)


def _read(store: Store, files: Sequence[GraphFile], aids: ScanAids) -> dict[str, GraphFacts]:
    facts: dict[str, GraphFacts] = {}
    read = spread(_read_facts, store, files, workers=aids.workers, above=PARALLEL_ABOVE)
    for done, (file, read_facts) in enumerate(zip(files, read, strict=True)):
        facts[file.info.name] = read_facts
        if aids.index is not None:
            aids.index.learn(file.info, read_facts)
        if done % _PROGRESS_EVERY == 0:
            report_progress(done, len(files))
    return facts


def _read_facts(store: Store, files: Sequence[GraphFile]) -> Iterator[GraphFacts]:
    for file in files:
        try:
            yield read_graph_file(store, file).facts()
        except MissingError:
            yield GraphFacts(gone=True)


def make_scan(inventory: TorchInventory, facts: dict[str, GraphFacts]) -> TorchScan:
    """Put names and facts together as entries."""
    graphs = [g for g in inventory.graphs if not facts.get(g.info.name, _UNREAD).gone]
    inner: defaultdict[str, list[GraphFacts]] = defaultdict(list)
    for graph in graphs:
        if graph.tier == "fxgraph" and graph.info.name in facts:
            inner[graph.key].append(facts[graph.info.name])
    rule = LastUses(time.time_ns())
    entries = [_entry(g, facts.get(g.info.name, _UNREAD), inner, rule) for g in graphs]
    problems = [
        Problem(g.info.name, kind, detail, g.name)
        for g in graphs
        for kind, detail in facts.get(g.info.name, _UNREAD).problems
    ]
    return TorchScan(tuple(entries), inventory, facts, (*problems, *inventory.problems()))


def _entry(
    file: GraphFile, facts: GraphFacts, inner: Mapping[str, list[GraphFacts]], rule: LastUses
) -> GraphEntry:
    info = file.info
    use = rule.of(FileDates(info.mtime_ns, info.atime_ns, changed_ns=info.ctime_ns or None))
    below = [_compiled_within(facts, inner[key]) for key in facts.references if key in inner]
    # The FX graphs of an AOT graph show where it comes from.
    names = ("torch_version", "source", "function")
    origin: dict[str, Any] = {
        name: next(
            filter(None, (getattr(graph_facts, name) for graph_facts in (facts, *below))), None
        )
        for name in names
    }
    version = origin["torch_version"]
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
        last_used_ns=use.at_ns,
        last_used_from=use.source,
        platform=_platform(facts.devices),
        target=f"torch {version}" if version else None,
        problems=tuple(kind for kind, _ in facts.problems),
        references=facts.needs,
        **{name: getattr(facts, name) for name in _SHARED},
        **origin,
    )


_UNREAD = GraphFacts()
#: Facts that an entry has as they are.
_SHARED = {f.name for f in fields(GraphFacts)} & {f.name for f in fields(GraphEntry)} - {
    *("problems", "references", "torch_version", "source", "function")
}


def _compiled_within(graph: GraphFacts, files: Sequence[GraphFacts]) -> GraphFacts:
    """The file of an FX graph that was compiled as a part of ``graph``: the longest that fits."""
    fitting = [f for f in files if (f.seconds or 0.0) <= (graph.seconds or 0.0)]
    return max(fitting or files, key=lambda f: f.seconds or 0.0)


def _own_seconds(facts: GraphFacts, below: Sequence[GraphFacts]) -> float | None:
    """The seconds of a graph without those of the graphs below it: then sums count none twice."""
    if facts.seconds is None:
        return None
    return max(0.0, facts.seconds - math.fsum(f.seconds or 0.0 for f in below))


def _platform(devices: Iterable[str]) -> Platform:
    platforms = [_PLATFORMS.get(device, "unknown") for device in devices]
    return next(
        (p for p in platforms if p in ("gpu", "tpu")), platforms[0] if platforms else "unknown"
    )


#: Problems that do not damage a file: "foreign-globals" alone leaves a graph usable.
_HARMLESS = frozenset({"foreign-globals"})


def read_side(store: Store) -> DiffSide:
    """Read every graph of a cache.

    Raises:
        NoCacheError
    """
    scan_result = scan(store)
    return _side(store.url, scan_result, [info.name for _, info in scan_result.inventory.files()])


def read_bundle(bundle: Bundle) -> DiffSide:
    """Read every graph of a bundle.

    Raises:
        BundleError
    """
    content = ContentReader(bundle)
    graphs: list[GraphFile] = []
    facts: dict[str, GraphFacts] = {}
    for file in bundle.manifest.files:
        info = FileInfo(file.name, "file", file.size_bytes, file.created_ns, 0, 0, 0, -1)
        graph = as_graph(info)
        if graph is None or file.size_bytes > MAX_BYTES:
            continue
        data = b"".join(content.take(file.name))
        graphs.append(graph)
        facts[file.name] = read_graph(data, graph.tier, graph.key, graph.digest)
    scan_result = make_scan(TorchInventory(graphs), facts)
    names = [f.name for f in bundle.manifest.files]
    return _side(bundle.name, scan_result, names, bundle.manifest_sha256)


def _side(
    location: str, scan_result: TorchScan, names: Iterable[str], reference: str = ""
) -> DiffSide:
    entries: dict[str, DiffEntry] = {}
    damaged: list[Problem] = []
    for entry in sorted(scan_result.entries, key=lambda e: e.file):
        facts = scan_result.facts.get(entry.file, GraphFacts(gone=True))
        bad = [(kind, detail) for kind, detail in facts.problems if kind not in _HARMLESS]
        damaged.extend(Problem(entry.file, *problem, entry.key) for problem in bad[:1])
        if not bad and not facts.gone:
            key = f"{entry.key} if {facts.guards}" if facts.guards else entry.key
            stands_for = facts.source_key or ",".join(facts.references)
            size = entry.size_bytes
            seconds = entry.compile_seconds or 0.0
            # Torch takes the first by name.
            entries.setdefault(key, DiffEntry(key, stands_for, size, size, seconds))
    return DiffSide(location, entries, tuple(damaged), reference, frozenset(names), "torch", False)
