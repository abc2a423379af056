"""Restore from whatever the command line names as a source."""

import os
import time

from jaxcache.cache.bundle.compat import Host
from jaxcache.cache.bundle.deliver import make_in_between
from jaxcache.cache.bundle.export import plan_export
from jaxcache.cache.bundle.fields import BundleError
from jaxcache.cache.bundle.format import Bundle
from jaxcache.cache.bundle.parts import first_part
from jaxcache.cache.ci.restore import (
    Restored,
    RestorePlan,
    execute_restore,
    nothing_to_restore,
    plan_restore,
)
from jaxcache.cli.bundle import check_trust, open_input
from jaxcache.cli.ci import job_environment
from jaxcache.cli.options import config_is_set
from jaxcache.cli.progress import progress_bar
from jaxcache.errors import NoCacheError, UntrustedError, UsageError
from jaxcache.store import make_store, open_store


def restore(
    source: str,
    target: str,
    *,
    python: str | None,
    platform: str | None,
    lookup_only: bool,
    everything: bool,
) -> Restored:
    """Restore a cache from a bundle or a directory; a missing or damaged one is a miss.

    Raises:
        UntrustedError, NoJaxError, NoCacheError, UsageError
    """
    cache_dir = os.path.abspath(target)
    if os.path.realpath(source) == os.path.realpath(target):
        raise UsageError(
            f"{source} is the cache itself",
            code="same-directory",
            hint="restore from another directory, or from a bundle: that is smaller, too",
        )
    bundle, plan = None, None
    try:
        bundle, left_out = _open(source)
        host = None if everything and python is None else _ask(python, platform)
        plan = _plan(bundle, cache_dir, left_out, host, everything)
    except (BundleError, NoCacheError) as error:
        plan = nothing_to_restore(cache_dir, source, error.message)
    try:
        if lookup_only:
            return Restored(plan, looked_up_only=True)
        with progress_bar("restoring") as progress:
            return execute_restore(
                make_store(target), bundle, plan, now_ns=time.time_ns(), progress=progress
            )
    finally:
        if bundle is not None:
            bundle.close()


def _open(source: str) -> tuple[Bundle, int]:
    """A bundle with what is at the source, and how many entries could not come into it.

    Raises:
        BundleError, NoCacheError: missing or damaged.
        UntrustedError
    """
    if os.path.isdir(source):
        if config_is_set("require-signed"):
            raise UntrustedError(
                f"{source} is a directory, which nobody has signed",
                hint="save and restore a bundle instead: jaxcache ci save FILE.jxb --sign KEY",
            )
        store = open_store(source)
        bundle, exported = make_in_between(store, plan_export(store, now_ns=time.time_ns()))
        return bundle, len(exported.left_out)
    if source != "-" and not os.path.lexists(first_part(source)):
        raise NoCacheError(f"{source} does not exist")
    bundle = open_input(source)
    check_trust(bundle)
    return bundle, 0


def _ask(python: str | None, platform: str | None) -> Host | None:
    """The jax of the job; None where none was named and ours has none."""
    import sys

    from jaxcache.warm.probe import has_jax, probe_host

    if not has_jax(python):
        return None
    return probe_host(python or sys.executable, job_environment(platform))


def _plan(
    bundle: Bundle, cache_dir: str, left_out: int, host: Host | None, everything: bool
) -> RestorePlan:
    store = open_store(cache_dir) if os.path.isdir(cache_dir) else None
    with progress_bar("checking") as progress:
        return plan_restore(
            store, bundle, cache_dir=cache_dir, host=host, left_out=left_out,
            everything=everything, progress=progress,
        )  # fmt: skip
