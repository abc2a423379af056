"""Look at a cache as far as a plan to remove needs it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jaxcache.cache.entry_headers import HeaderRequest, read_facts
from jaxcache.cache.inventory import count_bytes
from jaxcache.cache.prune.plan import PrunePlan, plan_from, plan_items, weighs_seconds
from jaxcache.cache.prune.removable import PlanBuilder, RemovableSet
from jaxcache.cache.prune.removal import RemovalReason
from jaxcache.cache.selection import REMOVAL_PREFIX, Selection, select_by_keys
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.model import Depth, Entry, ScanResult
from jaxcache.options import PruneOptions

if TYPE_CHECKING:
    from jaxcache.layouts import ReadCache

#: The most entries to open only to report the cost of their removal.
_PRICED_AT_ONCE = 1_000


def plan_cache_prune(cache: "ReadCache", options: PruneOptions) -> PrunePlan:
    """Scan a cache and plan its pruning, opening as few entries as the policy allows.

    Raises:
        UsageError: ``no-bound``.
        NoCacheError
        UsageError: ``short-prefix``.
        JaxcacheError: ``no-match`` or ``ambiguous-key`` for ``options.keep``; ``no-record-of-use``
            where ``used_since`` would take entries of a cache that records no use at all.
    """
    options.check()
    selection = Selection.parse((), options.filters)
    depth = selection.scan_depth(has_headers=cache.layout.has_headers)
    if weighs_seconds(options):
        depth = max(depth, Depth.OPENED)
    scan_result = _scan(cache, depth)
    # Each must fit an entry, so that a typing error deletes nothing.
    kept = (
        {e.key for e in select_by_keys(scan_result.entries, options.keep)}
        if options.keep
        else set()
    )
    if options.filters:
        kept |= {e.key for e in scan_result.entries} - {
            e.key for e in selection.pick(scan_result.entries, cache.now_ns)
        }
    removable = cache.layout.removals.find_removable(
        cache.store, scan_result, options, now_ns=cache.now_ns, keep=kept
    )
    plan = plan_items(removable, options, cache_dir=cache.store.url, now_ns=cache.now_ns)
    plan = replace(plan, uncounted_bytes=count_bytes(scan_result.inventory.files())[1])
    return plan if depth >= Depth.OPENED else _price(cache, plan)


def plan_cache_removal(
    cache: "ReadCache", keys: Sequence[str] = (), filters: Sequence[str] = ()
) -> PrunePlan:
    """Plan to remove exactly the entries that KEY arguments and filters choose.

    Raises:
        NoCacheError
        UsageError: ``short-prefix``.
        JaxcacheError: ``no-match``, ``ambiguous-key``, or ``pinned``.
    """
    if not (keys or filters):
        raise UsageError("nothing is selected to be removed", hint="give a KEY, or --filter")
    selection = Selection.parse(keys, filters)
    scan_result = _scan(cache, selection.scan_depth(has_headers=cache.layout.has_headers))
    chosen = selection.pick(scan_result.entries, cache.now_ns, shortest_prefix=REMOVAL_PREFIX)
    removable = cache.layout.removals.find_removable(
        cache.store, scan_result, None, now_ns=cache.now_ns, keep=()
    )
    return _price(cache, plan_removal(removable, chosen, cache_dir=cache.store.url))


def plan_removal(removable: RemovableSet, chosen: Sequence[Entry], *, cache_dir: str) -> PrunePlan:
    """Plan to remove exactly these entries, what only they need, and what is useless without them.

    Raises:
        JaxcacheError: ``pinned`` where one of them is.
    """
    wanted = {e.file for e in chosen}
    builder = PlanBuilder(removable)
    for item in removable.items:
        name = item.removal.file.name
        if name in wanted and item.held_by == "pinned":
            raise JaxcacheError(
                f"{item.removal.key} is pinned",
                code="pinned",
                hint=f"jaxcache pin --remove {item.removal.key}",
            )
        if name in wanted or any(files <= wanted for files in item.alternatives):
            builder.take(item, "requested")
    gone = {r.file.name for r in builder.removals}
    parts = {p.file.name: p for item in removable.items for p in item.parts}
    builder.removals += [parts[name] for name in wanted - gone if name in parts]
    # Files of other entries do not matter; a file without an entry may belong to any.
    others = (parts.keys() | {item.removal.file.name for item in removable.items}) - gone - wanted
    unread = {name: why for name, why in removable.unread.items() if name not in others}
    unmet: tuple[RemovalReason, ...] = ("requested",) if unread else ()
    return replace(plan_from(builder, cache_dir), unmet=unmet, unread=unread)


def _scan(cache: "ReadCache", depth: Depth) -> "ScanResult":
    if not cache.layout.has_headers:  # only the contents show which files belong together
        depth = Depth.DECODED
    return cache.scan(depth, indexed=depth >= Depth.OPENED or cache.store.remote)


def _price(cache: "ReadCache", plan: PrunePlan) -> PrunePlan:
    """Fill in the compile seconds of removals that a scan without headers left unknown.

    Not where that takes a request for each, or longer than to remove them.
    """
    unknown = [r for r in plan.removals if r.key is not None and r.compile_seconds is None]
    has_headers = cache.layout.has_headers
    if cache.store.remote or not has_headers or len(unknown) > _PRICED_AT_ONCE:
        return plan
    requests = [HeaderRequest(r.file.name, r.file.size_bytes, None, True) for r in unknown]
    headers = (facts.header for facts in read_facts(cache.store, requests, workers=cache.workers))
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
