"""Change a cache: each change is a plan, then its execution."""

from typing import TYPE_CHECKING, Any, overload

from jaxcache.api.handle import Handle
from jaxcache.options import PruneOptions, RemovalOptions, SealOptions

if TYPE_CHECKING:
    from typing import Unpack

    from jaxcache.cache.prune.plan import PrunePlan
    from jaxcache.cache.prune.removable import Execution
    from jaxcache.cache.seal import SealPlan, SealResult
    from jaxcache.cache.verify.repair import Repair, RepairPlan, Restoration
    from jaxcache.cache.verify.run_checks import Verification
    from jaxcache.options.keywords import PruneKeywords, RemovalKeywords, SealKeywords


class ChangingMethods(Handle):
    """See :class:`jaxcache.api.Cache`."""

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
        with self.progress("reading entries") as progress:
            return plan_seal(store, chosen, progress=progress)

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
                with self.progress("removing") as progress:
                    return remove(self.store, plan.removals, file_lock=file_lock, progress=progress)
            case "SealPlan":
                from jaxcache.cache.seal import execute_seal

                jobs = jobs or self.workers
                now_ns = self.clock()
                with self.progress("sealing") as progress:
                    return execute_seal(
                        self.store, plan, jobs=jobs, now_ns=now_ns, progress=progress
                    )
            case "RepairPlan":
                from jaxcache.cache.verify.repair import execute_repair

                with self.progress("repairing") as progress:
                    return execute_repair(self.store, self.layout, plan, progress=progress)
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
