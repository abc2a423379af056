"""The steps of a CI job: the key of its cache, what it restores, and what it saves."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from jaxcache.api.bundles import check_signed, open_input, resumable
from jaxcache.api.moving import MovingMethods
from jaxcache.cache.bundle.compat import XLA_CACHES, Compatibility, Host
from jaxcache.cache.bundle.format import Bundle, BundleError
from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.ci import restore as ci_restore
from jaxcache.cache.ci import save as ci_save
from jaxcache.cache.ci.restore import CiKey, describe_environment, hash_files
from jaxcache.cache.ci.usage import read_baseline, take_baseline, write_baseline
from jaxcache.cache.ledger.record import HIT, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.move.bundle_file import check_file_name, is_bundle_name, spool, write_bundle
from jaxcache.cache.move.export_plan import with_ledger
from jaxcache.cache.move.plan import Outcome, Plan
from jaxcache.cache.trust import load_trusted, required_signatures, signing_keys
from jaxcache.errors import NoCacheError, UntrustedError
from jaxcache.layouts import check_layout, load_layout
from jaxcache.options.move import RestoreOptions, SaveOptions
from jaxcache.options.run import KeyOptions, job_environment
from jaxcache.render.move import trust_lines
from jaxcache.store import find_store, is_remote, make_store, open_store, require_writable
from jaxcache.store.base import StoreError
from jaxcache.store.location import locate_cache


class CiSteps:
    """The steps of a job about one cache: ``cache.ci``."""

    def __init__(self, cache: MovingMethods) -> None:
        self._cache = cache
        self._path = cache.location.path

    def key(self, options: KeyOptions) -> CiKey:
        """Return a key for the CI system's cache, from everything that JAX's keys depend on.

        Raises:
            NoJaxError, UsageError
        """
        from jaxcache.warm.child.query import probing

        files = hash_files(options.hash_files, os.getcwd()) if options.hash_files else None
        environment = job_environment(options.platform)
        probed = {**environment, XLA_CACHES: "none"}
        with probing(options.python, probed, features=True) as answer:
            host = answer()
        spelling = self._cache.location.spelling or self._path
        components = describe_environment(host, environment, cache_dir=spelling)
        return CiKey(components, files, options.prefix)

    def restore(self, source: str, options: RestoreOptions) -> ci_restore.RestoreResult:
        """Add the entries that can hit here; a source that is missing or damaged is a miss.

        Raises:
            UntrustedError, NoJaxError, NoCacheError, UsageError
        """
        self._cache.refuse_caches_below()
        host: Callable[[], Host | None] = lambda: None  # noqa: E731
        is_there = is_remote(source) or source == "-" or os.path.lexists(source)
        try:
            with resumable(), ExitStack() as opened:
                if is_there and (options.python is not None or not options.everything):
                    from jaxcache.warm.child.query import probing_host

                    environment = job_environment(options.platform)
                    probe = probing_host(options.python, environment=environment)
                    host = opened.enter_context(probe)  # which decides what is restored
                done, outlooks = self._restore(source, options, host)
            restored = ci_restore.RestoreResult(self._cache.path, source, done, outlooks)
        except (BundleError, NoCacheError, StoreError) as error:
            if error.code == "read-only":  # this is the target
                raise
            nothing = Outcome(Plan(source, self._path, ()), (), dry_run=options.lookup_only)
            restored = ci_restore.RestoreResult(
                self._cache.path,
                source,
                nothing,
                Compatibility((), None),
                error.message,
                error.code in ("no-cache", "missing"),
            )
        if not options.lookup_only:
            store = make_store(self._path)
            keys = restored.unusable_keys
            now_ns = self._cache.clock()
            write_baseline(
                store, take_baseline(store, source=source, unusable_keys=keys, now_ns=now_ns)
            )
        return restored

    def _restore(
        self, source: str, options: RestoreOptions, host: Callable[[], Host | None]
    ) -> tuple[Outcome, Compatibility]:
        target = open_store(self._cache.path) if os.path.isdir(self._path) else None
        is_new = target is None
        if target is not None:
            check_layout(target, "jax")
            if not options.lookup_only:
                require_writable(target)
        with ExitStack() as opened:
            bundle: Bundle | None = None
            if is_bundle_name(source):
                bundle = opened.enter_context(self._open(source))
                verdict = check_signed(bundle, required=options.require_signed)
                # Where nobody has set up signatures, each job would warn of the same.
                is_usual = not (verdict.unknown or verdict.unchecked or load_trusted())
                self._cache.note(*trust_lines(bundle.name, verdict, is_usual=is_usual))
                with self._cache.progress("checking", in_bytes=True):
                    bundle = verify_bundle(bundle, allow_large=options.allow_large)
            else:
                other = open_store(source)
                wanted = options.require_signed
                signed = required_signatures(other, load_layout("jax"), wanted=wanted)
            job = ci_restore.RestoreJob(self._path, host(), options)
            if target is None and not options.lookup_only:
                target = make_store(self._path)
            opened.enter_context(self._cache.progress("restoring"))
            if bundle is not None:
                done = ci_restore.restore_bundle(target, bundle, job)
                return done, ci_restore.forecast_restored(done, job)
            now_ns = self._cache.clock()
            try:
                done = ci_restore.restore_cache(other, target, job, signed=signed, now_ns=now_ns)
            except UntrustedError:
                if is_new:
                    with suppress(OSError):  # something has entered it
                        os.rmdir(self._path)
                raise
            return done, ci_restore.forecast_restored(done, job)

    @contextmanager
    def _open(self, source: str) -> Iterator[Bundle]:
        """Open a bundle.

        Raises:
            BundleError, NoCacheError, StoreError: missing, damaged, out of reach.
        """
        with ExitStack() as opened:
            if is_remote(source):
                directory, _, name = source.rpartition("/")
                with open_store(directory).open(name) as file:
                    bundle = spool(file, source)
                opened.enter_context(bundle.file)
            elif source == "-" or os.path.lexists(source):
                bundle = opened.enter_context(open_input(source))
            else:
                raise NoCacheError(f"{source} does not exist")
            yield replace(bundle, maker="ci save --save-if always")

    def plan_save(self, target: str, options: SaveOptions) -> ci_save.SavePlan:
        """Decide what to save; a bundle holds what the job needs, a shared cache bounds itself.

        Raises:
            NoCacheError, UsageError
            JaxcacheError: ``newer-target``.
        """
        is_bundle = is_bundle_name(target)
        if is_bundle and not is_remote(target):
            check_file_name(target)
        elif not is_bundle and (target_store := find_store(target)):
            MovingMethods(locate_cache(target)).refuse_caches_below()
            require_writable(target_store)
            if not target_store.remote:
                check_layout(target_store, "jax")
        store = self._cache.jax_store
        baseline = read_baseline(store)
        with self._cache.progress("reading entries"):
            planned = ci_save.plan_save(
                store,
                target,
                options,
                baseline=baseline,
                target_exists=_exists(target),
                environment=os.environ,
                now_ns=self._cache.clock(),
            )
        if is_bundle and planned.saves and baseline is not None:
            return ci_save.check_newer(planned, baseline, self._held_keys(target))
        return planned

    def _held_keys(self, target: str) -> list[str]:
        """Return the keys of the entries in a bundle; none where no job could restore it."""
        with (
            suppress(BundleError, NoCacheError, StoreError, UntrustedError),
            self._open(target) as bundle,
        ):
            check_signed(bundle)
            return [item.key for item in bundle.manifest.items]
        return []

    def save(
        self, plan: ci_save.SavePlan, options: SaveOptions, *, dry_run: bool = False
    ) -> ci_save.SaveResult:
        """Save what was planned; without anything to save, only note what was used.

        Args:
            dry_run: read and check what would be saved, and no more.

        Raises:
            JaxcacheError: ``io-error``, ``changed``, ``bound-out-of-reach``
            LockedError, NoCacheError
        """
        is_bundle = is_bundle_name(plan.target)
        store = open_store(plan.cache_dir)
        if dry_run:
            return ci_save.check_save(
                store, None if is_bundle else find_store(plan.target), plan, options
            )
        now_ns = self._cache.clock()
        signers = signing_keys(options.sign)
        if plan.why == "not-wanted":
            return ci_save.SaveResult(plan)
        # So that entries in use do not age, and stats reports the seconds that this step does.
        append(
            store,
            [
                Event(e.key, HIT, now_ns, {"timed": 1, "saved_seconds": e.compile_seconds or 0.0})
                for e in plan.usage.unrecorded
            ],
        )
        plan = replace(plan, export=with_ledger(plan.export, Ledger.load(store)))
        if plan.why == "empty" or (is_bundle and not plan.saves):
            return ci_save.SaveResult(plan)
        with self._cache.progress("saving", in_bytes=is_bundle):
            if not is_bundle:
                shared = make_store(plan.target)
                return ci_save.save_shared(
                    store, shared, plan, options, signers=signers, now_ns=now_ns
                )
            file = plan.target
            target = None
            if is_remote(file):
                directory, _, file = file.rpartition("/")
                target = open_store(directory)
            else:
                os.makedirs(os.path.dirname(os.path.abspath(file)), exist_ok=True)
            level = options.level
            written = write_bundle(store, plan.export, file, signers, target=target, level=level)
            entries = len(written.manifest.items)
            return ci_save.SaveResult(plan, entries, written.size_bytes, written.left_out)


def _exists(target: str) -> bool:
    """Return whether there is anything at the target."""
    if not is_remote(target):
        return os.path.lexists(target)
    directory, _, name = target.rpartition("/")
    with suppress(StoreError, NoCacheError):
        if is_bundle_name(target):
            open_store(directory).info(name)
            return True
        return next(iter(open_store(target).list()), None) is not None
    return False
