"""Graphs as one side of ``diff``: compared by the code that they name, not by their bytes.

No two compiles give equal bytes, because an entry contains how long it took. Two caches hold the
same if their entries name the same generated code.
"""

from collections.abc import Iterable

from jaxcache.cache.bundle.format import Bundle, ContentReader
from jaxcache.cache.diff import DiffEntry, DiffSide
from jaxcache.cache.scan import ScanAids
from jaxcache.layouts.torch.graph import GraphFacts, read_graph
from jaxcache.layouts.torch.inventory import TorchInventory
from jaxcache.layouts.torch.names import GraphFile, as_graph
from jaxcache.layouts.torch.pickled import MAX_BYTES
from jaxcache.layouts.torch.scan import TorchScan, make_scan, scan
from jaxcache.model import FileInfo, Problem, Progress
from jaxcache.store.base import Store

#: Problems that do not damage a file: "foreign-globals" alone leaves a graph usable.
_HARMLESS = frozenset({"foreign-globals"})


def read_side(store: Store, progress: Progress | None = None) -> DiffSide:
    """Read every graph of a cache.

    Raises:
        NoCacheError
    """
    scan_result = scan(store, ScanAids(progress=progress))
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
