"""The Python interface: what the command line does, as functions that return data.

Whatever changes a cache is a plan first, which can be looked at, and then executed::

    cache = jaxcache.open("/path/to/cache")
    plan = cache.plan_prune(max_size="10GB", policy="cost")
    print(len(plan.removals), plan.size_bytes_after)
    cache.execute(plan)

Sizes are bytes, or text such as ``"10GB"``; durations are seconds, or text such as ``"30d"``.
"""

import os
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from jaxcache import __version__
from jaxcache.api.compiling import CompilingMethods
from jaxcache.api.handle import MakeProgress, locate, show_nothing
from jaxcache.api.moving import MovingMethods
from jaxcache.entry.names import FileKind
from jaxcache.errors import UsageError
from jaxcache.layouts import load_layout
from jaxcache.model import Depth
from jaxcache.options import ListOptions, PruneOptions, RemovalOptions, SealOptions, VerifyOptions
from jaxcache.store import open_store

if TYPE_CHECKING:
    from typing import Unpack

    from jaxcache.api.ci import CiSteps
    from jaxcache.cache.explain.keys import Churn
    from jaxcache.cache.explain.sides import Explanation
    from jaxcache.cache.ledger.segments import LiveStats
    from jaxcache.cache.listing import Listing
    from jaxcache.cache.overview import Overview
    from jaxcache.cache.prune.plan import PrunePlan as PrunePlan
    from jaxcache.cache.prune.removable import Execution
    from jaxcache.cache.seal import SealPlan, SealResult
    from jaxcache.cache.show import EntryDetails
    from jaxcache.cache.stats import Stats
    from jaxcache.cache.verify.repair import Repair as Repair
    from jaxcache.cache.verify.repair import RepairPlan, Restoration
    from jaxcache.cache.verify.run_checks import Verification as Verification
    from jaxcache.entry.summary import Entry
    from jaxcache.layouts import GraphDetails, Layout
    from jaxcache.options.keywords import (
        ListKeywords,
        PruneKeywords,
        RemovalKeywords,
        SealKeywords,
        VerifyKeywords,
    )
    from jaxcache.store.base import Store


#: How a pickle of protocol 2 or later begins.
_PICKLED = b"\x80"


class Cache(MovingMethods, CompilingMethods):
    """One cache, in a directory or an object store: what every command works through.

    A bundle has :meth:`select`, :meth:`stats` and :meth:`show_all`. Methods take the
    options of their commands as keywords, or as ``options=``, the object that the command line has.

    Attributes:
        store: where its bytes are.
        layout: JAX's or torch's.
    """

    @cached_property
    def ci(self) -> "CiSteps":
        """The steps of a CI job: a key, what to restore, and what to save."""
        from jaxcache.api.ci import CiSteps

        return CiSteps(self)

    # Looking

    def entries(self) -> "Iterator[Entry]":
        """Yield every entry, by key; see :class:`jaxcache.Entry`.

        >>> next(cache.entries()).module
        'jit__fun'
        """
        return iter(self.select().entries)

    def select(
        self,
        *keys: str,
        group_by: str | None = None,
        depth: Depth | None = None,
        sums: bool = True,
        options: ListOptions | None = None,
        **keywords: "Unpack[ListKeywords]",
    ) -> "Listing":
        """List entries as ``jaxcache ls`` does.

        >>> cache.select(filters=["size>5kB"], sort="size:desc").summary.entries
        3

        Args:
            keys: full keys, unique prefixes, or module globs; none for all.
            group_by: read what groups by this field need; the limit is then theirs.
            depth: how much of each entry to read; by default ``details`` decides. In a bucket,
                where every read is a request, only ``details`` does.
            sums: whether the sums include the compile seconds of entries beyond the limit.
            keywords: those of :class:`jaxcache.options.ListOptions`: ``filters=["size>1MB"]``,
                ``sort="used:desc"``, ``limit=10``; ``details=False`` decodes no entry, which is
                faster and leaves platform, target, signature and source unknown (the default in a
                bucket, where compile seconds are unknown then, too).

        Raises:
            UsageError: a filter or an order that cannot be read.
            JaxcacheError: a key that fits nothing, or more than it may.
        """
        from jaxcache.cache.listing import group_depth, list_cache

        is_near = not self.readable[0].remote
        if options is None and depth is None:
            keywords.setdefault("details", is_near)
        chosen = ListOptions.choose(options, keys=keys, **keywords)
        needed = group_depth(group_by) if group_by else Depth.LISTED
        if is_near:
            needed = max(needed, Depth.OPENED if depth is None else depth)
        if group_by:
            chosen = chosen.replace(limit=None)
        with self._reading(self.readable) as cache:
            return list_cache(cache, chosen, depth=needed, sums=sums)

    def stats(self, *, long: bool = False) -> "Stats":
        """Count hits, misses and everything in the directory, as ``jaxcache stats`` does.

        >>> cache.stats().total.size_bytes
        44099

        Args:
            long: in a bucket, read every entry, for codec, compile time and platform.
        """
        from jaxcache.cache.stats import count_cache

        with self._reading(self.readable) as cache:
            return count_cache(cache, read=long or not cache.store.remote)

    def live_stats(self, stats: "Stats") -> "LiveStats":
        """Return what the live layer has counted and refused here.

        >>> cache.live_stats(cache.stats()).refusals
        ()

        Args:
            stats: those of this cache; a bucket that has no file of ours is asked nothing more.
        """
        from jaxcache.cache.ledger.segments import LiveStats, live_totals, read_refusals

        ours = any(c.kind in (FileKind.OWN, FileKind.LEDGER) for c in stats.files)
        store, _ = self.readable
        totals = live_totals(store) if ours or not store.remote else None
        return LiveStats(totals, read_refusals(store))

    def show(self, key: str) -> "EntryDetails":
        """Everything inside one entry of JAX; a glob gives the first that fits.

        >>> cache.show("jit_mlp").contents.program.results
        (ArrayType(dtype='float32', shape=(8, 4)),)

        Raises:
            UsageError: ``other-layout``: :meth:`show_all` shows a graph of torch.
            JaxcacheError: ``no-match`` or ``ambiguous-key``.
        """
        from jaxcache.cache.show import show

        return next(show(self.jax_store, key))

    def show_all(self, key: str) -> "list[EntryDetails | GraphDetails]":
        """Everything inside each entry that a KEY or the path of a file means.

        >>> cache.show_all("jit_m*")[0].entry.module
        'jit_mlp'

        Raises:
            JaxcacheError: ``no-match`` or ``ambiguous-key``.
        """
        store, layout, name = self._find(key)
        shown = layout.shows.show_file(store, name) if name else layout.shows.show(store, key)
        return list(shown)

    def payload(self, key: str) -> "Iterator[bytes]":
        """Yield the decompressed executable of the entry that a KEY or a path means.

        >>> sum(map(len, cache.payload("jit_mlp"))) > 1000
        True

        Raises:
            JaxcacheError: ``no-match``, ``ambiguous-key``, or ``bad-entry``.
        """
        from jaxcache.cache.show import payload_chunks

        return payload_chunks(*self._find_file(key))

    def hlo(self, key: str, *, python: str | None = None) -> str:
        """Return the optimized HLO of the entry that a KEY or a path means, as text.

        >>> cache.hlo("jit_mlp").partition(",")[0]
        'HloModule jit_mlp'

        Args:
            python: the Python whose jaxlib writes it.

        Raises:
            JaxcacheError: ``no-match``, ``ambiguous-key``, or ``bad-entry``.
            NoJaxError: no Python with jax was found.
        """
        from jaxcache.cache.show import read_hlo
        from jaxcache.warm.child.query import hlo_text

        return hlo_text(read_hlo(*self._find_file(key)), python=python)

    def _find(self, key: str) -> "tuple[Store, Layout, str]":
        """Return where an entry is, and the name of the file if the KEY is a path."""
        if not (os.sep in key or os.path.isfile(key)):
            return *self.readable, ""
        directory, name = os.path.split(key)
        store = open_store(directory or ".")
        is_pickle = store.read(name, limit=1) == _PICKLED  # of torch; JAX's files are compressed
        return store, load_layout("torch" if is_pickle else "jax"), name

    def _find_file(self, key: str) -> "tuple[Store, str]":
        """Return the store and the name of one entry of JAX."""
        from jaxcache.cache.show import choose_file

        store, layout, name = self._find(key)
        if not (layout.single_file_entries and layout.keeps_index):
            raise UsageError("--hlo and --payload are for entries of JAX in a directory")
        return store, name or choose_file(store, key)

    def verify(
        self, *keys: str, options: VerifyOptions | None = None, **keywords: "Unpack[VerifyKeywords]"
    ) -> "Verification":
        """Look for corruption, as ``jaxcache verify`` does; findings are data, not exceptions.

        >>> cache.verify(level="quick").failures
        ()

        Args:
            keywords: those of :class:`jaxcache.options.VerifyOptions`: ``level="load"`` also has
                the jax of ``python`` load each entry, in a child process; ``jobs`` is 1 by default,
                because more need a main module that can be imported.
        """
        from jaxcache.cache.verify.run_checks import verify
        from jaxcache.warm.child.query import SubprocessLoader

        chosen = VerifyOptions.choose(options, keys=keys, **keywords)
        chosen = chosen.replace(jobs=chosen.jobs or self.workers)
        loads = chosen.level == "load" and self.layout.single_file_entries
        loader = SubprocessLoader(chosen.python) if loads else None
        with self.progress("verifying"):
            now_ns = self.clock()
            return verify(self.store, self.layout, chosen, now_ns=now_ns, loader=loader)

    def explain(self, *keys: str) -> "Explanation":
        """Explain why a key was compiled, by the runs of its program, or why two keys differ.

        >>> cache.explain("jit_mlp*", "jit_loss*").same
        0

        Args:
            keys: one or two KEY arguments.

        Raises:
            UsageError: no key, or more than two.
            JaxcacheError: ``no-match``, ``ambiguous-key``
        """
        if len(keys) not in (1, 2):
            raise UsageError("explain needs a program, or one or two keys")
        return self.layout.explains.explain_keys(keys, self.store.url)

    def churn(self) -> "tuple[Churn, ...]":
        """The modules (of torch: functions) with many keys, what they cost, and why.

        >>> cache.churn()
        ()
        """
        return self.layout.explains.find_churn(self.store)

    def overview(self) -> "Overview":
        """Gather what ``jaxcache report`` draws.

        >>> len(cache.overview().entries)
        7
        """
        from jaxcache.cache.overview import make_overview

        with self._reading((self.store, self.layout)) as cache:
            return make_overview(cache)

    def report(self, path: str | os.PathLike[str] | None = None, *, charts: bool = True) -> str:
        """Draw the cache as one HTML page that opens without a network; return the page.

        Its interactive charts need the extra ``report``.

        >>> html = cache.report("report.html")

        Args:
            path: where to write it, too.
            charts: whether to put the script into the page that draws charts: 4.8 MB.
        """
        from jaxcache.render.report import report_html

        page = report_html(self.overview(), version=__version__, charts=charts)
        if path is not None:
            from jaxcache.core.atomic import replace_file

            replace_file(os.fspath(path), [page.encode()])
        return page

    def pins(self) -> list[str]:
        """The keys that prune leaves alone.

        >>> cache.pins()
        []
        """
        from jaxcache.cache.ledger.write import pinned_keys

        return pinned_keys(self.ledger)

    # Planning

    def plan_repair(self, verification: "Verification", *, delete: bool = False) -> "RepairPlan":
        """Plan to repair what :meth:`verify` found: move to quarantine, or delete.

        >>> cache.plan_repair(cache.verify()).steps
        ()
        """
        from jaxcache.cache.verify.repair import plan_repair

        return plan_repair(verification, now_ns=self.clock(), delete=delete)

    def plan_seal(
        self, *keys: str, options: SealOptions | None = None, **keywords: "Unpack[SealKeywords]"
    ) -> "SealPlan":
        """Plan to rewrite entries so that JAX itself detects corruption.

        >>> plan = cache.plan_seal(recompress=19)
        >>> len(plan.todo)
        7

        Args:
            keywords: those of :class:`jaxcache.options.SealOptions`: ``recompress``, ``filters``.

        Raises:
            UsageError: ``other-layout``: it is a cache of torch's compilers.
        """
        from jaxcache.cache.seal import plan_seal

        store = self.jax_store
        chosen = SealOptions.choose(options, keys=keys, **keywords)
        with self.progress("reading entries"):
            return plan_seal(store, chosen)

    def plan_prune(
        self, *, options: PruneOptions | None = None, **keywords: "Unpack[PruneKeywords]"
    ) -> "PrunePlan":
        """Plan which entries to remove, as ``jaxcache prune`` does.

        >>> plan = cache.plan_prune(max_entries=5, policy="lru")
        >>> ", ".join(removal.module for removal in plan.removals)
        'jit__fun, jit__lambda'

        Args:
            keywords: those of the command, see ``help(jaxcache.PruneOptions)``:
                ``max_size="10GB"``, ``unused_for="30d"``, ``keep=["jit_step*"]``.

        Raises:
            UsageError: no limit is given, or a value cannot be read.
            TypeError: an option does not exist.
        """
        from jaxcache.cache.prune.plan import plan_cache_prune

        chosen = PruneOptions.choose(options, **keywords)
        with self._reading((self.store, self.layout)) as cache:
            return plan_cache_prune(cache, chosen)

    def plan_removal(
        self,
        *keys: str,
        options: RemovalOptions | None = None,
        **keywords: "Unpack[RemovalKeywords]",
    ) -> "PrunePlan":
        """Plan to remove exactly these entries, as ``jaxcache rm`` does.

        >>> cache.plan_removal("jit_mlp*", "jit_loss*").kept
        5

        Raises:
            JaxcacheError: ``no-match``, ``ambiguous-key``, ``pinned``.
        """
        from jaxcache.cache.prune.plan import plan_cache_removal

        chosen = RemovalOptions.choose(options, keys=keys, **keywords)
        with self._reading((self.store, self.layout)) as cache:
            return plan_cache_removal(cache, chosen.keys, chosen.filters)

    # Doing

    @overload
    def execute(self, plan: "PrunePlan") -> "Execution": ...
    @overload
    def execute(self, plan: "SealPlan", *, jobs: int | None = None) -> "SealResult": ...
    @overload
    def execute(self, plan: "RepairPlan") -> "Repair": ...

    def execute(self, plan: Any, *, jobs: int | None = None) -> Any:
        """Carry out a plan of this cache; what changed since it was made stays as it is.

        >>> done = cache.execute(cache.plan_removal("jit_mlp*"))
        >>> len(done.removed)
        1

        Args:
            jobs: threads that seal; by default as many as this cache has workers.

        Raises:
            LockedError: JAX's lock was not obtained; what was done until then stays done.
            TypeError: the argument is not a plan.
        """
        match type(plan).__name__:  # by name, so that no type is imported before it is used
            case "PrunePlan":
                from jaxcache.cache.prune.execute import remove

                file_lock = self.layout.removals.file_lock
                with self.progress("removing"):
                    return remove(self.store, plan.removals, file_lock=file_lock)
            case "SealPlan":
                from jaxcache.cache.seal import execute_seal

                jobs = jobs or self.workers
                now_ns = self.clock()
                with self.progress("sealing"):
                    return execute_seal(self.store, plan, jobs=jobs, now_ns=now_ns)
            case "RepairPlan":
                from jaxcache.cache.verify.repair import execute_repair

                with self.progress("repairing"):
                    return execute_repair(self.store, self.layout, plan)
        raise TypeError(f"{type(plan).__name__} is not a plan of this package")

    def restore(self, *keys: str, dry_run: bool = False) -> "Restoration":
        """Restore entries from quarantine; without a KEY, all of them.

        >>> cache.restore().restored
        ()

        Raises:
            JaxcacheError: ``no-match``.
            LockedError: another process holds JAX's lock.
        """
        from jaxcache.cache.verify.repair import restore

        return restore(self.store, self.layout, keys=keys, dry_run=dry_run)

    def pin(self, *keys: str) -> list[str]:
        """Protect entries from prune and rm; return their full keys, sorted.

        >>> cache.pin("jit_mlp*")
        ['jit_mlp-6e860f1f2ebe93785d5d65004b29a7991292f364567a10b31547cc1978831814']

        Raises:
            JaxcacheError: ``no-match``, ``ambiguous-key`` or ``read-only``.
        """
        from jaxcache.cache.ledger.write import pin

        return pin(self.store, self.layout, keys, now_ns=self.clock()) if keys else []

    def unpin(self, *keys: str) -> list[str]:
        """Let prune and rm remove entries again; return their full keys, sorted.

        >>> keys = cache.pin("jit_mlp*")
        >>> cache.unpin("jit_mlp*") == keys
        True

        Raises:
            JaxcacheError: ``not-pinned`` or ``read-only``.
        """
        from jaxcache.cache.ledger.write import unpin

        return unpin(self.store, keys, now_ns=self.clock())


def open(  # noqa: A001
    location: str | os.PathLike[str] | None = None,
    *,
    create: bool = False,
    layout: str | None = None,
    progress: MakeProgress = show_nothing,
    workers: int = 1,
) -> Cache:
    """Open the cache at a path or URL, or a bundle to look into.

    >>> jaxcache.open("cache").stats().total.entries
    7

    Args:
        location: by default that of the command line: ``JAX_COMPILATION_CACHE_DIR``, the
            configuration files, else ``~/.cache/jax`` (``$XDG_CACHE_HOME/jax``); with ``layout``
            the compiler's own directory.
        create: make a local directory that does not exist.
        layout: ``"jax"`` or ``"torch"``; by default that of its directories.
        progress: makes of the title of a piece of work a context manager, whose value is called
            with (done, total) now and then.
        workers: processes to read with in a large directory.

    Raises:
        NoCacheError: no directory there, not readable, all in it is of other programs, or it has
            caches below it alone.
        UsageError: ``two-layouts`` where JAX and torch share a directory; ``bad-path`` where the
            location is empty.
    """
    place = locate(None if location is None else os.fspath(location), layout)
    cache = Cache(place, layout, creates=create, progress=progress, workers=workers)
    if cache.kind != "recipe":
        _ = cache.readable
    return cache
