"""Caches of torch's compilers in bundles: the files as they are, each under the digest it needs.

A bundle carries kernels and compiler probes, is checked from end to end before anything is written,
and each name in it must be one that torch gives and contain the hash of its bytes.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from jaxcache.cache.bundle.format import Bundle, BundleError, ContentReader, check_path
from jaxcache.cache.diff import DiffSide
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.move import export_plan
from jaxcache.cache.move.plan import Item, MoveAction, Plan, Step, bundle_items
from jaxcache.cache.selection import Selection
from jaxcache.cache.verify.check import ImportPolicy
from jaxcache.cache.verify.run_checks import INFORMATIONAL
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
    TIERS,
    TorchKind,
    TorchName,
    digest_of,
    digest_of_text,
    parse_path,
)
from jaxcache.layouts.torch.pickled import MAX_BYTES
from jaxcache.layouts.torch.scan import TorchScan, scan
from jaxcache.model import FileInfo, Problem
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
    scan_result = scan(store)
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

    taken = tuple(export_plan.counted(steps(), len(bundle.manifest.files)))
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
