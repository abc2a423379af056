"""Units that are removed as one: a graph that torch looks up, with all that exists only for it.

A unit is an AOT graph with its FX graphs and their code, or an FX graph that no AOT graph refers
to. Units may share files; a file goes when the last unit that needs it does.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from jaxcache.cache.prune.policy import Candidate, estimate_hits
from jaxcache.cache.prune.removal import Reason
from jaxcache.layouts.torch.examine import Facts
from jaxcache.layouts.torch.inventory import GraphFile
from jaxcache.layouts.torch.links import Links, files_below
from jaxcache.layouts.torch.scan import Scan
from jaxcache.model import FileInfo, GraphEntry
from jaxcache.units import NS_PER_SECOND


@dataclass(slots=True)
class Unit:
    """One graph that torch looks up, and the files that it needs, itself first."""

    name: str
    """The file of the graph."""
    key: str
    function: str
    files: dict[str, FileInfo]
    used_ns: int
    created_ns: int
    seconds: float
    worthless: bool
    protected: bool
    reason: Reason | None = None
    """Set once something takes it."""


@dataclass(slots=True)
class Units:
    """All units of a cache, and how many of them need each file."""

    units: list[Unit] = field(default_factory=list)
    needed: Counter[str] = field(default_factory=Counter)

    def add(self, unit: Unit) -> None:
        """Take in a unit and what it needs."""
        self.units.append(unit)
        self.needed.update(unit.files.keys())

    def release(self, unit: Unit) -> list[FileInfo]:
        """Let a unit go; return the files that nobody needs any more."""
        self.needed.subtract(unit.files.keys())
        return [info for name, info in unit.files.items() if not self.needed[name]]

    def own_bytes(self, unit: Unit) -> int:
        """The files that the unit alone needs."""
        return sum(i.size_bytes for n, i in unit.files.items() if self.needed[n] == 1)

    def candidate(self, unit: Unit, now_ns: int) -> Candidate:
        """The unit as a policy weighs it."""
        used_ns = min(unit.used_ns, now_ns)
        return Candidate(
            unit.name,
            max(1, self.own_bytes(unit)),
            used_ns,
            0.0 if unit.worthless else unit.seconds,
            True,
            estimate_hits(0, unit.created_ns, used_ns),
        )


def make_units(
    seen: Scan,
    links: Links,
    *,
    duplicates: Collection[str] = (),
    now_ns: int,
    grace_seconds: float,
    keep: Collection[str] = (),
) -> Units:
    """Put the graphs of a scan together as units.

    Args:
        duplicates: files to leave out of it.
        grace_seconds: units with a younger file are protected; so are those with a key in ``keep``.
    """
    grace_ns = int(grace_seconds * NS_PER_SECOND)
    entries = {e.file: e for e in seen.entries}
    referred = {
        key
        for g in seen.inventory.graphs
        if g.tier == "aotautograd" and g.info.name not in duplicates
        for key in seen.facts.get(g.info.name, _UNREAD).references
    }
    units = Units()
    for graph in seen.inventory.graphs:
        lone = graph.tier == "fxgraph" and graph.key not in referred
        if graph.info.name in duplicates or graph.info.name not in entries:
            continue
        if graph.tier == "aotautograd" or lone:
            below = (
                i
                for i in files_below(graph, seen.facts, links, seen.inventory)
                if i.name not in duplicates
            )
            files = {i.name: i for i in (graph.info, *below)}
            graphs = [entries[name] for name in files if name in entries]
            units.add(_unit(entries[graph.info.name], graphs, files, now_ns, grace_ns, keep))
    return units


def _unit(
    entry: GraphEntry,
    graphs: list[GraphEntry],
    files: dict[str, FileInfo],
    now_ns: int,
    grace_ns: int,
    keep: Collection[str],
) -> Unit:
    return Unit(
        name=entry.file,
        key=entry.key,
        function=entry.function or next((g.function for g in graphs if g.function), "") or "",
        files=files,
        used_ns=max(g.last_used_ns for g in graphs),
        created_ns=max(i.mtime_ns for i in files.values()),
        seconds=sum(g.compile_seconds or 0.0 for g in graphs),
        worthless=any(p != "foreign-globals" for g in graphs[:1] for p in g.problems),
        protected=any(g.key in keep for g in graphs)
        or any(abs(now_ns - i.mtime_ns) < grace_ns for i in files.values()),
    )


def find_duplicates(seen: Scan) -> set[str]:
    """Files that torch never comes to: another under the same key serves whenever they would.

    Torch tries the files of a key in the order of their names and takes the first whose guards
    hold (``GuardedCache.iterate_over_candidates``, ``torch/_inductor/codecache.py`` of 2.13).
    """
    first: set[tuple[str, str | None]] = set()
    found: set[str] = set()
    for graph in sorted(seen.inventory.graphs, key=_by_key):
        facts = seen.facts.get(graph.info.name, _UNREAD)
        if graph.info.name not in seen.facts or facts.problems or facts.gone:
            continue
        served = (graph.key, facts.guards)
        if served in first or (graph.key, None) in first:
            found.add(graph.info.name)
        first.add(served)
    return found


def _by_key(graph: GraphFile) -> tuple[str, str]:
    return graph.key, graph.info.name


def unreferenced(seen: Scan, units: Units) -> Iterator[FileInfo]:
    """Yield generated code and kernels that no graph needs."""
    inventory = seen.inventory
    found: Iterable[dict[str, FileInfo]]
    found = (inventory.sources, inventory.kernel_sources, inventory.kernels)
    for kind in found:
        yield from (i for i in kind.values() if i.name not in units.needed)


_UNREAD = Facts()
