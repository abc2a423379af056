"""What is inside a graph, and the differences between the keys of two FX graphs.

An FX graph holds about 640 lines, ``[hash] part: text``, that torch logs for a key
(``FxGraphCachePickler.debug_lines``, ``torch/_inductor/codecache.py`` of 2.13). The hashes are
compared and not the texts, which hold addresses.
"""

import contextlib
import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from jaxcache.cache.explain.keys import Churn, rank_churn
from jaxcache.cache.explain.sides import Cause, Comparison, Compile, Difference, Explanation
from jaxcache.cache.selection import select_by_keys
from jaxcache.entry.summary import Entry
from jaxcache.errors import JaxcacheError
from jaxcache.layouts.torch.graph import Component, Graph, GraphFacts, read_graph, read_graph_file
from jaxcache.layouts.torch.inventory import TorchInventory, dependencies_of, resolve_dependencies
from jaxcache.layouts.torch.names import GraphFile, digest_of, parse_path
from jaxcache.layouts.torch.pickled import MAX_BYTES
from jaxcache.layouts.torch.scan import GraphEntry, TorchScan, make_scan, scan
from jaxcache.model import Depth, FileInfo, Problem
from jaxcache.store import open_store
from jaxcache.store.base import MissingError, Store

_PROGRAM = "gm"
_SHOWN_CHARACTERS = 200
#: Lines of a program that are aligned, from the first that differs.
_COMPARED_LINES = 200
#: FX graphs among which the nearest is looked for without being asked: each takes 4 ms at most.
_MOST_COMPARED = 200
#: Parts of a key that are settings, by how their names begin.
_SETTINGS = {
    "default_dtype": "torch.get_default_dtype()",
    "deterministic_algorithms_settings": "torch.use_deterministic_algorithms",
    "cuda_matmul_settings": "torch.backends.cuda.matmul",
    "cache_key_tag": "torch.compiler.config.cache_key_tag",
    "inductor_config": "a setting of torch._inductor.config",
    "cpp_runtime_thread_count": "how many threads kernels are made for (OMP_NUM_THREADS)",
}
_SAME_TORCH = "install the same torch on both sides"
_INPUT = "an input: its dtype, shape, stride, device or alignment"
_INPUT_FIX = "make the inputs alike, or let sizes vary: torch.compile(dynamic=True)"
_TRACES = "compare the traces: TORCH_LOGS=aot_graphs"
_NOT_ALONE = "; other parts differ, too, so that this alone brings no hit"
_NO_PART = "the keys differ, and no part that torch stored does"
#: The parts of a key by how their names begin: the cause, its meaning, and what to do. The first
#: that fits counts; differences are listed in this order.
_MEANINGS: tuple[tuple[str, Cause, str, str | None], ...] = (
    ("torch_version", Cause.TORCH_VERSION, "torch's own source code", _SAME_TORCH),
    ("system_info", Cause.DEVICE, "the device, its driver, or CUDA", None),
    *((n, Cause.CONFIG, text, "set it alike on both sides") for n, text in _SETTINGS.items()),
    ("example_inputs[", Cause.ARGUMENT, _INPUT, _INPUT_FIX),
    ("user_defined_triton_source", Cause.CODE, "the source of a Triton kernel", None),
    (_PROGRAM, Cause.CODE, "the traced program", _TRACES),
    ("fx_kwargs[", Cause.CONFIG, "how Inductor was called for this program", None),
    ("", Cause.UNKNOWN, "a part of the key that is not known here", None),
)


class _Read(NamedTuple):
    file: GraphFile
    graph: Graph
    components: Mapping[str, Component]


def explain_keys(keys: Sequence[str], url: str) -> Explanation:
    """Compare two graphs, or one with the nearest other of its function.

    An AOT graph is compared by its FX graphs, forward with forward and backward with backward.

    Args:
        keys: one or two KEY arguments.
        url: the cache.

    Raises:
        NoCacheError
        JaxcacheError: ``no-match``, ``ambiguous-key``, or ``bad-entry``.
    """
    store = open_store(url)
    scan_result = scan(store, depth=Depth.LISTED)
    rights = _resolve(store, scan_result, keys[-1])
    if len(keys) > 1:
        pairs = _match_graphs(_resolve(store, scan_result, keys[0]), rights)
        name = keys[0]
    else:
        pairs = [(_nearest(store, scan_result, right), right) for right in rights[:1]]
        name = pairs[0][0].file.name
    explained = [_comparison(left, right) for left, right in pairs]
    comparisons = tuple(c for c in explained if c.differences)
    return Explanation(name, keys[-1], len(pairs) - len(comparisons), comparisons)


def compare_with_nearest(
    store: Store, scan_result: TorchScan, file: GraphFile
) -> Comparison | None:
    """Compare an FX graph with its nearest; None if it has none, or too many must be read."""
    if not 1 < sum(g.tier == "fxgraph" for g in scan_result.inventory.graphs) <= _MOST_COMPARED:
        return None
    try:
        right = _read(store, file)
        return _comparison(_nearest(store, scan_result, right), right)
    except (MissingError, JaxcacheError):
        return None


def find_churn(
    store: Store, *, explained: int | None = None, scan_result: TorchScan | None = None
) -> tuple[Churn, ...]:
    """Functions with two FX graphs or more, those that take most bytes first.

    Backward graphs are counted apart from forward ones, as their AOT graphs refer to them.

    Args:
        explained: look for the causes of only so many functions, those that take most bytes.
        scan_result: a scan with details that was made already.

    Raises:
        NoCacheError
    """
    scan_result = scan_result or scan(store)
    aot = (e.references for e in scan_result.entries if e.module == "aotautograd")
    backward = {keys[1] for keys in aot if len(keys) > 1}
    functions: defaultdict[str, dict[str, GraphEntry]] = defaultdict(dict)
    for entry in scan_result.entries:
        if entry.module == "fxgraph" and entry.function:
            name = f"{entry.function} (backward)" if entry.hash in backward else entry.function
            functions[name].setdefault(entry.hash, entry)
    files = {g.info.name: g for g in scan_result.inventory.graphs}

    def differences(entries: Sequence[Entry]) -> Iterator[Difference]:
        for left, right in pairwise(_readable(store, (files[e.file] for e in entries))):
            yield from _compare(left, right)

    groups = {
        name: tuple(entries_of_function.values()) for name, entries_of_function in functions.items()
    }
    return rank_churn(groups, differences, explained)


def _comparison(left: _Read, right: _Read) -> Comparison:
    return Comparison(_compile(left), _compile(right), tuple(_compare(left, right)))


def _match_graphs(lefts: list[_Read], rights: list[_Read]) -> list[tuple[_Read, _Read]]:
    """Forward with forward and backward with backward; one alone with the nearest there."""
    if len(lefts) == len(rights):
        return list(zip(lefts, rights, strict=True))
    if len(lefts) < len(rights):
        return [(right, left) for left, right in _match_graphs(rights, lefts)]
    return [(min(lefts, key=lambda left: len(_differing(left, r))), r) for r in rights]


def _resolve(store: Store, scan_result: TorchScan, wanted: str) -> list[_Read]:
    """Return the FX graphs that a KEY names."""
    entries = select_by_keys(scan_result.entries, [wanted])
    first = next(g for g in scan_result.inventory.graphs if g.info.name == entries[0].file)
    if first.tier == "fxgraph":
        return [_read(store, first)]
    graph = read_graph_file(store, first)
    below = {g.key: g for g in reversed(scan_result.inventory.graphs) if g.tier == "fxgraph"}
    graphs = [below[key] for key in graph.references if key in below]
    if not graphs:
        raise JaxcacheError(
            f"{first.name} refers to no FX graph that is there",
            code="bad-entry",
            hint="jaxcache verify reports the problem",
        )
    return [_read(store, file) for file in graphs]


def _read(store: Store, file: GraphFile) -> _Read:
    graph = read_graph_file(store, file)
    if not isinstance(graph, Graph) or not graph.key_lines:
        raise JaxcacheError(
            f"{file.name} does not record its key",
            code="bad-entry",
            hint="jaxcache verify reports the problem",
        )
    return _Read(file, graph, {c.name: c for c in graph.components})


def _nearest(store: Store, scan_result: TorchScan, right: _Read) -> _Read:
    """The other FX graph that differs in the fewest parts, of the same function if there is one."""
    fx = (g for g in scan_result.inventory.graphs if g.tier == "fxgraph")
    others = _readable(store, (g for g in fx if g.key != right.file.key))

    def distance(other: _Read) -> tuple[bool, int]:
        return other.graph.function != right.graph.function, len(_differing(other, right))

    nearest = min(others, key=distance, default=None)  # holds one at a time
    if nearest is None:
        raise JaxcacheError(
            f"{right.file.name} is the only FX graph here",
            code="no-match",
            hint="name another cache with --cache-dir",
        )
    return nearest


def _readable(store: Store, files: Iterable[GraphFile]) -> Iterator[_Read]:
    for file in files:
        try:
            yield _read(store, file)
        except (MissingError, JaxcacheError):
            continue


def _differing(left: _Read, right: _Read) -> list[str]:
    names = dict.fromkeys((*left.components, *right.components))
    return [n for n in names if _hash(left, n) != _hash(right, n)]


def _hash(side: _Read, name: str) -> str | None:
    component = side.components.get(name)
    return component.hash if component else None


def _compare(left: _Read, right: _Read) -> Iterator[Difference]:
    """Yield every part that differs: one alone is the cause, and of several none is."""
    names = _differing(left, right)
    if not names and left.file.key != right.file.key:
        yield Difference("unknown", left.file.key, right.file.key, _NO_PART, None, Cause.UNKNOWN)
    for rank, name in sorted((_rank(name), name) for name in names):
        _, cause, meaning, fix = _MEANINGS[rank]
        old = left.components.get(name)
        new = right.components.get(name)
        texts = _changed_lines(old, new) if name == _PROGRAM else (_text(old), _text(new))
        title = meaning if len(names) > 1 else ""
        if len(names) > 1:
            meaning = f"{meaning}{_NOT_ALONE}"
            fix = None
        yield Difference(name, *texts, meaning, fix, cause, title=title)


def _rank(part: str) -> int:
    """The place of a part of a key among those that are known; the last for one that is not."""
    return next(n for n, (start, *_) in enumerate(_MEANINGS) if part.startswith(start))


def _text(component: Component | None) -> str | None:
    """Return the text that torch printed of it, with its hash if the text proves nothing."""
    if component is None:
        return None
    text = component.text.strip()
    if not text.isprintable() or "\ufffd" in text or " at 0x" in text:
        return f"{text[:40] if text.isprintable() else ''} [{component.hash[:12]}]".strip()
    return text[:_SHOWN_CHARACTERS]


def _changed_lines(old: Component | None, new: Component | None) -> tuple[str | None, str | None]:
    """The first lines of two programs that differ."""
    before = old.text.splitlines() if old else []
    after = new.text.splitlines() if new else []
    pairs = enumerate(zip(before, after, strict=False))
    start = next((n for n, (a, b) in pairs if a != b), min(len(before), len(after)))
    before = before[start : start + _COMPARED_LINES]
    after = after[start : start + _COMPARED_LINES]
    for tag, i, j, k, m in difflib.SequenceMatcher(None, before, after, False).get_opcodes():
        if tag != "equal":
            return " ".join(before[i:j]).strip()[:400], " ".join(after[k:m]).strip()[:400]
    return _text(old), _text(new)


def _compile(side: _Read) -> Compile:
    graph = side.graph
    return Compile(
        module=graph.function or side.file.tier,
        key=side.file.name,
        components={name: c.hash for name, c in side.components.items()},
        source=graph.source,
        compile_seconds=graph.seconds,
    )


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

    compiler = "torch"

    @property
    def contents(self) -> Graph:
        """What the file holds; nothing where it could not be read."""
        return self.graph or Graph(tier="fxgraph", root="", globals=())

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
    entries = {e.file: e for e in select_by_keys(scan_result.entries, [wanted])}
    inventory = scan_result.inventory
    facts = scan_result.facts
    files = [g for g in inventory.graphs if g.info.name in entries]
    below = {key for g in files for key in facts[g.info.name].references}
    related = [g for g in inventory.graphs if g.tier == "fxgraph" and g.key in below]
    sources = {key for g in (*files, *related) for key in facts[g.info.name].needs}
    needs = resolve_dependencies(store, inventory, sources=sources)
    shown = []
    for file in files:
        parts = {i.name: i for i in dependencies_of(file, facts, needs, inventory)}
        entry = replace(entries[file.info.name], dependants=tuple(parts))
        with contextlib.suppress(MissingError):
            graph = read_graph_file(store, file)
            shown.append(_shown(store, entry, graph, tuple(parts.values()), inventory))
    if len(shown) == 1 and files[0].tier == "fxgraph":
        nearest = compare_with_nearest(store, scan_result, files[0])
        shown = [replace(shown[0], nearest=nearest)]
    return shown


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
