"""The Python interface: what the command line does, as functions that return data.

Whatever changes a cache is a plan first, which can be looked at, and then executed::

    cache = jaxcache.open("/path/to/cache")
    plan = cache.plan_prune(max_size="10GB", policy="cost")
    print(len(plan.removals), plan.size_bytes_after)
    cache.execute(plan)

Sizes are bytes, or text such as ``"10GB"``; durations are seconds, or text such as ``"30d"``.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from jaxcache.cache.listing import Listing, list_cache
from jaxcache.cache.scan import Progress
from jaxcache.cache.stats import Stats, count_cache
from jaxcache.model import Entry
from jaxcache.store import make_store, open_store
from jaxcache.store.base import Store
from jaxcache.units import parse_duration_seconds, parse_size_bytes

if TYPE_CHECKING:
    from jaxcache.cache.bundle.importing import ImportPlan
    from jaxcache.cache.bundle.manifest import Manifest
    from jaxcache.cache.bundle.unpack import Imported
    from jaxcache.cache.diff import Diff
    from jaxcache.cache.prune.plan import PrunePlan
    from jaxcache.cache.prune.removal import Execution
    from jaxcache.cache.seal import SealPlan, SealResult
    from jaxcache.cache.show import Shown
    from jaxcache.cache.verify.examine import Verification
    from jaxcache.cache.verify.repair import Repair, RepairPlan
    from jaxcache.warm.report import Report

Size = int | str
Duration = float | str


class Cache:
    """One cache, in a directory or an object store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __repr__(self) -> str:
        return f"Cache({self.store.url!r})"

    # Looking

    def entries(self) -> Iterator[Entry]:
        """Yield every entry, by key; see :class:`jaxcache.model.Entry` for what it tells."""
        return iter(self.select().entries)

    def select(
        self,
        *keys: str,
        filters: Sequence[str] = (),
        sort: str = "key",
        limit: int | None = None,
        details: bool = False,
        progress: Progress | None = None,
    ) -> Listing:
        """List entries as ``jaxcache ls`` does.

        Args:
            keys: full keys, unique prefixes, or module globs; none for all.
            filters: expressions such as ``"size>1MB"``.
            sort: a field, with ``:asc`` or ``:desc`` behind it.
            details: decode entries, for platform, target, signature and source.
            progress: called with (done, total) now and then.

        Raises:
            UsageError: a filter or an order that cannot be read.
            JaxcacheError: a key that fits nothing, or more than it may.
        """
        return list_cache(
            self.store, keys=keys, filters=filters, sort=sort, limit=limit, details=details,
            heads=True, now_ns=time.time_ns(), progress=progress,
        )  # fmt: skip

    def stats(self, *, progress: Progress | None = None) -> Stats:
        """Count everything in the directory, as ``jaxcache stats`` does."""
        return count_cache(self.store, now_ns=time.time_ns(), progress=progress)

    def show(self, key: str) -> "Shown":
        """Everything inside one entry; a glob gives the first that fits.

        Raises:
            JaxcacheError: ``no-match`` or ``ambiguous-key``.
        """
        from jaxcache.cache.show import show_entries

        return next(show_entries(self.store, key))

    def verify(
        self,
        *keys: str,
        level: Literal["quick", "full"] = "full",
        jobs: int = 1,
        progress: Progress | None = None,
    ) -> "Verification":
        """Look for corruption, as ``jaxcache verify`` does; findings are data, not exceptions."""
        from jaxcache.cache.verify.examine import VerifyOptions, verify

        user = os.geteuid() if hasattr(os, "geteuid") else None
        options = VerifyOptions(level=level, keys=keys, jobs=jobs, user=user)
        return verify(self.store, options, now_ns=time.time_ns(), progress=progress)

    def diff(self, other: "Cache") -> "Diff":
        """Compare with another cache by what the entries hold."""
        from jaxcache.cache.diff import diff_sides, open_side

        return diff_sides(
            open_side(self.store.url, open_store, None),
            open_side(other.store.url, open_store, None),
        )

    # Planning

    def plan_repair(self, found: "Verification", *, delete: bool = False) -> "RepairPlan":
        """Plan to put right what :meth:`verify` found: to quarantine, or away for good."""
        from jaxcache.cache.verify.repair import plan_repair

        return plan_repair(found, now_ns=time.time_ns(), delete=delete)

    def plan_seal(
        self, *keys: str, level: int = 19, again: bool = False, progress: Progress | None = None
    ) -> "SealPlan":
        """Plan to rewrite entries so that JAX itself detects corruption."""
        from jaxcache.cache.seal import plan_seal

        return plan_seal(self.store, keys=keys, level=level, again=again, progress=progress)

    def plan_prune(
        self,
        *,
        max_size: Size | None = None,
        max_entries: int | None = None,
        unused_for: Duration | None = None,
        older_than: Duration | None = None,
        keep_last: int | None = None,
        policy: Literal["lru", "cost"] = "cost",
        keep: Sequence[str] = (),
        orphans: bool = False,
        legacy: bool = False,
        side_caches: bool = False,
        quarantine: bool = False,
        grace: Duration = 60.0,
        progress: Progress | None = None,
    ) -> "PrunePlan":
        """Plan what can go, as ``jaxcache prune`` does.

        Raises:
            UsageError: nothing says what may go.
        """
        from jaxcache.cache.ledger.segments import Ledger
        from jaxcache.cache.prune.plan import PruneOptions
        from jaxcache.cache.prune.survey import plan_cache_prune

        options = PruneOptions(
            max_size_bytes=_size_bytes(max_size), max_entries=max_entries,
            unused_for_seconds=_seconds(unused_for), older_than_seconds=_seconds(older_than),
            keep_last=keep_last, policy=policy, orphans=orphans, legacy=legacy,
            side_caches=side_caches, quarantine=quarantine, grace_seconds=_seconds(grace) or 0.0,
        )  # fmt: skip
        ledger = Ledger.load(self.store)
        return plan_cache_prune(
            self.store, options, keep=keep, lookup=ledger.record if ledger else None,
            now_ns=time.time_ns(), progress=progress,
        )  # fmt: skip

    def plan_removal(self, *keys: str) -> "PrunePlan":
        """Plan to remove exactly these entries, as ``jaxcache rm`` does."""
        from jaxcache.cache.ledger.segments import Ledger
        from jaxcache.cache.prune.survey import plan_cache_removal

        ledger = Ledger.load(self.store)
        lookup = ledger.record if ledger else None
        return plan_cache_removal(self.store, keys, lookup=lookup, now_ns=time.time_ns())

    # Doing

    @overload
    def execute(self, plan: "PrunePlan", *, progress: Progress | None = None) -> "Execution": ...
    @overload
    def execute(self, plan: "SealPlan", *, progress: Progress | None = None) -> "SealResult": ...
    @overload
    def execute(self, plan: "RepairPlan", *, progress: Progress | None = None) -> "Repair": ...

    def execute(self, plan: Any, *, progress: Progress | None = None) -> Any:
        """Carry out a plan of this cache; what changed since it was made stays as it is.

        Raises:
            LockedError: JAX's lock was not obtained; what was done until then stays done.
            TypeError: this is no plan.
        """
        for name, run in _EXECUTORS.items():
            if type(plan).__name__ == name:
                return run(self.store, plan, progress)
        raise TypeError(f"{type(plan).__name__} is no plan of a cache")

    def export(
        self,
        file: str | os.PathLike[str],
        *keys: str,
        filters: Sequence[str] = (),
        side_caches: bool | None = None,
        level: int = 19,
        progress: Progress | None = None,
    ) -> "Manifest":
        """Write entries into a bundle, and return what it says of them.

        Raises:
            UsageError: ``exists``, where the file is there and is no bundle.
        """
        from jaxcache.cache.bundle import deliver
        from jaxcache.cache.bundle.export import plan_export
        from jaxcache.cache.bundle.pack import write_stream

        path = os.fspath(file)
        deliver.check_target(path)
        plan = plan_export(
            self.store, keys=keys, filters=filters, side_caches=side_caches,
            now_ns=time.time_ns(), progress=progress,
        )  # fmt: skip
        folder = os.path.dirname(os.path.abspath(path))
        exported = write_stream(self.store, plan, level=level, folder=folder, progress=progress)
        with exported.stream:
            deliver.write_file(path, deliver.bundle_bytes(exported))
        return exported.manifest

    def import_(
        self,
        file: str | os.PathLike[str],
        *,
        on_conflict: Literal["keep", "replace", "fail"] = "keep",
        side_caches: bool = True,
        atomic: bool = False,
        accept: "Callable[[ImportPlan], bool] | None" = None,
        progress: Progress | None = None,
    ) -> "Imported | None":
        """Bring in what a bundle holds, every byte of it checked before.

        Args:
            accept: shown the plan; where it says no, nothing is written and None comes back.

        Raises:
            JaxcacheError: ``bad-bundle``, or ``conflict`` where ``on_conflict`` is ``"fail"``.
        """
        from jaxcache.cache.bundle.format import open_bundle
        from jaxcache.cache.bundle.importing import plan_import, verify_bundle
        from jaxcache.cache.bundle.unpack import execute_import

        with contextlib.closing(open_bundle(os.fspath(file))) as bundle:
            verify_bundle(bundle, progress)
            plan = plan_import(
                self.store, bundle, cache_dir=self.store.url, on_conflict=on_conflict,
                side_caches=side_caches, progress=progress,
            )  # fmt: skip
            if accept is not None and not accept(plan):
                return None
            return execute_import(self.store, bundle, plan, atomic=atomic, progress=progress)

    def warm(
        self,
        script: str | os.PathLike[str],
        *arguments: str,
        python: str | None = None,
        platform: str | None = None,
        devices: int | None = None,
        timeout: Duration | None = None,
    ) -> "Report":
        """Run a script with this cache on, and account for every compile.

        Args:
            python: the Python that has jax; the running one by default.

        Raises:
            UsageError: no such script, or no such Python.
            NoJaxError: that Python has no jax.
        """
        from jaxcache.warm.run import WarmOptions, warm_script

        options = WarmOptions(
            self.store.url, python=python, platform=platform, devices=devices,
            timeout_seconds=_seconds(timeout), stdout_to_stderr=False,
        )  # fmt: skip
        return warm_script(os.fspath(script), arguments, options)


def open(location: str | os.PathLike[str], *, create: bool = False) -> Cache:  # noqa: A001
    """Open the cache at a path or URL.

    Args:
        create: make a local directory that is not there.

    Raises:
        NoCacheError: no directory there, or not readable.
    """
    path = os.fspath(location)
    return Cache(make_store(path) if create else open_store(path))


def _size_bytes(size: Size | None) -> int | None:
    return parse_size_bytes(size) if isinstance(size, str) else size


def _seconds(duration: Duration | None) -> float | None:
    return parse_duration_seconds(duration) if isinstance(duration, str) else duration


def _remove(store: Store, plan: Any, progress: Progress | None) -> "Execution":
    from jaxcache.cache.prune.evict import remove

    return remove(store, plan.removals, progress=progress)


def _seal(store: Store, plan: Any, progress: Progress | None) -> "SealResult":
    from jaxcache.cache.seal import execute_seal

    return execute_seal(store, plan, jobs=1, now_ns=time.time_ns(), progress=progress)


def _repair(store: Store, plan: Any, progress: Progress | None) -> "Repair":
    from jaxcache.cache.verify.repair import execute_repair

    # Without the verification's list every temporary file may be young.
    young = frozenset(step.file for step in plan.steps)
    return execute_repair(store, plan, young=young, progress=progress)


#: By the name of a plan's type, so that none of them is imported before it is used.
_EXECUTORS: dict[str, Callable[[Store, Any, Progress | None], Any]] = {
    "PrunePlan": _remove,
    "SealPlan": _seal,
    "RepairPlan": _repair,
}
