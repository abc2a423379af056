"""Restore from whatever the command line names as a source."""

import os
import time

from jaxcache.cache.bundle.deliver import is_bundle_name, spool
from jaxcache.cache.bundle.manifest import BundleError
from jaxcache.cache.ci.restore import Restored, execute_restore, nothing_to_restore, plan_restore
from jaxcache.cache.ci.staging import SharedBundle, fetch_directory, fetch_missing
from jaxcache.cli.bundle import asking_host, check_trust, open_input, required_signatures
from jaxcache.cli.ci import check_local, job_environment
from jaxcache.cli.opening import Opened
from jaxcache.cli.options import require_writable
from jaxcache.cli.terminal.progress import progress_bar
from jaxcache.errors import NoCacheError
from jaxcache.layouts import check_layout, load_layout
from jaxcache.options.move import RestoreOptions
from jaxcache.store import is_remote, make_store, open_store
from jaxcache.store.base import Store, StoreError


def restore(source: str, target: str, options: RestoreOptions) -> Restored:
    """Restore a cache; a source that is missing, damaged or out of reach is a miss.

    Raises:
        UntrustedError, NoJaxError, NoCacheError, UsageError
    """
    check_local(target, source)
    cache_dir = os.path.abspath(target)
    fetched = None
    try:
        store = open_store(cache_dir) if os.path.isdir(cache_dir) else None
        if store is not None:
            check_layout(store, "jax")
            if not options.lookup_only:
                require_writable(store)
        fetched = _fetch(source, store, options.allow_large)
        host = None
        if options.python is not None or not options.everything:
            environment = job_environment(options.platform)
            with asking_host(options.python, environment=environment) as answer:
                host = answer()
        with progress_bar("checking", in_bytes=True) as progress:
            plan = plan_restore(
                store,
                fetched,
                source=source,
                cache_dir=target,
                host=host,
                everything=options.everything,
                allow_large=options.allow_large,
                progress=progress,
            )
    except (BundleError, NoCacheError, StoreError) as error:
        plan = nothing_to_restore(
            cache_dir, source, error.message, is_missing=error.code in ("no-cache", "missing")
        )
    bundle = fetched.bundle if fetched else None
    try:
        if options.lookup_only:
            return Restored(plan, looked_up_only=True)
        with progress_bar("restoring") as progress:
            return execute_restore(
                make_store(target), bundle, plan, now_ns=time.time_ns(), progress=progress
            )
    finally:
        if bundle is not None:
            bundle.close()


def _fetch(source: str, target: Store | None, allow_large: bool) -> SharedBundle:
    """Return the source as a bundle.

    Raises:
        BundleError, NoCacheError, StoreError: missing, damaged, out of reach.
        UntrustedError
    """
    if is_bundle_name(source):
        if is_remote(source):
            folder, _, name = source.rpartition("/")
            with open_store(folder).open(name) as file:
                bundle = spool(file, source)
        elif source == "-" or os.path.lexists(source):
            bundle = open_input(source)
        else:
            raise NoCacheError(f"{source} does not exist")
        check_trust(bundle)
        return SharedBundle(bundle, 0)
    store = open_store(source)
    signed = required_signatures(Opened(store, load_layout("jax")))
    if signed is None and not store.remote:
        return fetch_directory(store, allow_large=allow_large, now_ns=time.time_ns())
    with progress_bar("fetching") as progress:
        return fetch_missing(
            store,
            target,
            signed=signed,
            allow_large=allow_large,
            now_ns=time.time_ns(),
            progress=progress,
        )
