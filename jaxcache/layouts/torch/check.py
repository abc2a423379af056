"""The checks of one file: six rules, without torch and without unpickling.

1. The name of a graph is the hash of its bytes, that of a generated ``.py`` of its text.
2. A kernel is at least as long as its own section table says.
3. An FX graph lies under the key that it was stored under.
4. What unpickling would make is of the class that the folder is for.
5. The code inside an FX graph is the code that it names.
6. What a graph refers to is there.

That a pickle can be read proves nothing: of 800 entries with one flipped bit 680 could.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from jaxcache.cache.parallel import spread
from jaxcache.cache.verify.check import Checked
from jaxcache.errors import UsageError
from jaxcache.layouts.torch.elf import elf_problem
from jaxcache.layouts.torch.graph import Facts, Found, examine_file
from jaxcache.layouts.torch.links import link
from jaxcache.layouts.torch.names import GraphFile, TorchKind, digest_of_text
from jaxcache.layouts.torch.scan import PARALLEL_ABOVE, Scan, decode
from jaxcache.model import FileInfo, Problem
from jaxcache.options import VerifyOptions
from jaxcache.store.base import MissingError, Store, StoreError

_MAX_SOURCE_BYTES = 64 << 20


class Subject(NamedTuple):
    """A file to check."""

    info: FileInfo
    key_text: str | None
    graph: GraphFile | None = None
    source_key: str | None = None
    """Of generated ``.py``."""


def subjects(
    store: Store, seen: Scan, chosen: Collection[str], options: VerifyOptions
) -> list[Subject]:
    """Return everything, or the graphs chosen by file and the files that exist for them.

    Raises:
        UsageError: ``level`` is ``load``: that would run what the cache holds.
    """
    if options.level == "load":
        raise UsageError(
            "--level load is for JAX's caches", hint="torch unpickles and runs what it loads"
        )
    inventory = seen.inventory
    graphs, sources, kernels = inventory.graphs, inventory.sources, inventory.kernels
    probes = [i for i, k in inventory.others if k is TorchKind.PROBE and i.name.endswith(".so")]
    if options.keys or options.filters:
        facts = decode(store, seen, [e for e in seen.entries if e.file in chosen]).facts
        graphs = [g for g in graphs if g.info.name in facts]
        wanted = {f.source_key for f in facts.values() if f.source_key}
        kernels_of = link(store, inventory, facts, sources=wanted).kernels_of.values()
        needed = {kernel for found in kernels_of for kernel in found}
        sources = {key: info for key, info in sources.items() if key in wanted}
        kernels = {key: info for key, info in kernels.items() if key in needed}
        probes = []
    return [
        *(Subject(g.info, g.name, graph=g) for g in graphs),
        *(Subject(info, key, source_key=key) for key, info in sources.items()),
        *(Subject(info, None) for info in (*kernels.values(), *probes)),
    ]


def check(
    store: Store,
    seen: Scan,  # noqa: ARG001 - a file is checked by itself
    files: Sequence[Subject],
    options: VerifyOptions,
) -> Iterator[tuple[str, Checked]]:
    """Check files: at ``quick`` names, sizes and kernels, at ``full`` everything."""
    check_some = partial(_check, quick=options.level == "quick")
    found = spread(check_some, store, files, workers=options.jobs or 1, above=PARALLEL_ABOVE)
    return zip((f.info.name for f in files), found, strict=True)


def _check(store: Store, files: Sequence[Subject], *, quick: bool) -> Iterator[Checked]:
    for file in files:
        found: Sequence[Found]
        facts = None
        try:
            if file.graph and not quick:
                facts = examine_file(store, file.graph._replace(info=file.info)).facts()
                found = facts.problems
            elif file.graph:
                found = [("empty", "no bytes")] if file.info.size_bytes == 0 else []
            elif file.source_key:
                found = _check_source(store, file.source_key, file.info, quick)
            else:
                problem = elf_problem(store, file.info)
                found = [problem] if problem else []
        except MissingError:
            yield Checked(missing=True)
            continue
        except StoreError as error:
            found = [("unreadable", error.reason)]
        problems = tuple(Problem(file.info.name, *problem, file.key_text) for problem in found)
        yield Checked(problems, proven=not quick and file.key_text is not None, facts=facts)


def _check_source(store: Store, key: str, info: FileInfo, quick: bool) -> list[Found]:
    """Rule 1 for a generated ``.py``, which torch runs without a look at it."""
    if info.size_bytes == 0:
        return [("empty", "no code: torch crashes on it, every time")]
    if info.size_bytes > _MAX_SOURCE_BYTES:
        return [("unreadable", f"{info.size_bytes:,} bytes are too many")]
    if quick or digest_of_text(store.read(info.name, limit=_MAX_SOURCE_BYTES)) == key[1:]:
        return []
    return [("digest-mismatch", "its code is not the one that it is named by; torch would run it")]


def check_beside(
    seen: Scan, files: Sequence[Subject], checks: Mapping[str, Checked], options: VerifyOptions
) -> Iterator[Problem]:
    """Yield what graphs refer to that is not there: rule 6."""
    if options.level == "quick":
        return
    inventory = seen.inventory
    fx_keys = {g.key for g in inventory.graphs if g.tier == "fxgraph"}
    for file in files:
        facts = checks[file.info.name].facts or Facts()
        if facts.problems:
            continue
        if absent := [key for key in facts.references if key not in fx_keys]:
            if facts.bundled:
                continue
            detail = f"refers to {', '.join(absent)}, gone: torch compiles anew"
            yield Problem(file.info.name, "dangling-reference", detail, file.key_text)
        if facts.source_key and facts.source_key not in inventory.sources:
            detail = f"{facts.source_key}.py is not there; torch writes it again from the graph"
            yield Problem(file.info.name, "missing-source", detail, file.key_text)
