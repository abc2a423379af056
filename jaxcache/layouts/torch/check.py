"""The checks of one file: eight rules, without torch and without unpickling.

1. The name of a graph is the hash of its bytes, that of a generated ``.py`` of its text.
2. A kernel is at least as long as its own section table requires.
3. An FX graph is in the directory of the key that it contains.
4. What unpickling would make is of the class that the directory is for.
5. The code inside an FX graph is the code that it names.
6. The files that a graph refers to exist.
7. The source of a kernel is the one that a ``.py`` embeds, and its kernel can be imported.
8. Compiled code has the digest that a run has recorded, where one has.

That a pickle can be read proves nothing: of 800 entries with one flipped bit 680 could.

Torch records digests of compiled code nowhere. A run that is observed, an import, and the first
``verify`` write them into the ledger, by the path of the file. Under the name of a source torch
never writes another text. A kernel that is compiled again, where a newer compiler or another path
may change its bytes, comes with its source; so a record holds for as long as one of the two has
the time that was recorded.
"""

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from jaxcache.cache.ledger.record import PAYLOAD, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.verify.check import EntryCheck, RecordedDigest
from jaxcache.cache.verify.run_checks import CORRUPT
from jaxcache.errors import UsageError
from jaxcache.layouts.torch.graph import Found, GraphFacts, read_graph_file
from jaxcache.layouts.torch.inventory import (
    SourceChecker,
    check_shared_object,
    resolve_dependencies,
    split_source,
    take_inventory,
)
from jaxcache.layouts.torch.names import (
    GraphFile,
    TorchKind,
    digest_of_text,
    paired_file,
    parse_path,
)
from jaxcache.layouts.torch.scan import PARALLEL_ABOVE, TorchScan, decode
from jaxcache.model import FileInfo, Problem
from jaxcache.options import VerifyOptions
from jaxcache.store.base import MissingError, Store, StoreError
from jaxcache.store.concurrency import spread
from jaxcache.units import NS_PER_SECOND

_CODE = (TorchKind.KERNEL, TorchKind.KERNEL_SOURCE, TorchKind.PROBE)
_MAX_BYTES = 64 << 20


def record_new_code(store: Store, since_ns: int, *, unrecorded: bool) -> None:
    """Record the digests of kernels, their sources and probes that were written since then.

    Args:
        unrecorded: also of older ones that have no record.
    """
    files = [info for kind, info in take_inventory(store).files() if kind in _CODE]
    recorded = recorded_digests(store, files) if unrecorded else {i.name for i in files}
    record_code(store, (i for i in files if i.mtime_ns >= since_ns or i.name not in recorded))


def record_code(store: Store, files: Iterable[FileInfo]) -> None:
    """Record the digests of some files."""
    events = []
    for info in files:
        if 0 < info.size_bytes <= _MAX_BYTES:
            try:
                digest = digest_of_code(store.read(info.name, limit=_MAX_BYTES))
            except StoreError:
                continue
            facts = {"payload_sha256": digest, "file_mtime_ns": info.mtime_ns}
            events.append(Event(info.name, PAYLOAD, time.time_ns(), facts))
    append(store, events)


def recorded_digests(store: Store, files: Iterable[FileInfo]) -> Mapping[str, RecordedDigest]:
    """The digests that the ledger has of files, by their paths.

    A digest does not bind if torch may have compiled the file again since.
    """
    ledger = Ledger.load(store)
    digests = {
        i.name: (r, i) for i in files if (r := ledger.record(i.name)) and r.digest_of(i.mtime_ns)
    }
    same = {name for name, (record, i) in digests.items() if record.file_mtime_ns == i.mtime_ns}
    return {
        name: RecordedDigest(
            record.payload_sha256 or "",
            name.endswith(".cpp") or not same.isdisjoint((name, paired_file(name))),
        )
        for name, (record, _) in digests.items()
    }


def digest_of_code(data: bytes) -> str:
    """The digest of one file as the ledger has it."""
    return hashlib.sha256(data).hexdigest()


_MAX_SOURCE_BYTES = 64 << 20
_HEADER_BYTES = 64


class CodeFile(NamedTuple):
    """A file to check."""

    info: FileInfo
    key_text: str | None
    graph: GraphFile | None = None
    source_key: str | None = None
    """The key of a generated ``.py``."""


def files_to_check(
    store: Store, scan_result: TorchScan, chosen: Collection[str], options: VerifyOptions
) -> list[CodeFile]:
    """Return everything, or the graphs chosen by file and the files that exist for them.

    Raises:
        UsageError: ``level`` is ``load``: that would run what the cache holds.
    """
    if options.level == "load":
        raise UsageError(
            "--level load is for JAX's caches", hint="torch unpickles and runs the file"
        )
    inventory = scan_result.inventory
    graphs = inventory.graphs
    sources = inventory.sources
    kernels = inventory.kernels
    kernel_sources = inventory.kernel_sources
    probes = [i for i, k in inventory.others if k is TorchKind.PROBE]
    if options.keys or options.filters:
        facts = decode(
            store, scan_result, [e for e in scan_result.entries if e.file in chosen]
        ).facts
        graphs = [g for g in graphs if g.info.name in facts]
        wanted = {key for f in facts.values() for key in f.needs}
        kernels_of = resolve_dependencies(store, inventory, sources=wanted).kernels_of.values()
        needed = {kernel for kernel_names in kernels_of for kernel in kernel_names}
        sources = {key: info for key, info in sources.items() if key in wanted}
        kernels = {key: info for key, info in kernels.items() if key in needed}
        kernel_sources = {key: info for key, info in kernel_sources.items() if key in needed}
        probes = []
    return [
        *(CodeFile(g.info, g.name, graph=g) for g in graphs),
        *(CodeFile(info, key, source_key=key) for key, info in sources.items()),
        *(CodeFile(i, None) for i in (*kernels.values(), *probes, *kernel_sources.values())),
    ]


def check(
    store: Store, scan_result: TorchScan, files: Sequence[CodeFile], options: VerifyOptions
) -> Iterator[tuple[str, EntryCheck]]:
    """Check files: at ``quick`` names, sizes and kernels, at ``full`` everything.

    Code that looks intact and has no record yet is recorded for the next time.
    """
    settled_ns = time.time_ns() - options.grace_seconds * NS_PER_SECOND
    unrecorded: list[FileInfo] = []
    for file, checked in check_files(store, scan_result, files, options):
        yield file.info.name, checked
        is_sound_code = file.key_text is None and not (checked.proven or checked.problems)
        if is_sound_code and file.info.mtime_ns < settled_ns:
            unrecorded.append(file.info)
    if not (options.level == "quick" or store.remote):
        record_code(store, unrecorded)


def check_files(
    store: Store, scan_result: TorchScan, files: Sequence[CodeFile], options: VerifyOptions
) -> Iterator[tuple[CodeFile, EntryCheck]]:
    """Check files, and write nothing."""
    quick = options.level == "quick"
    by_itself = [f for f in files if parse_path(f.info.name).kind is not TorchKind.KERNEL_SOURCE]
    recorded = (
        {}
        if quick
        else recorded_digests(store, (info for _, info in scan_result.inventory.files()))
    )
    check_some = partial(_check, quick=quick, recorded=recorded)
    results = spread(check_some, store, by_itself, workers=options.jobs or 1, above=PARALLEL_ABOVE)
    others = [f for f in files if parse_path(f.info.name).kind is TorchKind.KERNEL_SOURCE]
    inventory = scan_result.inventory
    codes: Sequence[Iterable[FileInfo]] = ((), ())
    if others and not quick:
        codes = (inventory.sources.values(), inventory.kernel_sources.values())
    check_source = SourceChecker(store, *codes).check_source
    checks = _check(store, others, quick=quick, recorded=recorded, check_source=check_source)
    yield from zip((*by_itself, *others), chain(results, checks), strict=True)


def _check(
    store: Store,
    files: Sequence[CodeFile],
    *,
    quick: bool,
    recorded: Mapping[str, RecordedDigest],
    check_source: Callable[[bytes], Found | None] | None = None,
) -> Iterator[EntryCheck]:
    for file in files:
        problems_of_file: Sequence[Found] = ()
        facts: Any = None
        try:
            if file.info.size_bytes == 0:
                problems_of_file = [("empty", "no bytes: torch fails on it")]
            elif file.graph and not quick:
                facts = read_graph_file(store, file.graph._replace(info=file.info)).facts()
                problems_of_file = facts.problems
            elif file.source_key and not quick:
                problems_of_file = _check_source(store, file.source_key, file.info)
            elif not (file.graph or file.source_key):
                record = recorded.get(file.info.name)
                facts, problems_of_file = _check_code(store, file.info, quick, record, check_source)
        except MissingError:
            yield EntryCheck(missing=True)
            continue
        except StoreError as error:
            problems_of_file = [("unreadable", error.reason)]
        problems = tuple(
            Problem(file.info.name, *problem, file.key_text) for problem in problems_of_file
        )
        by_record = file.info.name in recorded and not problems_of_file
        is_named = bool(file.source_key or (file.graph and file.graph.digest))
        proven = not quick and (is_named or by_record)
        yield EntryCheck(problems, proven=proven, facts=facts)


def _check_code(
    store: Store,
    info: FileInfo,
    quick: bool,
    recorded: RecordedDigest | None,
    check_source: Callable[[bytes], Found | None] | None,
) -> tuple[bool | None, Sequence[Found]]:
    """Rules 2, 7 and 8: what is wrong, and whether Python imports the kernel, or could."""
    is_source = info.name.endswith(".cpp")
    if is_source and (quick or not (check_source or recorded)):
        return None, ()
    data = store.read(info.name, limit=_HEADER_BYTES if quick else _MAX_SOURCE_BYTES)
    importable: bool | None = None
    problem: Found | None = None
    if not is_source:
        importable = b"PyInit_" in data
        problem = check_shared_object(data, info.size_bytes)
    elif check_source:
        importable = split_source(data).bindings is not None
        problem = check_source(data)
    if recorded and not problem and digest_of_code(data) != recorded.sha256:
        problem = "digest-mismatch", "not the bytes that were recorded when it was compiled"
        if not recorded.binding:
            problem = "changed-since-recorded", "compiled again by a run without jaxcache"
    return None if quick else importable, [problem] if problem else ()


def _check_source(store: Store, key: str, info: FileInfo) -> list[Found]:
    """Rule 1 for a generated ``.py``, which torch runs without a look at it."""
    if info.size_bytes > _MAX_SOURCE_BYTES:
        return [("unreadable", f"{info.size_bytes:,} bytes are too many")]
    if digest_of_text(store.read(info.name, limit=_MAX_SOURCE_BYTES)) == key[1:]:
        return []
    return [("digest-mismatch", "its code is not the one that it is named by; torch would run it")]


def check_beside(
    scan_result: TorchScan,
    files: Sequence[CodeFile],
    checks: Mapping[str, EntryCheck],
    options: VerifyOptions,  # noqa: ARG001 - what was not read has no facts
) -> Iterator[Problem]:
    """Yield missing files that graphs refer to (rule 6), and kernels with their sources."""
    inventory = scan_result.inventory
    damaged = {name for name, checked in checks.items() if _is_corrupt(checked)}
    fx = [g for g in inventory.graphs if g.tier == "fxgraph"]
    fx_keys = {g.key for g in fx if g.info.name not in damaged}
    names = {info.name for _, info in inventory.files()}
    for file in files:
        name, checked = file.info.name, checks[file.info.name]
        pair_name = paired_file(name)
        if pair_name in names:
            yield from _check_paired_file(name, checked, pair_name, checks.get(pair_name))
        facts = checked.facts
        if not isinstance(facts, GraphFacts) or facts.problems:
            continue
        if absent := [key for key in facts.references if key not in fx_keys]:
            if facts.bundled:
                continue
            state = "damaged" if any(g.key in absent for g in fx) else "missing"
            detail = f"refers to {', '.join(absent)}, {state}"
            yield Problem(name, "dangling-reference", detail, file.key_text)
        if facts.source_key and facts.source_key not in inventory.sources:
            detail = f"{facts.source_key}.py is not there; torch writes it again from the graph"
            yield Problem(name, "missing-source", detail, file.key_text)


def _is_corrupt(checked: EntryCheck) -> bool:
    return any(problem.kind in CORRUPT for problem in checked.problems)


def _check_paired_file(
    name: str, checked: EntryCheck, pair_name: str, other: EntryCheck | None
) -> Iterator[Problem]:
    """Yield problems of a source and its kernel, which are worthless without each other.

    Torch compiles any source that it finds, and loads any kernel.
    """
    if _is_corrupt(checked) and not (other and _is_corrupt(other)):
        detail = f"belongs to {name.rpartition('/')[2]}, which is damaged"
        yield Problem(pair_name, "source-mismatch", detail)
    elif checked.facts is True and other and other.facts is False and name.endswith(".cpp"):
        for half in (pair_name, name):
            yield Problem(half, "source-mismatch", "the kernel has no function to import it by")
