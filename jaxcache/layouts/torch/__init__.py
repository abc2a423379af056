"""The caches of torch's compilers as a layout: AOTAutogradCache, FxGraphCache and their code."""

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


class TorchLayout:
    """See :class:`jaxcache.layouts.base.Layout`."""

    name = "torch"
    is_jax = False

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
        long: bool,
        index_folder: Path | None,
        now_ns: int,
        workers: int,
        progress: Progress | None,
    ) -> "Listing":
        """See :func:`jaxcache.layouts.torch.listing.list_graphs`."""
        from jaxcache.layouts.torch.listing import list_graphs

        return list_graphs(
            store, keys=keys, filters=filters, sort=sort, limit=limit,
            contents=heads or details, all_contents=long, index_folder=index_folder,
            now_ns=now_ns, workers=workers, progress=progress,
        )  # fmt: skip

    def count(
        self,
        store: Store,
        index_folder: Path | None,
        *,
        now_ns: int,
        read: bool,  # noqa: ARG002 - its graphs are opened anyway
        workers: int,
        progress: Progress | None,
    ) -> "Stats":
        """See :func:`jaxcache.layouts.torch.listing.count_graphs`."""
        from jaxcache.layouts.torch.listing import count_graphs

        return count_graphs(store, index_folder, now_ns=now_ns, workers=workers, progress=progress)

    def verify(
        self,
        store: Store,
        options: "VerifyOptions",
        *,
        now_ns: int,
        loader: "Loader | None",  # noqa: ARG002 - would run what the cache holds
        progress: Progress | None,
    ) -> "Verification":
        """See :func:`jaxcache.layouts.torch.verify.verify_graphs`."""
        from jaxcache.layouts.torch.verify import verify_graphs

        return verify_graphs(store, options, now_ns=now_ns, progress=progress)

    def execute_repair(
        self,
        store: Store,
        plan: "RepairPlan",
        *,
        young: frozenset[str],
        progress: Progress | None,
    ) -> "Repair":
        """See :func:`jaxcache.layouts.torch.repair.execute_repair`."""
        from jaxcache.layouts.torch.repair import execute_repair

        return execute_repair(store, plan, young=young, progress=progress)

    def restore(self, store: Store, *, keys: Sequence[str], dry_run: bool) -> "Restoration":
        """See :func:`jaxcache.layouts.torch.repair.restore`."""
        from jaxcache.layouts.torch.repair import restore

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
        """See :func:`jaxcache.layouts.torch.survey.plan_prune`."""
        from jaxcache.layouts.torch.survey import plan_prune

        return plan_prune(
            store, options, keep=keep, index_folder=index_folder, now_ns=now_ns,
            workers=workers, progress=progress,
        )  # fmt: skip

    def plan_removal(
        self,
        store: Store,
        keys: Sequence[str],
        *,
        index_folder: Path | None,
        now_ns: int,
        workers: int,
        progress: Progress | None,
    ) -> "PrunePlan":
        """See :func:`jaxcache.layouts.torch.survey.plan_removal`."""
        from jaxcache.layouts.torch.survey import plan_removal

        return plan_removal(
            store, keys, index_folder=index_folder, now_ns=now_ns, workers=workers,
            progress=progress,
        )  # fmt: skip

    def remove(
        self, store: Store, removals: "Sequence[Removal]", *, progress: Progress | None
    ) -> "Execution":
        """See :func:`jaxcache.layouts.torch.prune.remove`."""
        from jaxcache.layouts.torch.prune import remove

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
        """See :func:`jaxcache.layouts.torch.bundle.plan_export`."""
        from jaxcache.layouts.torch.bundle import plan_export

        return plan_export(
            store, keys=keys, filters=filters, since=since.reference if since else None,
            known=since.files if since else (), side_caches=side_caches, now_ns=now_ns,
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
        """See :func:`jaxcache.layouts.torch.bundle.plan_import`."""
        from jaxcache.layouts.torch.bundle import plan_import

        return plan_import(
            store, bundle, cache_dir=cache_dir, on_conflict=on_conflict, side_caches=side_caches,
            progress=progress,
        )  # fmt: skip

    def read_side(self, store: Store, progress: Progress | None) -> "Side":
        """See :func:`jaxcache.layouts.torch.sides.read_side`."""
        from jaxcache.layouts.torch.sides import read_side

        return read_side(store, progress)
