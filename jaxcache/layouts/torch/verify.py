"""``verify`` for a cache of torch's compilers: six rules, without torch and without unpickling.

1. The name of a graph is the hash of its bytes, that of a generated ``.py`` of its text.
2. A kernel is at least as long as its own section table says.
3. An FX graph lies under the key that it was stored under.
4. What unpickling would make is of the class that the folder is for.
5. The code inside an FX graph is the code that it names.
6. What a graph refers to is there.

That a pickle can be read proves nothing: of 800 entries with one flipped bit 680 could.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxcache.cache.scan import Progress
from jaxcache.cache.select import select_by_keys
from jaxcache.cache.verify.examine import INFORMATIONAL, Verification
from jaxcache.errors import UsageError
from jaxcache.layouts.torch.elf import elf_problem
from jaxcache.layouts.torch.examine import Facts, Found, examine_file, facts_of
from jaxcache.layouts.torch.inventory import GraphFile, Inventory, take_inventory
from jaxcache.layouts.torch.links import link
from jaxcache.layouts.torch.names import TorchKind, digest_of_text
from jaxcache.layouts.torch.scan import scan
from jaxcache.model import FileInfo, Problem
from jaxcache.options import VerifyOptions
from jaxcache.store.base import MissingError, Store, StoreError
from jaxcache.units import NS_PER_SECOND

_MAX_SOURCE_BYTES = 64 << 20
_WORLD_WRITABLE = 0o002
_PROGRESS_EVERY = 64


@dataclass(slots=True)
class _Checks:
    """The findings so far."""

    problems: list[Problem] = field(default_factory=list)
    facts: dict[str, Facts] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def add(self, info: FileInfo, found: Iterable[Found], key: str | None = None) -> None:
        self.problems.extend(Problem(info.name, kind, detail, key) for kind, detail in found)


def verify_graphs(
    store: Store,
    options: VerifyOptions,
    *,
    now_ns: int,
    loader: object = None,  # noqa: ARG001 - would run what the cache holds
    progress: Progress | None = None,
) -> Verification:
    """Verify a cache; ``quick`` looks at names, sizes and kernels, ``full`` at everything.

    Raises:
        NoCacheError: the directory cannot be listed.
        UsageError: ``level`` is ``load``: that would run what the cache holds.
        JaxcacheError: a KEY fits nothing, or more than it may.
    """
    if options.level == "load":
        raise UsageError(
            "--level load is for JAX's caches", hint="torch unpickles and runs what it loads"
        )
    inventory = take_inventory(store)
    graphs, sources, kernels = _choose(store, inventory, options)
    quick = options.level == "quick"
    total = len(graphs) + len(sources) + len(kernels)
    checks = _Checks()
    for done, file in enumerate(graphs):
        _check_graph(store, file, checks, quick=quick)
        _tell(progress, done, total)
    for done, (key, info) in enumerate(sources, len(graphs)):
        _check_source(store, key, info, checks, quick=quick)
        _tell(progress, done, total)
    for info in kernels:
        _check_kernel(store, info, checks)
    if not quick:
        _check_references(inventory, graphs, checks)
    if not options.keys:
        checks.problems.extend(inventory.problems())
        checks.problems.extend(_permissions(store, inventory))
    return _result(store, options, inventory, (graphs, sources, kernels), checks, now_ns)


def _tell(progress: Progress | None, done: int, total: int) -> None:
    if progress and done % _PROGRESS_EVERY == 0:
        progress(done, total)


_Chosen = tuple[list[GraphFile], list[tuple[str, FileInfo]], list[FileInfo]]


def _choose(store: Store, inventory: Inventory, options: VerifyOptions) -> _Chosen:
    """Choose everything, or the graphs that fit a KEY and the files that exist for them."""
    if not options.keys:
        kernels = [*inventory.kernels.values()]
        kernels += [info for info, kind in inventory.others if _is_probe(info, kind)]
        return inventory.graphs, [*inventory.sources.items()], kernels
    entries = select_by_keys(scan(store, details=False).entries, options.keys)
    names = {e.file for e in entries}
    graphs = [g for g in inventory.graphs if g.info.name in names]
    checks = _Checks()
    for file in graphs:
        _check_graph(store, file, checks, quick=False)
    keys = {key for f in checks.facts.values() for key in f.references}
    for file in inventory.graphs:
        if file.tier == "fxgraph" and file.key in keys and file.info.name not in names:
            graphs.append(file)
            _check_graph(store, file, checks, quick=False)
    sources = {f.source_key for f in checks.facts.values() if f.source_key}
    links = link(store, inventory, checks.facts, sources=sources)
    kernels_of = {kernel for found in links.kernels_of.values() for kernel in found}
    return (
        graphs,
        [(key, inventory.sources[key]) for key in sorted(sources & inventory.sources.keys())],
        [inventory.kernels[key] for key in sorted(kernels_of & inventory.kernels.keys())],
    )


def _is_probe(info: FileInfo, kind: TorchKind) -> bool:
    return kind is TorchKind.PROBE and info.name.endswith(".so")


def _check_graph(store: Store, file: GraphFile, checks: _Checks, *, quick: bool) -> None:
    """Rules 1, 3, 4 and 5."""
    if quick:
        if file.info.size_bytes == 0:
            checks.add(file.info, [("empty", "no bytes")], file.name)
        return
    try:
        found = facts_of(examine_file(store, file))
    except MissingError:
        checks.gone.add(file.info.name)
        return
    checks.facts[file.info.name] = found
    checks.add(file.info, found.problems, file.name)


def _check_source(store: Store, key: str, info: FileInfo, checks: _Checks, *, quick: bool) -> None:
    """Rule 1 for a generated ``.py``, which torch runs without a look at it."""
    if info.size_bytes == 0:
        checks.add(info, [("empty", "no code: torch crashes on it, every time")], key)
    elif info.size_bytes > _MAX_SOURCE_BYTES:
        checks.add(info, [("unreadable", f"{info.size_bytes:,} bytes are too many")], key)
    elif not quick:
        try:
            data = store.read(info.name, limit=_MAX_SOURCE_BYTES)
        except MissingError:
            checks.gone.add(info.name)
        except StoreError as error:
            checks.add(info, [("unreadable", error.reason)], key)
        else:
            if digest_of_text(data) != key[1:]:
                detail = "its code is not the one that it is named by; torch would run it"
                checks.add(info, [("digest-mismatch", detail)], key)


def _check_kernel(store: Store, info: FileInfo, checks: _Checks) -> None:
    """Rule 2."""
    try:
        found = elf_problem(store, info)
    except MissingError:
        checks.gone.add(info.name)
    except StoreError as error:
        checks.add(info, [("unreadable", error.reason)])
    else:
        checks.add(info, [found] if found else [])


def _check_references(inventory: Inventory, graphs: Sequence[GraphFile], checks: _Checks) -> None:
    """Rule 6."""
    fx_keys = {g.key for g in inventory.graphs if g.tier == "fxgraph"}
    for file in graphs:
        facts = checks.facts.get(file.info.name, Facts())
        if facts.problems:
            continue
        if absent := [key for key in facts.references if key not in fx_keys]:
            if facts.bundled:
                continue
            detail = f"refers to {', '.join(absent)}, gone: torch compiles anew"
            checks.add(file.info, [("dangling-reference", detail)], file.name)
        if facts.source_key and facts.source_key not in inventory.sources:
            detail = f"{facts.source_key}.py is not there; torch writes it again from the graph"
            checks.add(file.info, [("missing-source", detail)], file.name)


def _permissions(store: Store, inventory: Inventory) -> Iterator[Problem]:
    """Yield who else may put code here: torch unpickles and runs whatever it finds."""
    root = store.root
    if root is None:
        return
    if root.mode & _WORLD_WRITABLE:
        detail = f"mode {root.mode & 0o7777:o}: anybody may put code here"
        yield Problem(".", "unsafe-permissions", detail)
    user = os.geteuid() if hasattr(os, "geteuid") else None
    trusted = {0, root.owner, user}
    for _, info in inventory.files():
        if info.mode & _WORLD_WRITABLE and info.type == "file":
            detail = f"mode {info.mode & 0o7777:o}: anybody may change it"
            yield Problem(info.name, "unsafe-permissions", detail)
        if info.owner >= 0 and user is not None and info.owner not in trusted:
            yield Problem(info.name, "foreign-owner", f"belongs to user {info.owner}")


def _result(
    store: Store,
    options: VerifyOptions,
    inventory: Inventory,
    chosen: _Chosen,
    checks: _Checks,
    now_ns: int,
) -> Verification:
    graphs, sources, kernels = chosen
    provable = {g.info.name for g in graphs} | {info.name for _, info in sources}
    looked_at = (provable | {info.name for info in kernels}) - checks.gone
    failing = {p.file for p in checks.problems if p.kind not in INFORMATIONAL}
    named = {p.file for p in checks.problems}
    infos = {info.name: info for _, info in inventory.files() if info.name in named}
    grace_ns = options.grace_seconds * NS_PER_SECOND
    return Verification(
        cache_dir=store.url,
        level=options.level,
        checked=len(looked_at),
        ok=len(looked_at - failing),
        proven=0 if options.level == "quick" else len((provable & looked_at) - failing),
        problems=tuple(checks.problems),
        files=infos,
        young=frozenset(n for n, info in infos.items() if now_ns - info.mtime_ns < grace_ns),
    )
