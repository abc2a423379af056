"""Move entries: bundles, and the differences of two caches."""

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxcache.api.bundles import check_signed, resumable
from jaxcache.api.handle import Handle, refuse_foreign
from jaxcache.errors import JaxcacheError, NoJaxError, UsageError, system_errors_as
from jaxcache.layouts import check_layout, load_layout
from jaxcache.options import move
from jaxcache.store import is_remote, require_writable

if TYPE_CHECKING:
    from typing import Unpack

    from jaxcache.cache.bundle.compat import Arrival as Arrival
    from jaxcache.cache.bundle.compat import Compatibility, Host
    from jaxcache.cache.bundle.format import Bundle as Bundle
    from jaxcache.cache.bundle.format import Manifest
    from jaxcache.cache.diff import Diff
    from jaxcache.cache.move.bundle_file import WrittenBundle as WrittenBundle
    from jaxcache.cache.move.export_plan import ExportPlan
    from jaxcache.cache.move.plan import Outcome
    from jaxcache.cache.move.plan import Plan as Plan
    from jaxcache.cache.trust import Verdict as Verdict
    from jaxcache.model import Problem
    from jaxcache.options.keywords import ExportKeywords, ImportKeywords, PushKeywords


class _RefusedError(Exception):
    """A caller does not accept a plan."""


class MovingMethods(Handle):
    """See :class:`jaxcache.api.Cache`."""

    def diff(self, other: "MovingMethods") -> "Diff":
        """Compare with another cache or bundle by what the entries hold.

        >>> cache.diff(other).equal
        False

        Raises:
            UsageError: ``other-layout``.
        """
        from jaxcache.cache.diff import diff_sides
        from jaxcache.layouts import check_same_layout, open_side

        for place in (self.location.path, other.location.path):
            if os.path.isdir(place):
                refuse_foreign(place)
        with self.progress("reading"):
            sides = [
                open_side(cache.location.path, layout=cache.layout_name) for cache in (self, other)
            ]
        check_same_layout(*sides)
        return diff_sides(*sides)

    def export(
        self,
        file: str | os.PathLike[str],
        *keys: str,
        **keywords: "Unpack[ExportKeywords]",
    ) -> "Manifest":
        """Write entries into a bundle, and return its manifest.

        >>> len(cache.export("cache.jxb", "jit_mlp*").items)
        1

        Args:
            keywords: those of :class:`jaxcache.options.move.ExportOptions`: ``filters``, ``level``,
                ``since`` (a bundle or a cache; only what it lacks), ``sign`` (files of private
                keys).

        Raises:
            UsageError: ``exists``, if the file exists and is not a bundle.
        """
        chosen = move.ExportOptions.read(keys=keys, **keywords)
        return self.export_chosen(os.fspath(file), options=chosen).manifest

    def plan_export(
        self,
        *keys: str,
        options: move.ExportOptions | None = None,
        **keywords: "Unpack[ExportKeywords]",
    ) -> "ExportPlan":
        """Choose what :meth:`export` would write.

        >>> len(cache.plan_export("jit_mlp*").writes)
        1
        """
        from jaxcache.layouts import open_side

        chosen = move.ExportOptions.choose(options, keys=keys, **keywords)
        with self.progress("reading"):
            since = None
            if chosen.since:
                since = open_side(chosen.since, layout=self.layout_name)
            return self.layout.exports.plan_export(
                self.store,
                keys=chosen.keys,
                filters=chosen.filters,
                since=since,
                side_caches=chosen.side_caches,
                now_ns=self.clock(),
            )

    def write_bundle(
        self,
        plan: "ExportPlan",
        file: str | os.PathLike[str],
        *,
        level: int | None = None,
        sign: Sequence[str] = (),
    ) -> "WrittenBundle":
        """Write what was planned into a bundle.

        >>> cache.write_bundle(cache.plan_export(), "cache.jxb").left_out
        ()

        Args:
            sign: files or names of private keys.

        Raises:
            JaxcacheError: ``io-error``.
        """
        from jaxcache.cache.move.bundle_file import write_bundle
        from jaxcache.cache.trust import signing_keys

        path = os.fspath(file)
        signers = signing_keys(sign)
        with (
            system_errors_as(JaxcacheError, f"cannot write {path}", code="io-error"),
            self.progress("exporting", in_bytes=True),
        ):
            return write_bundle(self.store, plan, path, signers, level=level)

    def import_(
        self,
        file: str | os.PathLike[str],
        *,
        trusted: str | os.PathLike[str] | None = None,
        accept: "Callable[[Plan], bool] | None" = None,
        **keywords: "Unpack[ImportKeywords]",
    ) -> "Outcome | None":
        """Bring in what a bundle holds, every byte of it checked before.

        >>> manifest = cache.export("cache.jxb")
        >>> len(other.import_("cache.jxb").written)
        7

        Args:
            trusted: a directory with ``trusted-keys``; only what one of them has signed. By default
                the user's own keys, and only where ``require-signed`` is configured.
            accept: receives the plan; if it returns False, nothing is written and None is returned.
            keywords: those of :class:`jaxcache.options.move.ImportOptions`:
                ``on_conflict``, ``atomic``, ``side_caches``, ``level``, ``jobs``, ``allow_large``,
                ``require_signed``.

        Raises:
            UsageError: ``other-layout``: the bundle holds another compiler's cache.
            UntrustedError: no trusted key has signed it, or a signature is invalid.
            JaxcacheError: ``bad-bundle``, with ``atomic`` for one damaged entry, too; ``conflict``
                where ``on_conflict`` is ``"fail"``.
        """
        from jaxcache.cache.bundle.format import open_bundle

        chosen = move.ImportOptions.read(**keywords)

        def check(plan: "Plan") -> None:
            if accept is not None and not accept(plan):
                raise _RefusedError

        with contextlib.closing(open_bundle(os.fspath(file))) as bundle:
            check_layout(self.store, bundle.manifest.layout)
            check_signed(bundle, trusted, required=chosen.require_signed)
            with contextlib.suppress(_RefusedError):
                return self.receive(bundle, options=chosen, check=check)
        return None

    def receive(
        self,
        bundle: "Bundle",
        *,
        options: move.ImportOptions | move.SyncOptions,
        check: "Callable[[Plan], None] | None" = None,
        dry_run: bool = False,
    ) -> "Outcome":
        """Check every byte of an open bundle, and bring in what it holds, whoever signed it.

        >>> from jaxcache.cache.bundle.format import open_bundle
        >>> from jaxcache.options.move import ImportOptions
        >>> manifest = cache.export("cache.jxb")
        >>> bundle = open_bundle("cache.jxb")
        >>> len(other.receive(bundle, options=ImportOptions(), dry_run=True).written)
        7
        >>> bundle.close()

        Args:
            check: shown the plan before anything is written; what it raises comes back.

        Raises:
            JaxcacheError: ``bad-bundle``, ``conflict``, ``read-only``
        """
        from jaxcache.cache.bundle.reader import verify_bundle
        from jaxcache.cache.move.import_bundle import execute_import

        with self.progress("checking", in_bytes=True):
            bundle = verify_bundle(bundle, allow_large=options.allow_large, atomic=options.atomic)
        if self.existing:
            require_writable(self.existing)
        with self.progress("comparing"):
            plan = load_layout(bundle.manifest.layout).imports.plan_import(
                self.existing,
                bundle,
                cache_dir=self.path,
                on_conflict=options.on_conflict,
                side_caches=options.side_caches,
            )
        if check is not None:
            check(plan)
        with self.progress("importing"):
            return execute_import(
                None if dry_run else self.make(),
                bundle,
                plan,
                level=options.level,
                atomic=options.atomic,
                jobs=options.jobs,
            )

    def import_and_forecast(
        self,
        bundle: "Bundle",
        verdict: "Verdict",
        *,
        options: move.ImportOptions | move.SyncOptions,
        needed: move.CompatibilityOptions | None = None,
        dry_run: bool = False,
    ) -> "Arrival":
        """Bring in what an open bundle holds, and forecast what of it will hit.

        >>> from jaxcache.api.bundles import check_signed, open_input
        >>> from jaxcache.options.move import ImportOptions
        >>> manifest = cache.export("cache.jxb")
        >>> options = ImportOptions()
        >>> with open_input("cache.jxb") as bundle:
        ...     arrival = other.import_and_forecast(bundle, check_signed(bundle), options=options)
        >>> len(arrival.done.written)
        7

        Args:
            needed: the Python that is to use the cache, and what must be known of it before
                anything is written; None forecasts without it.

        Raises:
            JaxcacheError: ``incompatible``, ``conflict``, ``bad-bundle``.
        """
        from jaxcache.cache.bundle.compat import XLA_CACHES, Arrival, forecast
        from jaxcache.render.move import forecast_line

        required = needed is not None and needed.require_compatible
        is_jax = load_layout(bundle.manifest.layout).single_file_entries
        if required and not is_jax:
            raise UsageError(
                "--require-compatible is for JAX's entries; torch alone can check its keys"
            )
        target = self.location.path
        python = needed.python if needed else None
        decides = required or python is not None
        asks_jax = is_jax and needed is not None and (decides or dry_run)
        host: Callable[[], Host | None] = lambda: None  # noqa: E731
        outlooks: Compatibility | None = None

        def check(_: "Plan") -> None:
            nonlocal outlooks
            if decides:
                outlooks = forecast(bundle.manifest, host(), target)
            if outlooks and required and not outlooks.compatible:
                raise JaxcacheError(
                    f"not every entry of {bundle.name} is known to hit: {forecast_line(outlooks)}",
                    code="incompatible",
                    hint=f"set {XLA_CACHES}=none for this command and for the program"
                    if any(f.portable for f in outlooks.forecasts)
                    else "change what the message names, or import without --require-compatible",
                )

        with contextlib.ExitStack() as opened:
            if asks_jax:  # which starts while all other work is done
                from jaxcache.warm.child.query import probing_host

                host = opened.enter_context(probing_host(python, required=required))
            with resumable():
                done = self.receive(bundle, options=options, check=check, dry_run=dry_run)
            if outlooks is None:
                answer = None
                try:
                    answer = host()
                except NoJaxError as error:
                    self.note(f"warning: cannot forecast the hits: {error.message}")
                outlooks = forecast(bundle.manifest, answer, target)
        digest = bundle.manifest_sha256
        return Arrival(done, outlooks, verdict, asks_jax, bundle_sha256=digest)

    def push_and_forecast(
        self,
        target: "MovingMethods",
        *,
        options: move.SyncOptions,
        confirm: "Callable[[Plan], None]" = lambda _: None,
        pulls: bool = False,
        dry_run: bool = False,
    ) -> "Arrival":
        """Send what another cache lacks, and forecast what will hit there; of torch through a copy.

        >>> from jaxcache.options.move import SyncOptions
        >>> len(cache.push_and_forecast(other, options=SyncOptions()).done.carried)
        7

        Args:
            confirm: shown the plan where it removes anything from the target; what it raises comes
                back.
            pulls: the target is where the entries are to be used, and a source without entries is
                none at all.

        Raises:
            NoCacheError: a place cannot be reached, or there is nothing to get.
            UntrustedError: no ``cryptography``, or a list of keys that others may write.
            JaxcacheError: ``read-only``, ``interrupted``.
        """
        from jaxcache.cache.bundle.compat import Arrival, forecast_steps
        from jaxcache.cache.files import nothing_there

        if not self.layout.single_file_entries:
            return self.copy(target, options=options, lacking=True, dry_run=dry_run)
        vouched = is_remote(target.path) or bool(options.sign and not pulls)
        plan = self.plan_push(target, vouched=vouched, options=options)
        if pulls and not plan.entries:
            raise nothing_there(self.store.url)
        place = plan.target if pulls else None
        is_far = self.store.remote
        outlooks = None if is_far else forecast_steps(self.store, plan.writes, place)
        if plan.removals and not dry_run:
            confirm(plan)
        with resumable():
            done = self.carry(plan, target, options=options, dry_run=dry_run)
        if is_far and target.existing and not (target.existing.remote or done.dry_run):
            # The bytes are here now, so that reading them costs no request.
            outlooks = forecast_steps(target.existing, done.written, place)
        return Arrival(done, outlooks)

    def export_chosen(
        self, file: str, *, options: move.ExportOptions | move.CopyOptions
    ) -> "WrittenBundle":
        """Write into a bundle what the options of a command choose.

        >>> from jaxcache.options.move import ExportOptions
        >>> cache.export_chosen("cache.jxb", options=ExportOptions()).left_out
        ()

        Args:
            file: its path; of an export ``-`` for standard output.

        Raises:
            UsageError: ``exists``, if the file exists and is not a bundle.
        """
        from jaxcache.cache.move.bundle_file import check_file_name

        if file != "-" or isinstance(options, move.CopyOptions):
            check_file_name(file)
        plan = (
            self.plan_offer(options)
            if isinstance(options, move.CopyOptions)
            else self.plan_export(options=options)
        )
        self.note(*(f"warning: {warning}" for warning in plan.warnings))
        return self.write_bundle(plan, file, level=options.level, sign=options.sign)

    def push(
        self,
        target: "MovingMethods",
        *,
        trusted: str | os.PathLike[str] | None = None,
        accept: "Callable[[Plan], bool] | None" = None,
        **keywords: "Unpack[PushKeywords]",
    ) -> "Outcome | None":
        """Send the entries that another cache lacks; what is sound there is never replaced.

        >>> len(cache.push(other, include=["jit_mlp*"]).carried)
        1

        To pull is to have the other cache push here. For caches of JAX.

        Args:
            trusted: as of :meth:`import_`; for what goes into a directory.
            accept: receives the plan; if it returns False, nothing happens and None is returned.
            keywords: those of :class:`jaxcache.options.move.PushOptions`: ``include``, ``exclude``,
                ``filters``, ``max_size``, ``make_room``, ``side_caches``, ``ledger``, ``jobs``,
                ``sign``, ``require_signed``, ``allow_large``.

        Raises:
            UsageError: ``other-layout``.
            NoCacheError: a store cannot be reached; what went over until then is whole.
        """
        chosen = move.PushOptions.read(**keywords)
        plan = self.plan_push(target, trusted=trusted, options=chosen)
        if accept is not None and not accept(plan):
            return None
        return self.carry(plan, target, options=chosen)

    def plan_push(
        self,
        target: "MovingMethods",
        *,
        trusted: str | os.PathLike[str] | None = None,
        vouched: bool | None = None,
        on_conflict: str | None = None,
        options: move.SyncOptions | None = None,
        **keywords: "Unpack[PushKeywords]",
    ) -> "Plan":
        """Compare two caches, and choose what :meth:`push` would send.

        >>> len(cache.plan_push(other, include=["jit_mlp*"]).transfers)
        1

        Args:
            vouched: whether what is sent needs no signature that a configuration file requires;
                by default a bucket, and what is signed on the way.
            on_conflict: see :func:`jaxcache.cache.move.sync.plan_copy`.

        Raises:
            UsageError: ``other-layout``.
            UntrustedError: no ``cryptography``, or a list of keys that others may write.
            JaxcacheError: ``read-only``
        """
        from jaxcache.cache.move.sync import plan_sync
        from jaxcache.cache.trust import required_signatures, signing_keys

        chosen = move.PushOptions.read(**keywords) if options is None else options
        store = self.jax_store
        target_store = target.existing
        if target_store:
            check_layout(target_store, "jax")
            require_writable(target_store)
        signing_keys(chosen.sign)  # before anything is read
        if vouched is None:
            vouched = bool(chosen.sign) or is_remote(target.path)
        wanted = chosen.require_signed or trusted is not None
        signed = None
        if wanted or not vouched:
            signed = required_signatures(store, self.layout, trusted, wanted=wanted)
        index = None
        if (
            chosen.max_size_bytes is not None
            and target_store
            and target_store.remote
            and self._index_directory
        ):
            from jaxcache.cache.index import Index

            index = Index.load(self._index_directory, target_store.url, now_ns=self.clock())
        with self.progress("comparing"):
            return plan_sync(
                store,
                target_store,
                chosen,
                target_url=target.path,
                now_ns=self.clock(),
                signed=signed,
                index=index,
                on_conflict=on_conflict,
            )

    def carry(
        self,
        plan: "Plan",
        target: "MovingMethods",
        *,
        dry_run: bool = False,
        options: move.SyncOptions | None = None,
        **keywords: "Unpack[PushKeywords]",
    ) -> "Outcome":
        """Send what was planned; each entry is checked on the way.

        >>> cache.carry(cache.plan_push(other), other).complete
        True

        Args:
            keywords: those that are not for the plan: ``jobs``, the files under way at once, and
                ``sign``, files or names of private keys, which vouch for what the target has then.

        Raises:
            NoCacheError: a store cannot be reached; what went over until then is whole.
        """
        from jaxcache.cache.move.execute import carry_out
        from jaxcache.cache.move.stores import make_source
        from jaxcache.cache.trust import signing_keys

        chosen = move.PushOptions.read(**keywords) if options is None else options
        with self.progress("checking" if dry_run else "copying"):
            return carry_out(
                make_source(self.store, plan),
                target.existing if dry_run else target.make(),
                plan,
                now_ns=self.clock(),
                atomic=chosen.atomic,
                jobs=chosen.jobs,
                signers=signing_keys(chosen.sign),
                dry_run=dry_run,
            )

    def plan_offer(
        self, options: move.SyncOptions, lacking: "MovingMethods | None" = None
    ) -> "ExportPlan":
        """Choose what a bundle gets that this cache is copied into.

        >>> from jaxcache.options.move import SyncOptions
        >>> len(cache.plan_offer(SyncOptions(include=("jit_mlp*",))).writes)
        1

        Args:
            lacking: of torch: only the files that this cache lacks.

        Raises:
            UsageError: an option that is for JAX's caches alone.
        """
        from jaxcache.cache.diff import DiffSide
        from jaxcache.cache.move.sync import plan_offer
        from jaxcache.layouts import names_there

        if self.layout.single_file_entries:
            return plan_offer(self.store, options, by_use=False, now_ns=self.clock())
        if options.exclude or options.max_size_bytes is not None:
            raise UsageError("--exclude and --max-size are for JAX's caches; prune first")
        path = lacking.location.path if lacking else ""
        return self.layout.exports.plan_export(
            self.store,
            keys=options.include,
            filters=options.filters,
            since=DiffSide(path, {}, files=names_there(path)) if lacking else None,
            side_caches=options.side_caches and not (options.include or options.filters),
            now_ns=self.clock(),
        )

    def copy(
        self,
        target: "MovingMethods",
        *,
        options: move.SyncOptions,
        lacking: bool = False,
        dry_run: bool = False,
    ) -> "Arrival":
        """Copy entries file by file, each compared with the target's; of torch through a bundle.

        >>> from jaxcache.options.move import SyncOptions
        >>> len(cache.copy(other, options=SyncOptions()).done.written)
        7

        Args:
            lacking: of torch: only the files that the target lacks.

        Raises:
            UntrustedError: a signature is required, and files of torch have none.
            JaxcacheError: ``conflict``, ``read-only``, ``interrupted``
        """
        from jaxcache.cache.move.bundle_file import make_temporary_bundle
        from jaxcache.cache.move.export_plan import empty_warning
        from jaxcache.cache.move.import_bundle import after_export
        from jaxcache.cache.move.plan import MoveAction
        from jaxcache.cache.trust import required_signatures

        if not self.layout.single_file_entries:
            export = self.plan_offer(options, target if lacking else None)
            wanted = options.require_signed or bool(options.sign)
            required_signatures(self.store, self.layout, wanted=wanted)
            bundle, exported = make_temporary_bundle(self.store, export)
            with bundle.file, resumable():
                done = target.receive(bundle, options=options, dry_run=dry_run)
            done = after_export(exported.outcome, done)
            warnings = () if export.writes else export.warnings
            digest = bundle.manifest_sha256
            return _copied(target, done, exported.left_out, warnings, digest)
        rule = options.on_conflict
        plan = self.plan_push(target, on_conflict=rule, vouched=False, options=options)
        is_empty = all(step.action is MoveAction.LEFT for step in plan.steps)
        with resumable():
            done = self.carry(plan, target, options=options, dry_run=dry_run)
        left_out = tuple(step.problem for step in done.steps if step.is_left_out)
        return _copied(target, done, left_out, (empty_warning(self.store.url),) if is_empty else ())


def _copied(
    target: MovingMethods,
    done: "Outcome",
    left_out: "tuple[Problem, ...]",
    warnings: tuple[str, ...],
    digest: str | None = None,
) -> "Arrival":
    from jaxcache.cache.bundle.compat import Arrival, forecast_items

    outlooks = forecast_items((step.item for step in done.steps), None, target.location.path)
    return Arrival(done, outlooks, left_out=left_out, warnings=warnings, bundle_sha256=digest)
