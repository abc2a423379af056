"""Move entries: bundles, and the differences of two caches."""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from jaxcache.api.handle import Handle
from jaxcache.errors import InterruptError, JaxcacheError, UsageError, system_errors_as
from jaxcache.layouts import check_layout, load_layout
from jaxcache.options import move
from jaxcache.store import is_remote, require_writable
from jaxcache.store.location import config_is_set

if TYPE_CHECKING:
    from typing import Unpack

    from jaxcache.cache.bundle.format import Bundle, Manifest
    from jaxcache.cache.diff import Diff
    from jaxcache.cache.move.bundle_file import WrittenBundle
    from jaxcache.cache.move.export_plan import ExportPlan
    from jaxcache.cache.move.plan import Outcome, Plan
    from jaxcache.cache.trust import Verdict
    from jaxcache.model import Problem
    from jaxcache.options.keywords import ExportKeywords, ImportKeywords, PushKeywords


class _RefusedError(Exception):
    """A caller does not accept a plan."""


class Copied(NamedTuple):
    """A copy from one cache into another."""

    done: "Outcome"
    left_out: "tuple[Problem, ...]"
    """The files that do not travel."""
    warnings: tuple[str, ...]
    """Warnings about what the source offers."""
    bundle_sha256: str | None = None
    """The digest of the manifest of the bundle in between; None without one."""


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Say what an interrupted move has left: whole files, which another run does not repeat.

    Raises:
        JaxcacheError: ``interrupted``.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        hint = "run the command again; it skips the files that are complete"
        raise InterruptError("interrupted", hint=hint) from error


@contextlib.contextmanager
def open_input(file: str) -> "Iterator[tuple[Bundle, tuple[Problem, ...]]]":
    """Open a bundle, ``-`` for standard input, or artifacts of torch, and what these leave out."""
    from jaxcache.cache.bundle.format import is_bundle, open_bundle
    from jaxcache.cache.move.bundle_file import check_file_path, spool

    if file != "-" and os.path.isfile(file) and not is_bundle(file):
        artifacts = load_layout("torch").artifacts
        if artifacts.is_artifacts(file):
            with artifacts.as_bundle(file) as (bundle, left_out):
                yield replace(bundle, name=file), left_out
            return
    check_file_path(file)
    with contextlib.closing(
        spool(sys.stdin.buffer) if file == "-" else open_bundle(file)
    ) as bundle:
        yield bundle, ()


def check_signed(
    bundle: "Bundle", trusted: str | os.PathLike[str] | None = None, *, required: bool = False
) -> "Verdict":
    """Check the signatures of a bundle.

    Args:
        trusted: the directory of the list of keys; by default the user's.
        required: refuse what no trusted key has signed, as a configuration file can, too.

    Raises:
        UntrustedError
    """
    from jaxcache.cache.trust import check_signatures, load_trusted

    required = required or trusted is not None or config_is_set("require-signed")
    return check_signatures(bundle, load_trusted(trusted), required=required)


def rewrite_bundle(bundle: "Bundle", file: str) -> "WrittenBundle":
    """Write an opened bundle to another file, with its signatures.

    Raises:
        BundleError: it is damaged; nothing is written.
    """
    from jaxcache.cache.archive import write_file
    from jaxcache.cache.bundle.format import BundleError, read_whole
    from jaxcache.cache.bundle.reader import verify_bundle
    from jaxcache.cache.move.bundle_file import written_bundle

    if refused := verify_bundle(bundle, allow_large=True).refused or {}:
        name, reason = next(iter(refused.items()))
        raise BundleError(
            f"{bundle.name} holds {len(refused)} damaged entries, such as {name}: {reason}",
            hint=f"import the undamaged ones: jaxcache import {shlex.quote(bundle.name)} -C DIR",
        )
    write_file(file, read_whole(bundle))
    return written_bundle(bundle, file)


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

        path = os.fspath(file)
        chosen = move.ExportOptions.read(keys=keys, **keywords)
        bundle_file.check_file_name(path)
        plan = self.plan_export(options=chosen)
        return self.write_bundle(plan, path, level=chosen.level, sign=chosen.sign).manifest

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
        options: move.ArrivalOptions,
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

        chosen = move.PushOptions.read(**keywords)
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
            progress=None,
        )

    def copy(
        self,
        target: "MovingMethods",
        *,
        options: move.SyncOptions,
        lacking: bool = False,
        dry_run: bool = False,
    ) -> Copied:
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
        from jaxcache.cache.move import import_bundle
        from jaxcache.cache.move.bundle_file import make_temporary_bundle
        from jaxcache.cache.move.export_plan import empty_warning
        from jaxcache.cache.move.plan import MoveAction
        from jaxcache.cache.move.stores import make_source
        from jaxcache.cache.trust import required_signatures, signing_keys

        if not self.layout.single_file_entries:
            export = self.plan_offer(options, target if lacking else None)
            wanted = options.require_signed or bool(options.sign)
            required_signatures(self.store, self.layout, wanted=wanted)
            bundle, exported = make_temporary_bundle(self.store, export)
            with bundle.file, resumable():
                done = target.receive(
                    bundle, options=move.ArrivalOptions.of(options), dry_run=dry_run
                )
            done = import_bundle.after_export(exported.outcome, done)
            warnings = () if export.writes else export.warnings
            return Copied(done, exported.left_out, warnings, bundle.manifest_sha256)
        rule = options.on_conflict
        plan = self.plan_push(target, on_conflict=rule, vouched=False, options=options)
        is_empty = all(step.action is MoveAction.LEFT for step in plan.steps)
        with resumable(), self.progress("copying") as progress:
            done = import_bundle.receive(
                None if dry_run else target.make(),
                make_source(self.store, plan),
                plan,
                now_ns=self.clock(),
                atomic=options.atomic,
                jobs=options.jobs,
                signers=signing_keys(options.sign),
                progress=progress,
            )
        return Copied(
            done,
            tuple(step.problem for step in done.steps if step.is_left_out),
            (empty_warning(self.store.url),) if is_empty else (),
        )
