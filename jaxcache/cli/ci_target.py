"""Save to whatever the command line names as a target."""

import os
import time
from collections.abc import Sequence
from typing import NamedTuple, Self

from jaxcache.cache.bundle.deliver import check_target
from jaxcache.cache.bundle.format import is_bundle
from jaxcache.cache.ci.baseline import read_baseline
from jaxcache.cache.ci.publish import Saved, save_bundle, save_shared
from jaxcache.cache.ci.save import SaveIf, SavePlan, plan_save
from jaxcache.cache.ci.usage import use_events
from jaxcache.cache.ledger import append
from jaxcache.cache.prune import PruneOptions
from jaxcache.cli.bundle import signing_keys
from jaxcache.cli.progress import progress_bar
from jaxcache.errors import UsageError
from jaxcache.store import make_store, open_store
from jaxcache.units import parse_duration_seconds, parse_size_bytes

_SUFFIX = ".jxb"


class Bounds(NamedTuple):
    """What the target may hold."""

    max_size_bytes: int | None
    unused_for_seconds: float | None

    @classmethod
    def parse(cls, max_size: str | None, unused_for: str | None) -> Self:
        """Read what the user typed.

        Raises:
            UsageError
        """
        return cls(
            None if max_size is None else parse_size_bytes(max_size),
            None if unused_for is None else parse_duration_seconds(unused_for),
        )

    @property
    def pruning(self) -> PruneOptions | None:
        """The same for a shared cache; None where nothing binds it."""
        if self == (None, None):
            return None
        return PruneOptions(
            max_size_bytes=self.max_size_bytes, unused_for_seconds=self.unused_for_seconds
        )


def plan(cache_dir: str, target: str, save_if: SaveIf, bounds: Bounds) -> SavePlan:
    """Look at the job's cache and decide what to save.

    A bundle holds what the job needs; a shared directory bounds itself.

    Raises:
        NoCacheError, UsageError
    """
    store = open_store(cache_dir)
    bundle = to_bundle(target)
    if bundle:
        check_target(target)
    elif os.path.realpath(target) == os.path.realpath(cache_dir):
        raise UsageError(f"{target} is the cache itself", code="same-directory")
    with progress_bar("reading entries") as progress:
        return plan_save(
            store, target, baseline=read_baseline(store), save_if=save_if,
            target_exists=os.path.lexists(target),
            max_size_bytes=bounds.max_size_bytes if bundle else None,
            unused_for_seconds=bounds.unused_for_seconds,
            now_ns=time.time_ns(), progress=progress,
        )  # fmt: skip


def to_bundle(target: str) -> bool:
    """Whether a target is, or is to be, a bundle."""
    return is_bundle(target) or (target.endswith(_SUFFIX) and not os.path.isdir(target))


def carry_out(plan: SavePlan, bounds: Bounds, *, level: int, sign: Sequence[str]) -> Saved:
    """Save what was planned; without anything to save, only note what was used.

    Raises:
        JaxcacheError: ``io-error``, ``changed``, ``bound-out-of-reach``; LockedError
    """
    now_ns = time.time_ns()
    signers = signing_keys(sign)
    store = open_store(plan.cache_dir)
    if plan.why != "not-wanted":
        append(store, use_events(plan.usage, now_ns))
    bundle = to_bundle(plan.target)
    if bundle and plan.saves:
        folder = os.path.dirname(os.path.abspath(plan.target))
        os.makedirs(folder, exist_ok=True)
        with progress_bar("saving") as progress:
            return save_bundle(
                store, plan, level=level, private_keys=signers, folder=folder, progress=progress
            )
    if bundle or plan.why in ("not-wanted", "empty"):
        return Saved(0, 0)
    if signers:
        raise UsageError("a directory cannot be signed", hint=f"save to FILE{_SUFFIX}")
    with progress_bar("saving") as progress:
        return save_shared(
            store, make_store(plan.target), plan, bounds=bounds.pruning, now_ns=now_ns,
            progress=progress,
        )  # fmt: skip
