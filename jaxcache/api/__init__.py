"""The Python interface: what the command line does, as functions that return data.

Whatever changes a cache is a plan first, which can be looked at, and then executed::

    cache = jaxcache.open("/path/to/cache")
    plan = cache.plan_prune(max_size="10GB", policy="cost")
    print(len(plan.removals), plan.size_bytes_after)
    cache.execute(plan)

Sizes are bytes, or text such as ``"10GB"``; durations are seconds, or text such as ``"30d"``.
"""

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, overload

from jaxcache.api.compiling import CompilingMethods
from jaxcache.api.moving import MovingMethods
from jaxcache.cache.listing import Listing, list_cache
from jaxcache.cache.scan import Progress
from jaxcache.cache.stats import Stats, count_cache
from jaxcache.layouts import check_not_torch, choose_layout
from jaxcache.layouts.base import Layout
from jaxcache.model import Entry
from jaxcache.options import ListOptions, PruneOptions, SealOptions, VerifyOptions
from jaxcache.store import make_store, open_store
from jaxcache.store.base import Store
from jaxcache.store.location import locate_cache

if TYPE_CHECKING:
    from jaxcache.cache.explain.churn import Churn
    from jaxcache.cache.explain.sides import Explanation
    from jaxcache.cache.prune.plan import PrunePlan
    from jaxcache.cache.prune.removal import Execution
    from jaxcache.cache.seal import SealPlan, SealResult
    from jaxcache.cache.show import EntryDetails
    from jaxcache.cache.verify.quarantine import Restoration
    from jaxcache.cache.verify.repair import Repair, RepairPlan
    from jaxcache.cache.verify.run_checks import Verification


__all__ = ["Cache", "open"]


class Cache(MovingMethods, CompilingMethods):
    """One cache, in a directory or an object store.

    Attributes:
        store: where its bytes are.
        layout: JAX's or torch's.
    """

    def __init__(self, store: Store, layout: Layout, spelling: str | None = None) -> None:
        self.store = store
        self.layout = layout
        self._spelling = spelling or store.url

    def __repr__(self) -> str:
        return f"Cache({self.store.url!r})"

    # Looking

    def entries(self) -> Iterator[Entry]:
        """Yield every entry, by key; see :class:`jaxcache.model.Entry`.

        >>> next(cache.entries()).module
        'jit__fun'
        """
        return iter(self.select().entries)

    def select(self, *keys: str, progress: Progress | None = None, **options: Any) -> Listing:
        """List entries as ``jaxcache ls`` does.

        >>> cache.select(filters=["size>5kB"], sort="size:desc").summary.entries
        3

        Args:
            keys: full keys, unique prefixes, or module globs; none for all.
            progress: called with (done, total) now and then.
            options: :class:`jaxcache.options.ListOptions`: ``filters=["size>1MB"]``,
                ``sort="used:desc"``, ``limit=10``; ``details=False`` decodes no entry, which is
                faster and leaves platform, target, signature and source unknown (the default in a
                bucket).

        Raises:
            UsageError: a filter or an order that cannot be read.
            JaxcacheError: a key that fits nothing, or more than it may.
        """
        chosen = ListOptions.read(keys=keys, **{"details": not self.store.remote, **options})
        return list_cache(
            self.store,
            self.layout,
            chosen,
            headers=True,
            details=chosen.long,
            now_ns=time.time_ns(),
            progress=progress,
        )

    def stats(self, *, progress: Progress | None = None) -> Stats:
        """Count hits, misses and everything in the directory, as ``jaxcache stats`` does.

        >>> cache.stats().total.size_bytes
        44099
        """
        return count_cache(self.store, self.layout, now_ns=time.time_ns(), progress=progress)

    def show(self, key: str) -> "EntryDetails":
        """Everything inside one entry of JAX; a glob gives the first that fits.

        >>> cache.show("jit_mlp").contents.program.results
        (ArrayType(dtype='float32', shape=(8, 4)),)

        Raises:
            UsageError: ``other-layout``: see :func:`jaxcache.layouts.torch.show.show_graphs`.
            JaxcacheError: ``no-match`` or ``ambiguous-key``.
        """
        from jaxcache.cache.show import show_entries

        check_not_torch(self.store)
        return next(show_entries(self.store, key))

    def verify(
        self, *keys: str, progress: Progress | None = None, **options: Any
    ) -> "Verification":
        """Look for corruption, as ``jaxcache verify`` does; findings are data, not exceptions.

        >>> cache.verify(level="quick").failures
        ()

        Args:
            options: :class:`jaxcache.options.VerifyOptions`: ``level="load"`` also has the jax of
                ``python`` load each entry, in a child process; ``jobs`` is 1 by default, because
                more need a main module that can be imported.
        """
        from jaxcache.cache.verify.run_checks import verify
        from jaxcache.warm.loading import make_loader

        chosen = VerifyOptions.read(keys=keys, **options)
        return verify(
            self.store,
            self.layout,
            chosen,
            now_ns=time.time_ns(),
            loader=make_loader(chosen) if self.layout.single_file_entries else None,
            progress=progress,
        )

    def explain(self, *sides: str) -> "Explanation":
        """Say why two runs, two keys or two caches differ, or one key and the others of its module.

        >>> cache.explain("jit_mlp*", "jit_loss*").same
        0

        Args:
            sides: files of saved runs, KEY arguments, or cache directories.

        Raises:
            UsageError: there is no such run, and nothing else that it could be.
            JaxcacheError: ``no-match``, ``ambiguous-key``
        """
        return self.layout.explain(sides, self.store.url)

    def churn(self) -> "tuple[Churn, ...]":
        """The modules (of torch: functions) with many keys, what they cost, and why.

        >>> cache.churn()
        ()
        """
        return self.layout.find_churn(self.store)

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        charts: bool = True,
        progress: Progress | None = None,
    ) -> str:
        """Draw the cache as one HTML page that opens without a network; return the page.

        Its interactive charts need the extra ``report``.

        >>> html = cache.report("report.html")

        Args:
            path: where to write it, too.
            charts: whether to put the script into the page that draws charts: 4.8 MB.
        """
        from jaxcache import __version__
        from jaxcache.cache.overview import make_overview
        from jaxcache.render.report.page import report_html

        overview = make_overview(self.store, self.layout, now_ns=time.time_ns(), progress=progress)
        page = report_html(overview, version=__version__, charts=charts)
        if path is not None:
            from jaxcache.core.atomic import replace_file

            replace_file(os.fspath(path), [page.encode()])
        return page

    def pins(self) -> list[str]:
        """The keys that prune leaves alone.

        >>> cache.pins()
        []
        """
        from jaxcache.cache.ledger.pins import pinned_keys
        from jaxcache.cache.ledger.segments import Ledger

        return pinned_keys(Ledger.load(self.store))

    # Planning

    def plan_repair(self, verification: "Verification", *, delete: bool = False) -> "RepairPlan":
        """Plan to repair what :meth:`verify` found: move to quarantine, or delete.

        >>> cache.plan_repair(cache.verify()).steps
        ()
        """
        from jaxcache.cache.verify.repair import plan_repair

        return plan_repair(verification, now_ns=time.time_ns(), delete=delete)

    def plan_seal(self, *keys: str, progress: Progress | None = None, **options: Any) -> "SealPlan":
        """Plan to rewrite entries so that JAX itself detects corruption.

        >>> plan = cache.plan_seal(recompress=19)
        >>> len(plan.todo)
        7

        Args:
            options: :class:`jaxcache.options.SealOptions`: ``recompress``, ``filters``.

        Raises:
            UsageError: ``other-layout``: it is a cache of torch's compilers.
        """
        from jaxcache.cache.seal import plan_seal

        check_not_torch(self.store)
        return plan_seal(self.store, SealOptions.read(keys=keys, **options), progress=progress)

    def plan_prune(self, *, progress: Progress | None = None, **options: Any) -> "PrunePlan":
        """Plan which entries to remove, as ``jaxcache prune`` does.

        >>> plan = cache.plan_prune(max_entries=5, policy="lru")
        >>> ", ".join(removal.module for removal in plan.removals)
        'jit__fun, jit__lambda'

        Args:
            options: those of the command, see ``help(jaxcache.PruneOptions)``:
                ``max_size="10GB"``, ``unused_for="30d"``, ``keep=["jit_step*"]``.

        Raises:
            UsageError: no limit is given, or a value cannot be read.
            TypeError: there is no such option.
        """
        from jaxcache.cache.prune.plan_cache import plan_cache_prune

        chosen = PruneOptions.read(**options)
        now_ns = time.time_ns()
        return plan_cache_prune(self.store, self.layout, chosen, now_ns=now_ns, progress=progress)

    def plan_removal(self, *keys: str, filters: tuple[str, ...] = ()) -> "PrunePlan":
        """Plan to remove exactly these entries, as ``jaxcache rm`` does.

        >>> cache.plan_removal("jit_mlp*", "jit_loss*").kept
        5

        Raises:
            JaxcacheError: ``no-match``, ``ambiguous-key``, ``pinned``.
        """
        from jaxcache.cache.prune.plan_cache import plan_cache_removal

        return plan_cache_removal(self.store, self.layout, keys, filters, now_ns=time.time_ns())

    # Doing

    @overload
    def execute(self, plan: "PrunePlan", *, progress: Progress | None = None) -> "Execution": ...
    @overload
    def execute(self, plan: "SealPlan", *, progress: Progress | None = None) -> "SealResult": ...
    @overload
    def execute(self, plan: "RepairPlan", *, progress: Progress | None = None) -> "Repair": ...

    def execute(self, plan: Any, *, progress: Progress | None = None) -> Any:
        """Carry out a plan of this cache; what changed since it was made stays as it is.

        >>> done = cache.execute(cache.plan_removal("jit_mlp*"))
        >>> len(done.removed)
        1

        Raises:
            LockedError: JAX's lock was not obtained; what was done until then stays done.
            TypeError: this is no plan.
        """
        match type(plan).__name__:  # by name, so that no type is imported before it is used
            case "PrunePlan":
                from jaxcache.cache.prune.execute import remove

                file_lock = self.layout.file_lock
                return remove(self.store, plan.removals, file_lock=file_lock, progress=progress)
            case "SealPlan":
                from jaxcache.cache.seal import execute_seal

                now_ns = time.time_ns()
                return execute_seal(self.store, plan, jobs=1, now_ns=now_ns, progress=progress)
            case "RepairPlan":
                from jaxcache.cache.verify.repair import execute_repair

                # Without the verification's list every temporary file may be young.
                young = frozenset(step.file for step in plan.steps)
                return execute_repair(self.store, self.layout, plan, young=young, progress=progress)
        raise TypeError(f"{type(plan).__name__} is not a plan of this package")

    def restore(self, *keys: str, dry_run: bool = False) -> "Restoration":
        """Restore entries from quarantine; without a KEY, all of them.

        >>> cache.restore().restored
        ()

        Raises:
            JaxcacheError: ``no-match``.
            LockedError: another process holds JAX's lock.
        """
        from jaxcache.cache.verify.quarantine import restore

        return restore(self.store, self.layout, keys=keys, dry_run=dry_run)

    def pin(self, *keys: str) -> list[str]:
        """Protect entries from prune and rm; return their full keys, sorted.

        >>> cache.pin("jit_mlp*")
        ['jit_mlp-6e860f1f2ebe93785d5d65004b29a7991292f364567a10b31547cc1978831814']

        Raises:
            JaxcacheError: ``no-match``, ``ambiguous-key`` or ``read-only``.
        """
        from jaxcache.cache.ledger.pins import pin

        return pin(self.store, self.layout, keys, now_ns=time.time_ns()) if keys else []

    def unpin(self, *keys: str) -> list[str]:
        """Let prune and rm remove entries again; return their full keys, sorted.

        >>> keys = cache.pin("jit_mlp*")
        >>> cache.unpin("jit_mlp*") == keys
        True

        Raises:
            JaxcacheError: ``not-pinned`` or ``read-only``.
        """
        from jaxcache.cache.ledger.pins import unpin

        return unpin(self.store, keys, now_ns=time.time_ns())


def open(  # noqa: A001
    location: str | os.PathLike[str] | None = None,
    *,
    create: bool = False,
    layout: str | None = None,
) -> Cache:
    """Open the cache at a path or URL.

    >>> jaxcache.open("cache").stats().total.entries
    7

    Args:
        location: by default that of the command line: ``JAX_COMPILATION_CACHE_DIR``, the
            configuration files, else ``~/.cache/jax`` (``$XDG_CACHE_HOME/jax``).
        create: make a local directory that is not there.
        layout: ``"jax"`` or ``"torch"``; by default what its directories say.

    Raises:
        NoCacheError: no directory there, or not readable.
        UsageError: ``two-layouts`` where JAX and torch share a directory; ``bad-path`` where the
            location is empty.
    """
    place = locate_cache(None if location is None else os.fspath(location))
    store = make_store(place.path) if create else open_store(place.path)
    return Cache(store, choose_layout(store, layout), place.spelling)
