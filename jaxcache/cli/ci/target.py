"""Save to whatever the command line names as a target."""

import os
import time
from dataclasses import replace

from jaxcache.cache.bundle.manifest import BundleError
from jaxcache.cache.ci.save import (
    SavePlan,
    SaveResult,
    check_newer,
    check_save,
    parse_job_status,
    plan_save,
    save_shared,
)
from jaxcache.cache.ci.usage import read_baseline
from jaxcache.cache.ledger.record import HIT, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.move.bundle_file import check_file_name, is_bundle_name, write_bundle
from jaxcache.cache.move.export_plan import with_ledger
from jaxcache.cache.trust import signing_keys
from jaxcache.cli.ci import check_local
from jaxcache.cli.ci.source import open_source
from jaxcache.cli.opening import open_handle
from jaxcache.cli.terminal.progress import progress_bar
from jaxcache.errors import NoCacheError, UntrustedError
from jaxcache.layouts import check_layout
from jaxcache.options.move import SaveOptions
from jaxcache.store import find_store, is_remote, make_store, open_store, require_writable
from jaxcache.store.base import StoreError


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
        require_writable(target_store)
        if not target_store.remote:
            check_layout(target_store, "jax")
    store = open_handle(cache_dir).jax_store
    baseline = read_baseline(store)
    with progress_bar("reading entries") as progress:
        planned = plan_save(
            store,
            target,
            baseline=baseline,
            save_if=options.save_if,
            target_exists=_exists(target),
            max_size_bytes=options.max_size_bytes if bundle else None,
            unused_for_seconds=options.unused_for_seconds,
            finished=parse_job_status(options.job_status),
            environment=os.environ,
            now_ns=time.time_ns(),
            progress=progress,
        )
    if bundle and planned.saves and baseline is not None:
        check_newer(planned, baseline, _held_keys(target))
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
    is_bundle = is_bundle_name(plan.target)
    target = None if is_bundle else find_store(plan.target)
    allow_large = options.allow_large or is_bundle
    return check_save(open_store(plan.cache_dir), target, plan, allow_large=allow_large)


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
    # So that entries in use do not age.
    append(store, [Event(key, HIT, now_ns) for key in plan.usage.unrecorded])
    plan = replace(plan, export=with_ledger(plan.export, Ledger.load(store)))
    if plan.why == "empty" or (bundle and not plan.saves):
        return SaveResult(0, 0)
    with progress_bar("saving", in_bytes=bundle) as progress:
        if not bundle:
            return save_shared(
                store,
                make_store(plan.target),
                plan,
                bounds=options.pruning,
                private_keys=signers,
                allow_large=options.allow_large,
                now_ns=now_ns,
                progress=progress,
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
