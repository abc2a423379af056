"""Restore from whatever the command line names as a source."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator

from jaxcache.cache.bundle.check import verify_bundle
from jaxcache.cache.bundle.compat import Compatibility
from jaxcache.cache.bundle.format import Bundle
from jaxcache.cache.bundle.manifest import BundleError
from jaxcache.cache.ci.restore import (
    RestoreJob,
    RestoreResult,
    forecast_restored,
    restore_bundle,
    restore_cache,
)
from jaxcache.cache.ci.usage import take_baseline, write_baseline
from jaxcache.cache.move.bundle_file import is_bundle_name, spool
from jaxcache.cache.move.plan import Outcome, Plan
from jaxcache.cache.move.signatures import required_signatures
from jaxcache.cli.bundle import (
    check_trust,
    interruptible,
    open_input,
    probing_host,
)
from jaxcache.cli.ci import check_local, job_environment
from jaxcache.cli.terminal.progress import progress_bar
from jaxcache.errors import NoCacheError, UntrustedError
from jaxcache.layouts import check_layout, load_layout
from jaxcache.options.move import RestoreOptions
from jaxcache.store import is_remote, make_store, open_store, require_writable
from jaxcache.store.base import StoreError


def restore(source: str, target: str, options: RestoreOptions) -> RestoreResult:
    """Restore a cache; a source that is missing, damaged or out of reach is a miss.

    Raises:
        UntrustedError, NoJaxError, NoCacheError, UsageError
    """
    check_local(target, source)
    cache_dir = os.path.abspath(target)
    try:
        with interruptible():
            done, outlooks = _restore(source, target, options)
        restored = RestoreResult(cache_dir, source, done, outlooks)
    except (BundleError, NoCacheError, StoreError) as error:
        is_missing = error.code in ("no-cache", "missing")
        nothing = Outcome(Plan(source, target, ()), (), dry_run=options.lookup_only)
        restored = RestoreResult(
            cache_dir, source, nothing, Compatibility((), None), error.message, is_missing
        )
    if not options.lookup_only:
        store = make_store(target)
        write_baseline(store, take_baseline(store, source=source, now_ns=time.time_ns()))
    return restored


def _restore(source: str, target: str, options: RestoreOptions) -> tuple[Outcome, Compatibility]:
    lookup_only = options.lookup_only
    store = open_store(os.path.abspath(target)) if os.path.isdir(target) else None
    if store is not None:
        check_layout(store, "jax")
        if not lookup_only:
            require_writable(store)
    with contextlib.ExitStack() as opened:
        if is_bundle_name(source):
            bundle = opened.enter_context(open_source(source, signed=options.require_signed))
            job = _job(target, options)
            if not lookup_only:
                store = store or make_store(target)
            with progress_bar("checking", in_bytes=True) as progress:
                bundle = verify_bundle(bundle, progress, allow_large=job.allow_large)
            with progress_bar("restoring") as progress:
                done = restore_bundle(
                    store, bundle, job, lookup_only=lookup_only, progress=progress
                )
            return done, forecast_restored(done, job)
        cache = open_store(source)
        job = _job(target, options)
        jax = load_layout("jax")
        signed = required_signatures(cache, jax, wanted=options.require_signed)
        if store is None and not lookup_only:
            store = make_store(target)
            opened.push(_remove_if_untrusted(target))
        progress = opened.enter_context(progress_bar("restoring"))
        done = restore_cache(
            cache,
            store,
            job,
            lookup_only=lookup_only,
            signed=signed,
            jobs=options.jobs,
            now_ns=time.time_ns(),
            progress=progress,
        )
        return done, forecast_restored(done, job)


def _remove_if_untrusted(path: str) -> Callable[..., None]:
    """Return what removes a new directory that nothing has entered."""

    def leave(_: object, error: BaseException | None, *__: object) -> None:
        if isinstance(error, UntrustedError):
            with contextlib.suppress(OSError):
                os.rmdir(path)

    return leave


def _job(target: str, options: RestoreOptions) -> RestoreJob:
    """Ask the jax of the job what its keys depend on, where that decides what is restored."""
    host = None
    if options.python is not None or not options.everything:
        environment = job_environment(options.platform)
        with probing_host(options.python, environment=environment) as answer:
            host = answer()
    return RestoreJob(target, host, options.everything, options.allow_large)


@contextlib.contextmanager
def open_source(source: str, *, signed: bool = False) -> Iterator[Bundle]:
    """Open a bundle and check who signed it.

    Args:
        signed: a trusted key must have.

    Raises:
        BundleError, NoCacheError, StoreError: missing, damaged, out of reach.
        UntrustedError
    """
    if is_remote(source):
        directory, _, name = source.rpartition("/")
        with open_store(directory).open(name) as file:
            bundle = spool(file, source)
    elif source == "-" or os.path.lexists(source):
        bundle = open_input(source)
    else:
        raise NoCacheError(f"{source} does not exist")
    with bundle.file:
        check_trust(bundle, required=signed)
        yield bundle
