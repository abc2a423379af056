"""``show`` for graphs: everything inside one entry, and what exists for it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxcache.cache.explain.sides import Comparison
from jaxcache.cache.selection import select_by_keys
from jaxcache.layouts.torch.explain import compare_with_nearest
from jaxcache.layouts.torch.graph import Graph, GraphFacts, read_graph, read_graph_file
from jaxcache.layouts.torch.inventory import TorchInventory, dependencies_of, resolve_dependencies
from jaxcache.layouts.torch.names import GraphFile, digest_of, parse_path
from jaxcache.layouts.torch.pickled import MAX_BYTES
from jaxcache.layouts.torch.scan import GraphEntry, make_scan, scan
from jaxcache.model import FileInfo, Problem
from jaxcache.store.base import MissingError, Store


@dataclass(frozen=True, slots=True)
class GraphDetails:
    """One graph with its contents."""

    cache_dir: str
    entry: GraphEntry
    graph: Graph | None
    """None where the file could not be read."""
    files: tuple[FileInfo, ...]
    """The files that exist for it: FX graphs, generated ``.py``, kernels."""
    missing: tuple[str, ...]
    """Keys that it refers to and that are not there."""
    problems: tuple[Problem, ...]
    nearest: Comparison | None = None
    """Differences from the nearest other graph, where one FX graph is shown alone."""

    @property
    def damaged(self) -> bool:
        """Whether something in it cannot be read."""
        return bool(self.problems)


def show(store: Store, wanted: str) -> list[GraphDetails]:
    """Read the graphs that a KEY means: one, or several where it is a glob or has several files.

    Raises:
        NoCacheError
        JaxcacheError: it fits nothing, or is ambiguous.
    """
    scan_result = scan(store)
    chosen = {e.file for e in select_by_keys(scan_result.entries, [wanted])}
    files = [g for g in scan_result.inventory.graphs if g.info.name in chosen]
    facts: dict[str, GraphFacts] = {}
    _examine(store, files, facts)
    keys = {key for graph_facts in facts.values() for key in graph_facts.references}
    below = [g for g in scan_result.inventory.graphs if g.tier == "fxgraph" and g.key in keys]
    _examine(store, below, facts)
    read = make_scan(scan_result.inventory, facts)
    sources = {key for f in facts.values() for key in f.needs}
    needs = resolve_dependencies(store, scan_result.inventory, sources=sources)
    entries = {e.file: e for e in read.entries}
    shown = []
    for file in files:
        if file.info.name in facts:
            belonging = tuple(
                {
                    i.name: i for i in dependencies_of(file, facts, needs, scan_result.inventory)
                }.values()
            )
            entry = replace(entries[file.info.name], dependants=tuple(i.name for i in belonging))
            shown.append(
                _shown(store, entry, facts[file.info.name], belonging, scan_result.inventory)
            )
    if len(shown) == 1 and files[0].tier == "fxgraph":
        nearest = compare_with_nearest(store, scan_result, files[0])
        shown = [replace(shown[0], nearest=nearest)]
    return shown


def _examine(
    store: Store, files: Sequence[GraphFile], facts_by_file: dict[str, GraphFacts]
) -> None:
    for file in files:
        try:
            facts_by_file[file.info.name] = read_graph_file(store, file)
        except MissingError:
            continue


def _shown(
    store: Store,
    entry: GraphEntry,
    facts: GraphFacts,
    files: tuple[FileInfo, ...],
    inventory: TorchInventory,
) -> GraphDetails:
    present = inventory.sources.keys() | {g.key for g in inventory.graphs}
    return GraphDetails(
        store.url,
        entry,
        facts if isinstance(facts, Graph) else None,
        files,
        tuple(key for key in entry.references if key not in present),
        tuple(Problem(entry.file, kind, text, entry.key) for kind, text in facts.problems),
    )


def show_file(store: Store, name: str) -> list[GraphDetails]:
    """Read one file that holds a pickle, in any directory.

    Raises:
        MissingError, StoreError
    """
    info = store.info(name)
    data = store.read(name, limit=MAX_BYTES + 1)
    digest = digest_of(data)
    graph_facts = read_graph(data, "fxgraph", "", digest)
    if not isinstance(graph_facts, Graph) or graph_facts.own_key is None:
        graph_facts = read_graph(data, "aotautograd", "", digest)
    problems = tuple(p for p in graph_facts.problems if p[0] != "key-mismatch")
    if parse_path(name).digest not in (None, digest):
        problems += (("digest-mismatch", "its bytes are not the ones that it is named by"),)
    graph_facts = replace(graph_facts, problems=problems)
    own = isinstance(graph_facts, Graph) and graph_facts.own_key
    file = GraphFile(info, "fxgraph" if own else "aotautograd", own or name, digest)
    read = make_scan(TorchInventory(graphs=[file]), {name: graph_facts})
    return [_shown(store, read.entries[0], graph_facts, (), TorchInventory())]
