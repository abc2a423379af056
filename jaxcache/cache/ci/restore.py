"""Bring into a cache what fits this job, from a bundle that another job has left."""

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jaxcache.cache.bundle.compat import Compatibility, Host, Outlook, forecast
from jaxcache.cache.bundle.format import Bundle
from jaxcache.cache.bundle.importing import ImportAction, ImportPlan, plan_import, verify_bundle
from jaxcache.cache.bundle.manifest import BundleItem
from jaxcache.cache.bundle.unpack import Failure, execute_import
from jaxcache.cache.ci.baseline import take_baseline, write_baseline
from jaxcache.cache.ci.staging import SharedBundle
from jaxcache.cache.ledger.record import fold
from jaxcache.cache.scan import Progress
from jaxcache.store.base import Store


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The plan of a restore."""

    cache_dir: str
    source: str
    importing: ImportPlan | None
    """None where the source is missing or unusable."""
    outlooks: Compatibility
    left_out: int = 0
    """Entries of the source that are damaged."""
    present: int = 0
    """Entries that were not even fetched, because the cache has them."""
    untrusted: int = 0
    """Entries of the source that no trusted key has signed, where that is asked for."""
    trouble: str = ""
    """The reason why there is nothing to restore from."""
    is_missing: bool = False
    """Whether that is because the source is not there."""

    @property
    def fitting(self) -> tuple[BundleItem, ...]:
        """Entries that are there when it is done, because they may hit."""
        steps = self.importing.steps if self.importing else ()
        absent = (
            ImportAction.LEFT,
            ImportAction.BLOCKED,
            ImportAction.DAMAGED,
            ImportAction.UNTRUSTED,
        )
        return tuple(
            s.subject for s in steps if isinstance(s.subject, BundleItem) and s.action not in absent
        )

    @property
    def hit(self) -> bool:
        """Return whether the source has anything for this job."""
        return bool(self.fitting) or self.present > 0

    @property
    def stored_seconds(self) -> float:
        """The compile seconds of the entries that fit."""
        return math.fsum(map(item_seconds, self.fitting))


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of executing a plan."""

    plan: RestorePlan
    written: int = 0
    failed: tuple[Failure, ...] = ()
    looked_up_only: bool = False


def plan_restore(
    store: Store | None,
    fetched: SharedBundle,
    *,
    source: str,
    cache_dir: str,
    host: Host | None,
    everything: bool = False,
    allow_large: bool = False,
    progress: Progress | None = None,
) -> RestorePlan:
    """Check a bundle from end to end and choose what may hit here.

    Args:
        cache_dir: as JAX is going to be given it.
        store: the cache; None where its directory does not exist yet.
        source: as the user named it.
        host: the jax of the job; where none was asked, everything may hit.
        everything: also what cannot hit.
        allow_large: see :class:`jaxcache.cache.gate.Gate`.

    Raises:
        BundleError: the bundle is damaged.
    """
    outlooks = forecast(fetched.bundle.manifest, host, cache_dir)
    useless = {f.key for f in outlooks.forecasts if f.outlook is Outlook.MISS}
    bundle = verify_bundle(fetched.bundle, progress, allow_large=allow_large)
    left_out = fetched.damaged + len(bundle.refused or ())
    fits = {i.key for i in bundle.manifest.items if everything or i.key not in useless}
    cache_dir = os.path.abspath(cache_dir)
    importing = plan_import(
        store,
        bundle,
        cache_dir=cache_dir,
        side_caches=bool(fits),
        wanted=lambda item: item.key in fits,
    )
    return RestorePlan(
        cache_dir, source, importing, outlooks, left_out, fetched.present, fetched.untrusted
    )


def nothing_to_restore(
    cache_dir: str, source: str, trouble: str, *, is_missing: bool
) -> RestorePlan:
    """The plan where the source is missing or unusable: the job compiles, and saves."""
    unknown = Compatibility((), None)
    return RestorePlan(cache_dir, source, None, unknown, trouble=trouble, is_missing=is_missing)


def execute_restore(
    store: Store,
    bundle: Bundle | None,
    plan: RestorePlan,
    *,
    now_ns: int,
    progress: Progress | None = None,
) -> Restored:
    """Write what a plan says, and remember how the cache looks before the job.

    Raises:
        StoreError: that could not be written down.
    """
    written = 0
    failed: tuple[Failure, ...] = ()
    if bundle is not None and plan.importing is not None:
        done = execute_import(store, bundle, plan.importing, progress=progress)
        written, failed = len(done.written), done.failed
    write_baseline(store, take_baseline(store, source=plan.source, now_ns=now_ns))
    return Restored(plan, written, failed)


def item_seconds(item: BundleItem) -> float:
    """Return the compile seconds of an entry: as measured, else of its header."""
    known = fold(item.key, item.ledger).compile_seconds
    return float(item.compile_seconds) if known is None else known


def miss_reasons(outlooks: Compatibility) -> Sequence[tuple[str, int]]:
    """Return the reasons why entries cannot hit, the most frequent first."""
    missing = (f for f in outlooks.forecasts if f.outlook is Outlook.MISS)
    counts = Counter(f.reason for f in missing if f.reason)
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
