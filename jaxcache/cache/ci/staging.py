"""Between the job's cache and one that others share: a directory of our own, for a moment.

What comes over a network is checked there before it enters the cache; what goes out is sealed
there, so that the job's own cache stays as JAX wrote it.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxcache.cache.bundle.deliver import make_temporary_bundle
from jaxcache.cache.bundle.export import ExportPlan, plan_export
from jaxcache.cache.bundle.format import Bundle
from jaxcache.cache.bundle.importing import plan_import
from jaxcache.cache.bundle.unpack import execute_import
from jaxcache.cache.gate import Signed
from jaxcache.cache.leftovers import scratch_folder
from jaxcache.cache.scan import Progress
from jaxcache.cache.sync.execute import execute
from jaxcache.cache.sync.plan import plan_sync
from jaxcache.errors import JaxcacheError, UntrustedError
from jaxcache.model import Problem
from jaxcache.store.base import Store
from jaxcache.store.local import LocalStore


@dataclass(frozen=True, slots=True)
class SharedBundle:
    """A shared cache, as a temporary bundle."""

    bundle: Bundle
    damaged: int
    """Entries that are not in it, because they are not sound or could not be read."""
    present: int = 0
    """Entries that were not fetched, because the job's cache has them."""
    untrusted: int = 0
    """Entries that no trusted key has signed."""


def fetch_directory(store: Store, *, allow_large: bool = False, now_ns: int) -> SharedBundle:
    """Read a directory.

    Raises:
        NoCacheError
    """
    bundle, exported = make_temporary_bundle(
        store, plan_export(store, now_ns=now_ns), allow_large=allow_large
    )
    return SharedBundle(bundle, len(exported.left_out))


def fetch_missing(
    source: Store,
    target: Store | None,
    *,
    signed: Signed | None = None,
    allow_large: bool = False,
    now_ns: int,
    progress: Progress | None = None,
) -> SharedBundle:
    """Read of a shared cache what the job's cache has not.

    Args:
        signed: only what is vouched for here (``jaxcache.cache.sync.signatures``); the rest is
            left out, and where that is all, refused.

    Raises:
        NoCacheError: it cannot be reached.
        UntrustedError
    """
    with scratch_folder("ci") as folder:
        staged = LocalStore(folder)
        plan = plan_sync(source, target, signed=signed, allow_large=allow_large, now_ns=now_ns)
        present = plan.present if plan.entries else 0
        missing = tuple(t._replace(there=None) for t in plan.transfers)
        plan = replace(plan, transfers=missing, with_atimes=False)
        done = execute(source, staged, plan, now_ns=now_ns, progress=progress)
        if done.untrusted and not (done.carried or present):
            raise UntrustedError(
                f"no trusted key has signed anything in {source.url}",
                hint="save with --sign KEY, and add its public key here: jaxcache trust add",
            )
        found = fetch_directory(staged, allow_large=True, now_ns=now_ns)
    damaged = found.damaged + sum(map(len, (plan.left_out, done.damaged, done.failed)))
    return SharedBundle(found.bundle, damaged, present, len(done.untrusted))


@contextlib.contextmanager
def sealed_copy(store: Store, plan: ExportPlan) -> Iterator[tuple[Store, tuple[Problem, ...]]]:
    """Give the entries of a plan as a sealed cache, and what is not sound."""
    with scratch_folder("ci") as folder:
        staged = LocalStore(folder)
        bundle, exported = make_temporary_bundle(store, plan, allow_large=True)
        with bundle.file:
            importing = plan_import(staged, bundle, cache_dir=staged.url)
            done = execute_import(staged, bundle, importing)
        if done.failed:
            raise JaxcacheError(
                f"cannot write {done.failed[0].name} to {staged.url}: {done.failed[0].detail}",
                code="io-error",
            )
        yield staged, exported.left_out
