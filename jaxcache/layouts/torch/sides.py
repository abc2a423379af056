"""Graphs as one side of ``diff``: compared by the code that they stand for, not by their bytes.

No two compiles give equal bytes, because an entry holds how long it took; what generated code it
names tells whether two caches hold the same.
"""

from collections.abc import Iterable, Mapping

from jaxcache.cache.bundle.format import Bundle, ContentReader
from jaxcache.cache.diff import Held, Side
from jaxcache.cache.scan import Progress
from jaxcache.entry.names import printable
from jaxcache.layouts.torch.examine import Facts, examine, facts_of
from jaxcache.layouts.torch.inventory import GraphFile
from jaxcache.layouts.torch.names import TorchKind, parse_path
from jaxcache.layouts.torch.pickled import MAX_BYTES
from jaxcache.layouts.torch.scan import scan
from jaxcache.model import FileInfo, Problem
from jaxcache.store.base import Store

#: Nothing says so of a file: "foreign-globals" alone leaves a graph usable.
_HARMLESS = frozenset({"foreign-globals"})


def read_side(store: Store, progress: Progress | None = None) -> Side:
    """Read every graph of a cache.

    Raises:
        NoCacheError
    """
    seen = scan(store, progress=progress)
    names = frozenset(info.name for _, info in seen.inventory.files())
    return _side(store.url, seen.inventory.graphs, seen.facts, names)


def read_bundle(bundle: Bundle) -> Side:
    """Read every graph of a bundle.

    Raises:
        BundleError
    """
    content = ContentReader(bundle)
    graphs: list[GraphFile] = []
    facts: dict[str, Facts] = {}
    for file in bundle.manifest.files:
        kind, key, digest = parse_path(file.name)
        if kind not in (TorchKind.AOT, TorchKind.FX) or file.size_bytes > MAX_BYTES:
            content.skip(file.size_bytes)
            continue
        data = b"".join(content.take(file.size_bytes))
        info = FileInfo(file.name, "file", file.size_bytes, file.created_ns, 0, 0, 0, -1)
        tier = "aotautograd" if kind is TorchKind.AOT else "fxgraph"
        graph = GraphFile(info, tier, key or "", digest or "")  # type: ignore[arg-type]
        graphs.append(graph)
        facts[file.name] = facts_of(examine(data, graph.tier, graph.key, graph.digest))
    names = frozenset(f.name for f in bundle.manifest.files)
    return _side(bundle.name, graphs, facts, names, bundle.manifest_sha256)


def _side(
    location: str,
    graphs: Iterable[GraphFile],
    facts: Mapping[str, Facts],
    names: frozenset[str],
    reference: str = "",
) -> Side:
    entries: dict[str, Held] = {}
    damaged: list[Problem] = []
    for graph in sorted(graphs, key=lambda g: g.info.name):
        found = facts.get(graph.info.name, Facts(gone=True))
        bad = [(k, d) for k, d in found.problems if k not in _HARMLESS]
        damaged.extend(Problem(graph.info.name, k, d, graph.name) for k, d in bad[:1])
        if not bad and not found.gone:
            entry = _held(graph, found)
            entries.setdefault(entry.key, entry)  # torch takes the first by name
    return Side(location, entries, tuple(damaged), reference, names, "torch")


def _held(graph: GraphFile, facts: Facts) -> Held:
    key = f"{graph.name} if {printable(facts.guards)}" if facts.guards else graph.name
    stands_for = facts.source_key or ",".join(facts.references)
    return Held(key, stands_for, graph.info.size_bytes, graph.info.size_bytes, 0)
