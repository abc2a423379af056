"""Choose what goes into a bundle; :mod:`jaxcache.cache.bundle.pack` then writes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxcache.cache.bundle.manifest import JAX, is_side_file
from jaxcache.cache.diff import DiffSide, Held
from jaxcache.cache.gate import Gate
from jaxcache.cache.inventory import EntryFile, Inventory
from jaxcache.cache.scan import Progress, ScanAids, scan
from jaxcache.cache.select import Selection
from jaxcache.entry.names import FileKind
from jaxcache.model import Entry, FileInfo, Problem
from jaxcache.store.base import Store


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The files to export, in the order of the bundle."""

    cache_dir: str
    files: tuple[tuple[EntryFile, FileInfo | None], ...]
    """Entries, with their ``-atime`` files."""
    side_files: tuple[FileInfo, ...]
    size_bytes: int
    left_out: tuple[Problem, ...]
    """Files that cannot be exported, with the reason."""
    since: str | None = None
    known: Mapping[str, Held] = field(default_factory=dict)
    """The entries by key of what ``since`` names: the same need not travel again."""
    layout: str = JAX
    """The layout of the cache; of any other than JAX everything is a side file."""
    warnings: tuple[str, ...] = ()
    """Warnings about the content, for whoever passes the bundle on."""


def plan_export(
    store: Store,
    *,
    keys: Sequence[str] = (),
    filters: Sequence[str] = (),
    since: DiffSide | None = None,
    only: Callable[[Entry], bool] | None = None,
    side_caches: bool | None = None,
    now_ns: int,
    progress: Progress | None = None,
) -> ExportPlan:
    """Choose entries as ``ls`` does.

    Args:
        since: leave out entries that this side has with the same payload.
        only: of those chosen, the entries for which this is true.
        side_caches: whether XLA's own caches go too; by default if nothing was selected.

    Raises:
        UsageError, NoCacheError
        JaxcacheError: a KEY fits nothing, or more than it may.
    """
    selection = Selection.parse(keys, filters, "key")
    depth = selection.scan_options(has_heads=True)
    seen = scan(store, ScanAids(progress=progress), deep=True, **depth)
    selected = selection.pick_sorted(seen.entries, now_ns)
    chosen = {e.file for e in selected if only is None or only(e)}
    gate = Gate()
    files, left_out = _portable(seen.inventory, chosen, gate)
    if side_caches is None:
        side_caches = not keys and not filters
    files_beside = (o.info for o in seen.inventory.others if side_caches and o.info.type == "file")
    sides = []
    for info in sorted(info for info in files_beside if is_side_file(info.name)):
        if reason := gate.refuse_name(info.name):
            left_out.append(Problem(info.name, "stray-file", reason))
        else:
            sides.append(info)
    return ExportPlan(
        store.url,
        tuple(files),
        tuple(sides),
        sum(f.info.size_bytes for f, _ in files) + sum(s.size_bytes for s in sides),
        tuple(left_out),
        since.reference if since else None,
        since.entries if since else {},
        warnings=() if files or sides or left_out else (f"there is no entry in {store.url}",),
    )


def _portable(
    inventory: Inventory, chosen: set[str], gate: Gate
) -> tuple[list[tuple[EntryFile, FileInfo | None]], list[Problem]]:
    files: list[tuple[EntryFile, FileInfo | None]] = []
    left_out: list[Problem] = []
    for entry in sorted(inventory.entries, key=lambda e: e.info.name):
        name = entry.info.name
        if name not in chosen:
            continue
        if reason := gate.refuse_name(name):
            left_out.append(Problem(name, "stray-file", reason, entry.key_text))
            continue
        atime = inventory.atimes.get(entry.key_text) if entry.kind is FileKind.ENTRY else None
        files.append((entry, atime))
    return files, left_out
