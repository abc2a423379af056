"""Move entries: bundles, and the differences of two caches."""

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxcache.api.handle import Handle
from jaxcache.errors import JaxcacheError, system_errors_as
from jaxcache.layouts import check_layout, load_layout
from jaxcache.store import is_remote, require_writable
from jaxcache.store.location import config_is_set

if TYPE_CHECKING:
    from typing import Unpack

    from jaxcache.cache.bundle.format import Bundle
    from jaxcache.cache.bundle.manifest import Manifest
    from jaxcache.cache.diff import Diff
    from jaxcache.cache.move.bundle_file import WrittenBundle
    from jaxcache.cache.move.export_plan import ExportPlan
    from jaxcache.cache.move.plan import Outcome, Plan
    from jaxcache.options.keywords import ExportKeywords, ImportKeywords, PushKeywords
    from jaxcache.options.move import (
        ArrivalOptions,
        ExportOptions,
        SyncOptions,
    )


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

        with self.progress("reading") as progress:
            sides = [
                open_side(cache.location.path, progress, layout=cache.layout_name)
                for cache in (self, other)
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
        from jaxcache.cache.move import bundle_file
        from jaxcache.options.move import ExportOptions

        path = os.fspath(file)
        chosen = ExportOptions.read(keys=keys, **keywords)
        bundle_file.check_file_name(path)
        plan = self.plan_export(options=chosen)
        return self.write_bundle(plan, path, level=chosen.level, sign=chosen.sign).manifest

    def plan_export(
        self,
        *keys: str,
        options: "ExportOptions | None" = None,
        **keywords: "Unpack[ExportKeywords]",
    ) -> "ExportPlan":
        """Choose what :meth:`export` would write.

        >>> len(cache.plan_export("jit_mlp*").writes)
        1
        """
        from jaxcache.layouts import open_side
        from jaxcache.options.move import ExportOptions

        chosen = ExportOptions.choose(options, keys=keys, **keywords)
        with self.progress("reading") as progress:
            since = None
            if chosen.since:
                since = open_side(chosen.since, progress, layout=self.layout_name)
            return self.layout.exports.plan_export(
                self.store,
                keys=chosen.keys,
                filters=chosen.filters,
                since=since,
                side_caches=chosen.side_caches,
                now_ns=self.clock(),
                progress=progress,
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
            self.progress("exporting", in_bytes=True) as progress,
        ):
            return write_bundle(self.store, plan, path, signers, level=level, progress=progress)

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
        from jaxcache.cache.trust import check_signatures, load_trusted
        from jaxcache.options.move import ImportOptions

        chosen = ImportOptions.read(**keywords)

        def check(plan: "Plan") -> None:
            if accept is not None and not accept(plan):
                raise _RefusedError

        required = chosen.require_signed or trusted is not None or config_is_set("require-signed")
        with contextlib.closing(open_bundle(os.fspath(file))) as bundle:
            check_layout(self.store, bundle.manifest.layout)
            check_signatures(bundle, load_trusted(trusted), required=required)
            with contextlib.suppress(_RefusedError):
                return self.receive(bundle, options=chosen, check=check)
        return None

    def receive(
        self,
        bundle: "Bundle",
        *,
        options: "ArrivalOptions",
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

        limits = {"allow_large": options.allow_large, "atomic": options.atomic}
        with self.progress("checking", in_bytes=True) as progress:
            bundle = verify_bundle(bundle, progress, **limits)
        if self.existing:
            require_writable(self.existing)
        with self.progress("comparing") as progress:
            plan = load_layout(bundle.manifest.layout).imports.plan_import(
                self.existing,
                bundle,
                cache_dir=self.path,
                on_conflict=options.on_conflict,
                side_caches=options.side_caches,
                progress=progress,
            )
        if check is not None:
            check(plan)
        with self.progress("importing") as progress:
            return execute_import(
                None if dry_run else self.make(),
                bundle,
                plan,
                level=options.level,
                atomic=options.atomic,
                jobs=options.jobs,
                progress=progress,
            )

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
        from jaxcache.options.move import PushOptions

        chosen = PushOptions.read(**keywords)
        plan = self.plan_push(target, trusted=trusted, options=chosen)
        if accept is not None and not accept(plan):
            return None
        return self.carry(plan, target, jobs=chosen.jobs, sign=chosen.sign)

    def plan_push(
        self,
        target: "MovingMethods",
        *,
        trusted: str | os.PathLike[str] | None = None,
        vouched: bool | None = None,
        on_conflict: str | None = None,
        options: "SyncOptions | None" = None,
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
        from jaxcache.cache.move.signatures import required_signatures
        from jaxcache.cache.move.sync import plan_sync
        from jaxcache.cache.trust import signing_keys
        from jaxcache.options.move import PushOptions

        chosen = PushOptions.read(**keywords) if options is None else options
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
        with self.progress("comparing") as progress:
            return plan_sync(
                store,
                target_store,
                chosen,
                target_url=target.path,
                now_ns=self.clock(),
                signed=signed,
                index=index,
                on_conflict=on_conflict,
                progress=progress,
            )

    def carry(
        self,
        plan: "Plan",
        target: "MovingMethods",
        *,
        jobs: int | None = None,
        sign: Sequence[str] = (),
        dry_run: bool = False,
    ) -> "Outcome":
        """Send what was planned; each entry is checked on the way.

        >>> cache.carry(cache.plan_push(other), other).complete
        True

        Args:
            jobs: files under way at once.
            sign: files or names of private keys, which vouch for what the target has then.

        Raises:
            NoCacheError: a store cannot be reached; what went over until then is whole.
        """
        from jaxcache.cache.move.sync import execute
        from jaxcache.cache.trust import signing_keys

        with self.progress("checking" if dry_run else "copying") as progress:
            return execute(
                self.store,
                target.existing if dry_run else target.make(),
                plan,
                now_ns=self.clock(),
                jobs=jobs,
                signers=signing_keys(sign),
                dry_run=dry_run,
                progress=progress,
            )
