"""``ls`` and ``stats`` over graphs, as the same results that JAX's entries give."""

from collections.abc import Sequence
from pathlib import Path

from jaxcache.cache.listing import Listing, summarize
from jaxcache.cache.scan import Progress
from jaxcache.cache.select import Selection
from jaxcache.cache.stats import Stats, sum_up
from jaxcache.layouts.torch.index import GraphIndex
from jaxcache.layouts.torch.inventory import GraphFile
from jaxcache.layouts.torch.scan import Scan, look, make_scan, read_facts
from jaxcache.store.base import Store

#: Graphs that nobody has read yet and that a plain look reads by the way: about 2 s of work.
_READ_AT_ONCE = 500


def list_graphs(
    store: Store,
    *,
    keys: Sequence[str],
    filters: Sequence[str],
    sort: str,
    limit: int | None,
    heads: bool,
    details: bool,
    long: bool = False,
    index_folder: Path | None,
    now_ns: int,
    workers: int = 1,
    progress: Progress | None = None,
) -> Listing:
    """List a cache: the graphs that fit every KEY and filter, sorted, at most ``limit``.

    Args:
        heads, details: whether the output shows what is inside; then the index is asked, and
            graphs that it does not know are read, but no more than a plain look has time for.
        long: read all that are shown. So does a filter or an order that asks for what is
            inside, for all graphs.

    Raises:
        UsageError, NoCacheError
        JaxcacheError: a KEY fits nothing, or more than it may.
    """
    selection = Selection.parse(keys, filters, sort)
    contents = heads or details
    inside = selection.needs_heads or selection.needs_details
    index = _load(index_folder, store, now_ns) if contents or inside else None
    seen = look(store, index=index)
    files = {g.info.name: g for g in seen.inventory.graphs}
    if inside:
        seen = _read(store, seen, list(files.values()), index, workers, progress)
    chosen = selection.apply(seen.entries, now_ns)
    if contents and not inside:
        unknown = [files[e.file] for e in chosen[:limit] if e.file not in seen.facts]
        wanted = unknown if long else unknown[:_READ_AT_ONCE]
        seen = _read(store, seen, wanted, index, workers, progress)
        seen = _read(store, seen, _below(seen, wanted), index, workers, progress)
        read = {e.file: e for e in seen.entries}
        chosen = [read[e.file] for e in chosen if e.file in read]
    if index is not None:
        index.save(files)
    shown = {e.file for e in chosen}
    narrowed = bool(keys or filters)
    return Listing(
        cache_dir=store.url,
        entries=tuple(chosen[:limit]),
        summary=summarize(chosen),
        problems=tuple(p for p in seen.problems if not narrowed or p.file in shown),
    )


def _load(folder: Path | None, store: Store, now_ns: int) -> GraphIndex | None:
    return GraphIndex.load(folder, store.url, now_ns=now_ns) if folder else None


def _below(seen: Scan, files: Sequence[GraphFile]) -> list[GraphFile]:
    """The FX graphs that AOT graphs refer to and that were not read: their seconds are needed."""
    keys = {
        key
        for f in files
        if f.tier == "aotautograd" and f.info.name in seen.facts
        for key in seen.facts[f.info.name].references
    }
    return [
        g
        for g in seen.inventory.graphs
        if g.tier == "fxgraph" and g.key in keys and g.info.name not in seen.facts
    ]


def _read(
    store: Store,
    seen: Scan,
    files: Sequence[GraphFile],
    index: GraphIndex | None,
    workers: int,
    progress: Progress | None,
) -> Scan:
    if not files:
        return seen
    facts = read_facts(store, files, index=index, workers=workers, progress=progress)
    return make_scan(seen.inventory, seen.facts | facts, keeps_atime=store.keeps_atime)


def count_graphs(
    store: Store,
    folder: Path | None,
    *,
    now_ns: int,
    read: bool = True,  # noqa: ARG001 - graphs are opened anyway
    workers: int = 1,
    progress: Progress | None = None,
) -> Stats:
    """Count everything in a cache directory.

    Seconds and devices are told of the graphs that the index knows, and of as many others as a
    plain look has time for.

    Raises:
        NoCacheError: the directory cannot be listed.
    """
    index = _load(folder, store, now_ns)
    seen = look(store, index=index)
    unknown = [g for g in seen.inventory.graphs if g.info.name not in seen.facts]
    if len(unknown) <= _READ_AT_ONCE:
        seen = _read(store, seen, unknown, index, workers, progress)
    if index is not None:
        index.save(g.info.name for g in seen.inventory.graphs)
    files = seen.inventory.files()
    return sum_up(store.url, seen.entries, files, seen.problems, now_ns, codecs=False)
