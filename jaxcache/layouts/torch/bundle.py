"""Caches of torch's compilers in bundles: the files as they are, each under the digest it needs.

``torch.compiler.save_cache_artifacts()`` leaves kernels out, so that loading it runs the C++
compiler again, unpickles while it loads, and takes any path for a key. A bundle carries kernels
and compiler probes, is checked from end to end before anything is written, and each name in it must
be one that torch gives and contain the hash of its bytes.

The format of ``save_cache_artifacts()`` (``torch/compiler/_cache.py`` and
``torch/utils/_appending_byte_serializer.py``, 2.13), all numbers big-endian: CRC-32 of the rest (4
bytes), version 1 (8), then until the end a type, a count (8), and as many pairs of key and bytes.
Bytes are led by their length (8); type and key are base64 of UTF-8.
"""

import base64
import io
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from jaxcache.cache.bundle.format import Bundle, BundleError, ContentReader, check_path
from jaxcache.cache.diff import DiffSide
from jaxcache.cache.files import scratch_directory
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.move import export_plan
from jaxcache.cache.move.bundle_file import make_temporary_bundle
from jaxcache.cache.move.plan import Item, MoveAction, Plan, Step, bundle_items
from jaxcache.cache.scan import ScanAids
from jaxcache.cache.selection import Selection
from jaxcache.cache.verify.check import ImportPolicy
from jaxcache.cache.verify.run_checks import INFORMATIONAL
from jaxcache.core.system import open_regular
from jaxcache.errors import system_errors_as
from jaxcache.layouts.torch.check import check_files, files_to_check
from jaxcache.layouts.torch.graph import read_graph
from jaxcache.layouts.torch.inventory import (
    TorchInventory,
    check_shared_object,
    dependencies_of,
    resolve_dependencies,
    take_inventory,
)
from jaxcache.layouts.torch.names import (
    AOT_DIR,
    FX_DIR,
    TIERS,
    TorchKind,
    TorchName,
    digest_of,
    digest_of_text,
    parse_path,
)
from jaxcache.layouts.torch.pickled import MAX_BYTES
from jaxcache.layouts.torch.scan import TorchScan, scan
from jaxcache.model import FileInfo, Problem, Progress
from jaxcache.options import VerifyOptions
from jaxcache.store.base import Store
from jaxcache.units import join_some

#: What travels, in the order of writing: torch must never find a graph before its parts.
_TRAVELS = (
    TorchKind.PROBE,
    TorchKind.KERNEL,
    TorchKind.KERNEL_SOURCE,
    TorchKind.TRITON,
    TorchKind.AUTOTUNE,
    TorchKind.SYSTEM,
    TorchKind.UNREAD,
    TorchKind.SOURCE,
    TorchKind.FX,
    TorchKind.AOT,
    TorchKind.PRECOMPILED,
)
#: Goes along only where everything does.
_COMMON = frozenset(_TRAVELS[:1] + _TRAVELS[3:7])
_HEAD_BYTES = 64
_SHOWN_NAMES = 5


def plan_export(
    store: Store,
    *,
    keys: Sequence[str] = (),
    filters: Sequence[str] = (),
    since: DiffSide | None = None,
    side_caches: bool | None = None,
    now_ns: int,
    progress: Progress | None = None,
) -> export_plan.ExportPlan:
    """Choose graphs as ``ls`` does, and what exists for them.

    Args:
        since: leave out the files that this side has.
        side_caches: whether Triton's, autotuning's and the system's files go too, and compiler
            probes; by default if nothing was selected.

    Raises:
        UsageError, NoCacheError
        JaxcacheError: a KEY fits nothing, or more than it may.
    """
    selection = Selection.parse(keys, filters, "key")
    scan_result = scan(store, ScanAids(progress=progress))
    chosen = {e.file for e in selection.pick_sorted(scan_result.entries, now_ns)}
    everything = not keys and not filters
    wanted = dict(_chosen_files(store, scan_result, chosen, everything=everything))
    if everything if side_caches is None else side_caches:
        common = (info for info, kind in scan_result.inventory.others if kind in _COMMON)
        wanted |= {info.name: info for info in common if info.type == "file"}
    damaged = _damaged_files(store, scan_result, chosen, VerifyOptions(keys=keys, filters=filters))
    left_out = {p.file: p for p in damaged if p.file in wanted}
    policy = ImportPolicy()
    for name in wanted:
        if reason := check_path(name) or policy.name_error(name):
            left_out.setdefault(name, Problem(name, "stray-file", reason))
    files = [info for name, info in wanted.items() if name not in left_out]
    files.sort(key=lambda info: (_TRAVELS.index(parse_path(info.name).kind), info.name))
    stray = [
        Step(Item(p.file, p.key, 0, 0), MoveAction.STRAY, p.detail, p.kind)
        for p in left_out.values()
    ]
    present = since.files if since else ()
    others = [
        Step(
            Item(i.name, None, i.size_bytes, i.mtime_ns, info=i),
            MoveAction.PRESENT if i.name in present else MoveAction.WRITE,
        )
        for i in files
    ]
    return export_plan.ExportPlan(
        store.url,
        (*stray, *others),
        Ledger(),
        now_ns,
        since.reference if since else None,
        layout="torch",
        warnings=(*_warnings(scan_result, chosen), *_unread_warning(i.name for i in files)),
    )


def _damaged_files(
    store: Store, scan_result: TorchScan, chosen: Collection[str], options: VerifyOptions
) -> Iterator[Problem]:
    """Check what is about to travel as ``verify`` does: a bundle with damage would be refused."""
    files = files_to_check(store, scan_result, chosen, options)
    for _, checked in check_files(store, scan_result, files, options):
        yield from (p for p in checked.problems if p.kind not in INFORMATIONAL)


def _chosen_files(
    store: Store, scan_result: TorchScan, chosen: Collection[str], *, everything: bool
) -> Iterator[tuple[str, FileInfo]]:
    inventory = scan_result.inventory
    if everything:
        for kind, info in inventory.files():
            if kind in _TRAVELS and kind not in _COMMON and info.type == "file":
                yield info.name, info
        return
    needs = resolve_dependencies(store, inventory)
    for graph in inventory.graphs:
        if graph.info.name in chosen:
            yield graph.info.name, graph.info
            for info in dependencies_of(graph, scan_result.facts, needs, inventory):
                yield info.name, info


def _warnings(scan_result: TorchScan, chosen: Collection[str]) -> tuple[str, ...]:
    """Warn of private data that graphs carry along."""
    names = sorted(
        {
            n
            for file in chosen
            if file in scan_result.facts
            for n in scan_result.facts[file].environment
        }
    )
    if not chosen:
        return ()
    shown = f" and the values of {join_some(names, _SHOWN_NAMES)}" if names else ""
    return (f"graphs hold lines of source, paths{shown}",)


def _unread_warning(names: Iterable[str]) -> Iterator[str]:
    unread = [name for name in names if parse_path(name).kind is TorchKind.UNREAD]
    if unread:
        shown = join_some(unread, _SHOWN_NAMES)
        yield f"files of kinds that jaxcache does not know are carried unread: {shown}"


def plan_import(
    store: Store | None,
    bundle: Bundle,
    *,
    cache_dir: str,
    on_conflict: str = "keep",
    side_caches: bool = True,
    progress: Progress | None = None,
) -> Plan:
    """Check every file of a bundle against its name, look at what is there, and decide.

    Raises:
        BundleError: a name is not one of torch's, or not that of its bytes.
        UsageError, JaxcacheError: see :func:`jaxcache.cache.move.import_bundle.plan_import`.
    """
    inventory = take_inventory(store) if store else TorchInventory()
    present = {info.name: info for _, info in inventory.files()}
    content = ContentReader(bundle)
    look = export_plan.look_at_payloads(store, on_conflict)
    policy = ImportPolicy(present)

    def compare(item: Item, info: FileInfo) -> Step:
        step = look(item, info)
        return _heal(store, step, info) if store and step.differs else step

    def steps() -> Iterator[Step]:
        for item in bundle_items(bundle.manifest):
            path = parse_path(item.name)
            if path.kind not in _TRAVELS:
                raise BundleError(f"it names {item.name[:300]!r}, which torch does not make")
            _check_content(item, path, content)
            if path.kind in _COMMON and path.kind is not TorchKind.PROBE and not side_caches:
                continue
            yield export_plan.choose(item, present, policy, compare)

    taken = tuple(export_plan.counted(steps(), len(bundle.manifest.files), progress))
    export_plan.refuse_conflicts(taken, on_conflict)
    return Plan(bundle.name, cache_dir, taken)


def _check_content(file: Item, path: TorchName, content: ContentReader) -> None:
    """Read one file and hold it against its name, without keeping it."""
    if file.size_bytes > MAX_BYTES or path.kind not in _CHECKED:
        if path.digest or path.kind in TIERS:
            raise BundleError(f"{file.name} in it is larger than the {MAX_BYTES} bytes allowed")
        return
    problem = name_error(b"".join(content.take(file.name)), path)
    if problem:
        raise BundleError(f"{file.name} in the bundle is damaged: {problem}")


_CHECKED = frozenset({*TIERS, TorchKind.SOURCE, TorchKind.KERNEL})


def name_error(data: bytes, path: TorchName) -> str | None:
    """Return why bytes cannot have a name of torch's; None if they can."""
    if path.kind is TorchKind.SOURCE:
        fits = digest_of_text(data) == path.digest
        return None if fits else "its code is not the one that it is named by"
    if path.kind is TorchKind.KERNEL:
        bad = check_shared_object(data[:_HEAD_BYTES], len(data))
        return bad[1] if bad else None
    if tier := TIERS.get(path.kind):
        problems = read_graph(data, tier, path.key or "", path.digest or "").problems
        return problems[0][1] if problems else None
    return None


def _heal(store: Store, step: Step, present: FileInfo) -> Step:
    """Find out whether the file there is damaged, or the same by another digest."""
    item = step.item
    path = parse_path(step.name)
    data = store.read(present.name, limit=MAX_BYTES + 1)
    if path.kind in _CHECKED and (problem := name_error(data, path)):
        return Step(item, MoveAction.HEAL, problem, there=present)
    if path.digest and digest_of(data) == path.digest:
        return Step(item, MoveAction.SAME)
    return step


_MAX_FILE_BYTES = 4 << 30
_CHECKSUM_BYTES = 4
_NUMBER_BYTES = 8
_VERSION = (1).to_bytes(_NUMBER_BYTES, "big")
_MAX_KEY_BYTES = 4096


class Artifact(NamedTuple):
    """One thing that torch saved."""

    type: str
    key: str
    content: bytes


def is_artifacts(path: str) -> bool:
    """Whether a file begins as torch's artifacts do."""
    try:
        with open_regular(path) as file:
            return file.read(_CHECKSUM_BYTES + _NUMBER_BYTES)[_CHECKSUM_BYTES:] == _VERSION
    except OSError:
        return False


def _read_artifacts(path: str) -> tuple[dict[str, bytes], tuple[Problem, ...]]:
    """Return files by path below the cache directory; nothing is believed, or unpickled.

    With them come the artifacts that are damaged, name no place in a cache, or have none outside
    torch.

    Raises:
        BundleError: the file is damaged as a whole.
    """
    with (
        system_errors_as(BundleError, f"cannot read {path}", hint=None),
        open_regular(path) as file,
    ):
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise BundleError(f"{path} is larger than {_MAX_FILE_BYTES} bytes", hint=None)
    files: dict[str, bytes] = {}
    left_out: list[Problem] = []
    for artifact in parse_artifacts(data):
        name = _place(artifact)
        if name is None:
            detail = f"a key that names no place in a cache: {artifact.key[:80]!r}"
            if artifact.type not in _PLACES:
                detail = f"artifacts of the type {artifact.type[:40]!r} are torch's own business"
            left_out.append(Problem(artifact.key[:200], "stray-file", detail))
        elif problem := name_error(artifact.content, parse_path(name)):
            left_out.append(Problem(name, "bad-payload", problem, artifact.key))
        else:
            files[name] = artifact.content
    return files, tuple(left_out)


_PLACES = frozenset({"aot_autograd", "inductor", "autotune"})


def _place(artifact: Artifact) -> str | None:
    """Return the path where torch would write it; None where the key names no such path."""
    key = artifact.key
    digest = digest_of(artifact.content)
    name, kind = {
        "aot_autograd": (f"{AOT_DIR}/{key}/{digest}", TorchKind.AOT),
        "inductor": (f"{FX_DIR}/{key[1:3]}/{key}/{digest}", TorchKind.FX),
        "autotune": (key, TorchKind.AUTOTUNE),
    }.get(artifact.type, ("", TorchKind.STRAY))
    return name if name and parse_path(name).kind is kind else None


def parse_artifacts(data: bytes) -> Iterator[Artifact]:
    """Yield what is in the bytes of a file of artifacts.

    Raises:
        BundleError: the checksum is wrong, or a length leads out of the file.
    """
    checksum = int.from_bytes(data[:_CHECKSUM_BYTES], "big")
    if zlib.crc32(memoryview(data)[_CHECKSUM_BYTES:]) != checksum:
        raise BundleError("these artifacts are damaged: their checksum is wrong", hint=None)
    stream = io.BytesIO(data)
    stream.seek(_CHECKSUM_BYTES)
    if _take(stream, _NUMBER_BYTES) != _VERSION:
        raise BundleError("these artifacts are of another version than 1", hint=None)
    while stream.tell() < len(data):
        kind = _text(stream)
        for _ in range(_number(stream)):
            yield Artifact(kind, _text(stream), _take(stream, _number(stream)))


def _take(stream: io.BytesIO, size: int) -> bytes:
    if size > len(stream.getbuffer()) - stream.tell():
        raise BundleError("these artifacts are cut off, or a length in them is wrong", hint=None)
    return stream.read(size)


def _number(stream: io.BytesIO) -> int:
    return int.from_bytes(_take(stream, _NUMBER_BYTES), "big")


def _text(stream: io.BytesIO) -> str:
    data = _take(stream, _number(stream))
    if len(data) > _MAX_KEY_BYTES:
        raise BundleError("a key in these artifacts is too long", hint=None)
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError as error:
        raise BundleError("a key in these artifacts is not a string", hint=None) from error


@contextmanager
def as_bundle(path: str) -> Iterator[tuple[Bundle, tuple[Problem, ...]]]:
    """Yield artifacts as a temporary bundle, and those that cannot be imported.

    Raises:
        BundleError
    """
    from jaxcache.store.local import LocalStore

    files, left_out = _read_artifacts(path)
    with scratch_directory("torch") as directory:
        store = LocalStore(directory)
        for name, content in files.items():
            store.write(name, [content])
        bundle, _ = make_temporary_bundle(store, plan_export(store, now_ns=0))
    with bundle.file:
        yield bundle, left_out
