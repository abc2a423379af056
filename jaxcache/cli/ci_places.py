"""Restore from, and save to, the bundle, directory or URL that the command line names."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from jaxcache.cache.bundle.compat import Compatibility, Host
from jaxcache.cache.bundle.format import Bundle
from jaxcache.cache.bundle.manifest import BundleError
from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.ci.restore import (
    RestoreJob,
    RestoreResult,
    forecast_restored,
    restore_bundle,
    restore_cache,
)
from jaxcache.cache.ci.save import (
    SavePlan,
    SaveResult,
    check_newer,
    check_save,
    plan_save,
    save_shared,
)
from jaxcache.cache.ci.usage import read_baseline, take_baseline, write_baseline
from jaxcache.cache.ledger.record import HIT, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.move.bundle_file import check_file_name, is_bundle_name, spool, write_bundle
from jaxcache.cache.move.export_plan import with_ledger
from jaxcache.cache.move.plan import Outcome, Plan
from jaxcache.cache.move.signatures import required_signatures
from jaxcache.cache.trust import signing_keys
from jaxcache.cli.move import (
    check_trust,
    interruptible,
    open_input,
)
from jaxcache.cli.opening import check_local, open_handle
from jaxcache.cli.terminal import progress_bar
from jaxcache.errors import NoCacheError, UntrustedError
from jaxcache.layouts import check_layout, load_layout
from jaxcache.options.move import RestoreOptions, SaveOptions
from jaxcache.store import find_store, is_remote, make_store, open_store, require_writable
from jaxcache.store.base import StoreError


def restore(
    source: str, target: str, options: RestoreOptions, host: Callable[[], Host | None]
) -> RestoreResult:
    """Restore a cache; a source that is missing, damaged or out of reach is a miss.

    Args:
        host: waits for the jax of the job, which decides what is restored.

    Raises:
        UntrustedError, NoJaxError, NoCacheError, UsageError
    """
    cache_dir = os.path.abspath(target)
    try:
        with interruptible():
            done, outlooks = _restore(source, target, options, host)
        restored = RestoreResult(cache_dir, source, done, outlooks)
    except (BundleError, NoCacheError, StoreError) as error:
        if error.code == "read-only":  # this is the target
            raise
        is_missing = error.code in ("no-cache", "missing")
        nothing = Outcome(Plan(source, target, ()), (), dry_run=options.lookup_only)
        restored = RestoreResult(
            cache_dir, source, nothing, Compatibility((), None), error.message, is_missing
        )
    if not options.lookup_only:
        store = make_store(target)
        baseline = take_baseline(
            store, source=source, unusable_keys=restored.unusable_keys, now_ns=time.time_ns()
        )
        write_baseline(store, baseline)
    return restored


def _restore(
    source: str, target: str, options: RestoreOptions, host: Callable[[], Host | None]
) -> tuple[Outcome, Compatibility]:
    lookup_only = options.lookup_only
    store = open_store(os.path.abspath(target)) if os.path.isdir(target) else None
    if store is not None:
        check_layout(store, "jax")
        if not lookup_only:
            require_writable(store)
    with contextlib.ExitStack() as opened:
        if is_bundle_name(source):
            bundle = opened.enter_context(open_source(source, signed=options.require_signed))
            with progress_bar("checking", in_bytes=True) as progress:
                bundle = verify_bundle(bundle, progress, allow_large=options.allow_large)
            job = RestoreJob(target, host(), options)
            if not lookup_only:
                store = store or make_store(target)
            with progress_bar("restoring") as progress:
                done = restore_bundle(store, bundle, job, progress)
            return done, forecast_restored(done, job)
        cache = open_store(source)
        jax = load_layout("jax")
        signed = required_signatures(cache, jax, wanted=options.require_signed)
        job = RestoreJob(target, host(), options)
        if store is None and not lookup_only:
            store = make_store(target)
            opened.push(_remove_if_untrusted(target))
        progress = opened.enter_context(progress_bar("restoring"))
        now_ns = time.time_ns()
        done = restore_cache(cache, store, job, signed=signed, now_ns=now_ns, progress=progress)
        return done, forecast_restored(done, job)


def _remove_if_untrusted(path: str) -> Callable[..., None]:
    """Return what removes a new directory that nothing has entered."""

    def leave(_: object, error: BaseException | None, *__: object) -> None:
        if isinstance(error, UntrustedError):
            with contextlib.suppress(OSError):
                os.rmdir(path)

    return leave


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


def plan(cache_dir: str, target: str, options: SaveOptions) -> SavePlan:
    """Look at the job's cache and decide what to save.

    A bundle holds what the job needs; a shared cache bounds itself.

    Raises:
        NoCacheError, UsageError
        JaxcacheError: ``newer-target``.
    """
    check_local(cache_dir, target)
    bundle = is_bundle_name(target)
    if bundle and not is_remote(target):
        check_file_name(target)
    elif not bundle and (target_store := find_store(target)):
        open_handle(target).refuse_caches_below()
        require_writable(target_store)
        if not target_store.remote:
            check_layout(target_store, "jax")
    store = open_handle(cache_dir).jax_store
    baseline = read_baseline(store)
    with progress_bar("reading entries") as progress:
        planned = plan_save(
            store,
            target,
            options,
            baseline=baseline,
            target_exists=_exists(target),
            environment=os.environ,
            now_ns=time.time_ns(),
            progress=progress,
        )
    if bundle and planned.saves and baseline is not None:
        return check_newer(planned, baseline, _held_keys(target))
    return planned


def _held_keys(target: str) -> list[str]:
    """Return the keys of the entries in a bundle; none where no job could restore it."""
    try:
        with open_source(target) as bundle:
            return [item.key for item in bundle.manifest.items]
    except (BundleError, NoCacheError, StoreError, UntrustedError):
        return []


def _exists(target: str) -> bool:
    """Return whether there is anything at the target."""
    if not is_remote(target):
        return os.path.lexists(target)
    directory, _, name = target.rpartition("/")
    try:
        if is_bundle_name(target):
            open_store(directory).info(name)
            return True
        return next(iter(open_store(target).list()), None) is not None
    except (StoreError, NoCacheError):
        return False


def check(plan: SavePlan, options: SaveOptions) -> SaveResult:
    """Read and check what would be saved."""
    target = None if is_bundle_name(plan.target) else find_store(plan.target)
    return check_save(open_store(plan.cache_dir), target, plan, options)


def carry_out(plan: SavePlan, options: SaveOptions) -> SaveResult:
    """Save what was planned; without anything to save, only note what was used.

    Raises:
        JaxcacheError: ``io-error``, ``changed``, ``bound-out-of-reach``; LockedError, NoCacheError
    """
    now_ns = time.time_ns()
    signers = signing_keys(options.sign)
    bundle = is_bundle_name(plan.target)
    store = open_store(plan.cache_dir)
    if plan.why == "not-wanted":
        return SaveResult(0, 0)
    # So that entries in use do not age, and stats reports the seconds that this step does.
    append(
        store,
        [
            Event(e.key, HIT, now_ns, {"timed": 1, "saved_seconds": e.compile_seconds or 0.0})
            for e in plan.usage.unrecorded
        ],
    )
    plan = replace(plan, export=with_ledger(plan.export, Ledger.load(store)))
    if plan.why == "empty" or (bundle and not plan.saves):
        return SaveResult(0, 0)
    with progress_bar("saving", in_bytes=bundle) as progress:
        if not bundle:
            shared = make_store(plan.target)
            return save_shared(
                store, shared, plan, options, signers=signers, now_ns=now_ns, progress=progress
            )
        file = plan.target
        target_store = None
        if is_remote(file):
            directory, _, file = file.rpartition("/")
            target_store = open_store(directory)
        else:
            os.makedirs(os.path.dirname(os.path.abspath(file)), exist_ok=True)
        written = write_bundle(
            store,
            plan.export,
            file,
            signers,
            target=target_store,
            level=options.level,
            progress=progress,
        )
        return SaveResult(len(written.manifest.items), written.size_bytes, written.left_out)
