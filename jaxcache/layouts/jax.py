"""JAX's persistent compilation cache as a layout: the operations of :mod:`jaxcache.cache`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxcache.layouts.base import Progress
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.cache.bundle.export import ExportPlan
    from jaxcache.cache.bundle.format import Bundle
    from jaxcache.cache.bundle.importing import ImportPlan
    from jaxcache.cache.diff import Side
    from jaxcache.cache.listing import Listing
    from jaxcache.cache.prune.plan import PrunePlan
    from jaxcache.cache.prune.removal import Execution, Removal
    from jaxcache.cache.stats import Stats
    from jaxcache.cache.verify.examine import Loader, Verification
    from jaxcache.cache.verify.quarantine import Restoration
    from jaxcache.cache.verify.repair import Repair, RepairPlan
    from jaxcache.options import PruneOptions, VerifyOptions


class JaxLayout:
    """See :class:`jaxcache.layouts.base.Layout`."""

    name = "jax"
    is_jax = True

    def list_cache(
        self,
        store: Store,
        *,
        keys: Sequence[str],
        filters: Sequence[str],
        sort: str,
        limit: int | None,
        heads: bool,
        details: bool,
        long: bool,  # noqa: ARG002 - every entry that is shown is decoded anyway
        index_folder: Path | None,
        now_ns: int,
        workers: int,
        progress: Progress | None,
    ) -> "Listing":
        """See :func:`jaxcache.cache.listing.list_cache`."""
        from jaxcache.cache.listing import list_cache

        index = None
        if index_folder and (heads or details or filters or sort != "key" or store.remote):
            from jaxcache.cache.index import Index

            index = Index.load(index_folder, store.url, now_ns=now_ns)
        return list_cache(
            store, keys=keys, filters=filters, sort=sort, limit=limit, heads=heads,
            details=details, index=index, now_ns=now_ns, workers=workers, progress=progress,
        )  # fmt: skip

    def count(
        self,
        store: Store,
        index_folder: Path | None,
        *,
        now_ns: int,
        read: bool,
        workers: int,
        progress: Progress | None,
    ) -> "Stats":
        """See :func:`jaxcache.cache.snapshot.recall_or_count`."""
        if index_folder is None:
            from jaxcache.cache.stats import count_cache

            return count_cache(store, now_ns=now_ns, read=read, workers=workers, progress=progress)
        from jaxcache.cache.snapshot import recall_or_count

        return recall_or_count(
            store, index_folder, now_ns=now_ns, read=read, workers=workers, progress=progress
        )

    def verify(
        self,
        store: Store,
        options: "VerifyOptions",
        *,
        now_ns: int,
        loader: "Loader | None",
        progress: Progress | None,
    ) -> "Verification":
        """See :func:`jaxcache.cache.verify.examine.verify`."""
        from jaxcache.cache.verify.examine import verify

        return verify(store, options, now_ns=now_ns, loader=loader, progress=progress)

    def execute_repair(
        self,
        store: Store,
        plan: "RepairPlan",
        *,
        young: frozenset[str],
        progress: Progress | None,
    ) -> "Repair":
        """See :func:`jaxcache.cache.verify.repair.execute_repair`."""
        from jaxcache.cache.verify.repair import execute_repair

        return execute_repair(store, plan, young=young, progress=progress)

    def restore(self, store: Store, *, keys: Sequence[str], dry_run: bool) -> "Restoration":
        """See :func:`jaxcache.cache.verify.quarantine.restore`."""
        from jaxcache.cache.verify.quarantine import restore

        return restore(store, keys=keys, dry_run=dry_run)

    def plan_prune(
        self,
        store: Store,
        options: "PruneOptions",
        *,
        keep: Sequence[str],
        index_folder: Path | None,
        now_ns: int,
        workers: int,
        progress: Progress | None,
    ) -> "PrunePlan":
        """See :func:`jaxcache.cache.prune.survey.plan_cache_prune`.

        The index only saves requests: the headers of local files are as cheap to read.
        """
        from jaxcache.cache.ledger.segments import Ledger
        from jaxcache.cache.prune.survey import plan_cache_prune

        ledger = Ledger.load(store)
        index = None
        if store.remote and index_folder:
            from jaxcache.cache.index import Index

            index = Index.load(index_folder, store.url, now_ns=now_ns)
        return plan_cache_prune(
            store, options, keep=keep, lookup=ledger.record if ledger else None, now_ns=now_ns,
            index=index, workers=workers, progress=progress,
        )  # fmt: skip

    def plan_removal(
        self,
        store: Store,
        keys: Sequence[str],
        *,
        index_folder: Path | None,  # noqa: ARG002 - the plan reads headers, which is as cheap
        now_ns: int,
        workers: int,
        progress: Progress | None,
    ) -> "PrunePlan":
        """See :func:`jaxcache.cache.prune.survey.plan_cache_removal`."""
        from jaxcache.cache.ledger.segments import Ledger
        from jaxcache.cache.prune.survey import plan_cache_removal

        ledger = Ledger.load(store)
        return plan_cache_removal(
            store, keys, lookup=ledger.record if ledger else None, now_ns=now_ns,
            workers=workers, progress=progress,
        )  # fmt: skip

    def remove(
        self, store: Store, removals: "Sequence[Removal]", *, progress: Progress | None
    ) -> "Execution":
        """See :func:`jaxcache.cache.prune.evict.remove`."""
        from jaxcache.cache.prune.evict import remove

        return remove(store, removals, progress=progress)

    def plan_export(
        self,
        store: Store,
        *,
        keys: Sequence[str],
        filters: Sequence[str],
        since: "Side | None",
        side_caches: bool | None,
        now_ns: int,
        progress: Progress | None,
    ) -> "ExportPlan":
        """See :func:`jaxcache.cache.bundle.export.plan_export`."""
        from jaxcache.cache.bundle.export import plan_export
        from jaxcache.cache.diff import known_in

        return plan_export(
            store, keys=keys, filters=filters, since=since.reference if since else None,
            known=known_in(since) if since else None, side_caches=side_caches, now_ns=now_ns,
            progress=progress,
        )  # fmt: skip

    def plan_import(
        self,
        store: Store | None,
        bundle: "Bundle",
        *,
        cache_dir: str,
        on_conflict: str,
        side_caches: bool,
        progress: Progress | None,
    ) -> "ImportPlan":
        """See :func:`jaxcache.cache.bundle.importing.plan_import`."""
        from jaxcache.cache.bundle.importing import plan_import

        return plan_import(
            store, bundle, cache_dir=cache_dir, on_conflict=on_conflict, side_caches=side_caches,
            progress=progress,
        )  # fmt: skip

    def read_side(self, store: Store, progress: Progress | None) -> "Side":
        """See :func:`jaxcache.cache.diff.read_cache`."""
        from jaxcache.cache.diff import read_cache

        return read_cache(store, progress)
