"""Look at a cache as far as a plan to remove something needs it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxcache.cache.entry_headers import HeaderRequest, read_facts
from jaxcache.cache.inventory import count_bytes
from jaxcache.cache.prune.plan import PrunePlan, plan_items, plan_removal, weighs_seconds
from jaxcache.cache.prune.removable import RemovableSet
from jaxcache.cache.scan import Progress, ScanAids
from jaxcache.cache.selection import REMOVAL_PREFIX, Selection, select_by_keys
from jaxcache.errors import UsageError
from jaxcache.options import PruneOptions
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.layouts.base import Layout, ScanResult


#: Entries that are opened to say what their removal costs, where nothing else asks for it.
_PRICED_AT_ONCE = 1_000


def plan_cache_prune(
    store: Store,
    layout: "Layout",
    options: PruneOptions,
    *,
    index_directory: Path | None = None,
    now_ns: int,
    workers: int = 1,
    progress: Progress | None = None,
) -> PrunePlan:
    """Scan a cache and plan its pruning, opening as few entries as the policy allows.

    Args:
        index_directory: where indexes are kept; None: without one.
        workers: processes to read with in a large directory.

    Raises:
        UsageError: ``no-bound``.
        NoCacheError
        UsageError: ``short-prefix``.
        JaxcacheError: ``no-match`` or ``ambiguous-key`` for ``options.keep``; ``no-record-of-use``
            where ``used_since`` would take entries of a cache that records no use at all.
    """
    options.check()
    scan_options: dict[str, Any] = {"now_ns": now_ns, "workers": workers, "progress": progress}
    prunable = find_prunable(
        store, layout, options, index_directory=index_directory, **scan_options
    )
    plan = plan_items(
        prunable.removable,
        prunable.entries,
        options,
        cache_dir=store.url,
        now_ns=now_ns,
        rank=layout.removals.removal_rank,
    )
    plan = replace(plan, uncounted_bytes=prunable.uncounted_bytes)
    return plan if prunable.has_seconds else _price(store, layout, plan, workers)


class Prunable(NamedTuple):
    """What a prune can choose from in one cache."""

    removable: RemovableSet
    entries: int
    uncounted_bytes: int
    """The size of the ledger, which no limit counts."""
    has_seconds: bool
    """Whether the compile seconds of all entries were read."""


def find_prunable(
    store: Store,
    layout: "Layout",
    options: PruneOptions,
    *,
    index_directory: Path | None,
    now_ns: int,
    workers: int,
    progress: Progress | None,
    with_seconds: bool = False,
) -> Prunable:
    """Scan a cache as far as the options of a prune need it.

    Args:
        with_seconds: read the compile seconds of all entries in any case.

    Raises:
        JaxcacheError: as :func:`plan_cache_prune`.
    """
    selection = Selection.parse((), options.filters)
    needed = selection.scan_options(has_headers=layout.has_headers)
    headers = with_seconds or weighs_seconds(options) or needed["headers"]
    scan_options: dict[str, Any] = {"now_ns": now_ns, "workers": workers, "progress": progress}
    scan_result = _look(
        store, layout, index_directory, headers=headers, details=needed["details"], **scan_options
    )
    # Each must fit an entry, so that a typing error deletes nothing.
    kept = (
        {e.key for e in select_by_keys(scan_result.entries, options.keep)}
        if options.keep
        else set()
    )
    if options.filters:
        kept |= {e.key for e in scan_result.entries} - {
            e.key for e in selection.pick(scan_result.entries, now_ns)
        }
    removable = layout.removals.find_removable(
        store, scan_result, options, now_ns=now_ns, keep=kept
    )
    return Prunable(
        removable,
        len(scan_result.entries),
        count_bytes(scan_result.inventory.files())[1],
        has_seconds=headers,
    )


def plan_cache_removal(
    store: Store,
    layout: "Layout",
    keys: Sequence[str] = (),
    filters: Sequence[str] = (),
    *,
    index_directory: Path | None = None,
    now_ns: int,
    workers: int = 1,
    progress: Progress | None = None,
) -> PrunePlan:
    """Plan to remove exactly the entries that KEY arguments and filters choose.

    Raises:
        NoCacheError
        UsageError: ``short-prefix``.
        JaxcacheError: ``no-match``, ``ambiguous-key``, or ``pinned``.
    """
    scan_options: dict[str, Any] = {"now_ns": now_ns, "workers": workers, "progress": progress}
    if not (keys or filters):
        raise UsageError("nothing is selected to be removed", hint="give a KEY, or --filter")
    selection = Selection.parse(keys, filters)
    scan_options |= selection.scan_options(has_headers=layout.has_headers)
    scan_result = _look(store, layout, index_directory, **scan_options)
    chosen = selection.pick(scan_result.entries, now_ns, shortest_prefix=REMOVAL_PREFIX)
    removable = layout.removals.find_removable(store, scan_result, None, now_ns=now_ns, keep=())
    plan = plan_removal(
        removable,
        scan_result.entries,
        chosen,
        cache_dir=store.url,
        rank=layout.removals.removal_rank,
    )
    return _price(store, layout, plan, workers)


def _look(
    store: Store,
    layout: "Layout",
    directory: Path | None,
    *,
    headers: bool,
    details: bool,
    now_ns: int,
    workers: int,
    progress: Progress | None,
) -> "ScanResult":
    details |= not layout.has_headers  # else nothing tells which files belong together
    index = None
    if directory and (headers or details or store.remote):
        index = layout.load_index(directory, store.url, now_ns=now_ns)
    aids = ScanAids(index, workers, progress)
    scan_result = layout.scans.scan(store, aids, headers=headers, details=details, deep=True)
    if index is not None:
        index.save(entry.file for entry in scan_result.entries)
    return scan_result


def _price(store: Store, layout: "Layout", plan: PrunePlan, workers: int) -> PrunePlan:
    """Fill in the compile seconds of removals that a scan without headers left unknown.

    Not where that takes a request for each, or longer than to remove them.
    """
    unknown = [r for r in plan.removals if r.key is not None and r.compile_seconds is None]
    if store.remote or not layout.has_headers or len(unknown) > _PRICED_AT_ONCE:
        return plan
    requests = [HeaderRequest(r.file.name, r.file.size_bytes, None, True) for r in unknown]
    headers = (facts.header for facts in read_facts(store, requests, workers=workers))
    seconds = {
        r.name: float(header.compile_seconds)
        for r, header in zip(requests, headers, strict=True)
        if header and header.compile_seconds is not None
    }
    removals = (
        r._replace(compile_seconds=seconds.get(r.file.name, r.compile_seconds))
        for r in plan.removals
    )
    return replace(plan, removals=tuple(removals))
