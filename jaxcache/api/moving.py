"""Move entries: bundles, and the differences of two caches."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jaxcache.cache.scan import Progress
from jaxcache.layouts.base import Layout
from jaxcache.options.move import ExportOptions, ImportOptions, PushOptions
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.cache.bundle.manifest import Manifest
    from jaxcache.cache.diff import Diff
    from jaxcache.cache.move.plan import Outcome, Plan
    from jaxcache.cache.trust import TrustedKey


class MovingMethods:
    """See :class:`jaxcache.api.Cache`."""

    store: Store
    layout: Layout

    def diff(self, other: "MovingMethods") -> "Diff":
        """Compare with another cache by what the entries hold.

        >>> cache.diff(other).equal
        False

        Raises:
            UsageError: ``other-layout``.
        """
        from jaxcache.cache.diff import diff_sides
        from jaxcache.layouts.sides import check_same_layout

        sides = [cache.layout.read_side(cache.store, None) for cache in (self, other)]
        check_same_layout(*sides)
        return diff_sides(*sides)

    def export(
        self,
        file: str | os.PathLike[str],
        *keys: str,
        progress: Progress | None = None,
        **options: Any,
    ) -> "Manifest":
        """Write entries into a bundle, and return what it says of them.

        >>> len(cache.export("cache.jxb", "jit_mlp*").items)
        1

        Args:
            options: :class:`jaxcache.options.move.ExportOptions`: ``filters``, ``level``,
                ``since`` (a bundle or a cache; only what it lacks), ``sign`` (files of private
                keys).

        Raises:
            UsageError: ``exists``, where the file is there and is not a bundle.
        """
        from jaxcache.cache.move import bundle_file as bundle_file
        from jaxcache.layouts.sides import open_side
        from jaxcache.store import open_store

        chosen = ExportOptions.read(keys=keys, **options)
        path = os.fspath(file)
        since = chosen.since
        bundle_file.check_file_name(path)
        plan = self.layout.plan_export(
            self.store,
            keys=keys,
            filters=chosen.filters,
            since=open_side(os.fspath(since), open_store, progress) if since else None,
            side_caches=chosen.side_caches,
            now_ns=time.time_ns(),
            progress=progress,
        )
        signers = _private_keys(chosen.sign)
        written = bundle_file.write_bundle(
            self.store, plan, path, signers, level=chosen.level, progress=progress
        )
        return written.manifest

    def import_(
        self,
        file: str | os.PathLike[str],
        *,
        trusted: str | os.PathLike[str] | None = None,
        accept: "Callable[[Plan], bool] | None" = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> "Outcome | None":
        """Bring in what a bundle holds, every byte of it checked before.

        >>> manifest = cache.export("cache.jxb")
        >>> len(other.import_("cache.jxb").written)
        7

        Args:
            trusted: a directory with ``trusted-keys``; only what one of them has signed. By default
                the user's own keys, and only where ``require-signed`` is configured.
            accept: shown the plan; where it says no, nothing is written and None comes back.
            options: :class:`jaxcache.options.move.ImportOptions`: ``on_conflict``, ``atomic``,
                ``side_caches``, ``level``, ``jobs``, ``allow_large``, ``require_signed``.

        Raises:
            UsageError: ``other-layout``: the bundle holds another compiler's cache.
            UntrustedError: nobody who is trusted has signed it, or a signature does not hold.
            JaxcacheError: ``bad-bundle``, with ``atomic`` for one damaged entry, too; ``conflict``
                where ``on_conflict`` is ``"fail"``.
        """
        from jaxcache.cache.bundle.check import verify_bundle
        from jaxcache.cache.bundle.format import open_bundle
        from jaxcache.cache.move.import_bundle import execute_import
        from jaxcache.cache.trust import check_signatures
        from jaxcache.layouts import check_layout, load_layout

        chosen = ImportOptions.read(**options)
        with contextlib.closing(open_bundle(os.fspath(file))) as bundle:
            check_layout(self.store, bundle.manifest.layout)
            required = chosen.require_signed or _requires_signatures(trusted)
            check_signatures(bundle, _trusted_keys(trusted), required=required)
            bundle = verify_bundle(
                bundle, progress, allow_large=chosen.allow_large, atomic=chosen.atomic
            )
            plan = load_layout(bundle.manifest.layout).plan_import(
                self.store,
                bundle,
                cache_dir=self.store.url,
                on_conflict=chosen.on_conflict,
                side_caches=chosen.side_caches,
                progress=progress,
            )
            if accept is not None and not accept(plan):
                return None
            return execute_import(
                self.store,
                bundle,
                plan,
                level=chosen.level,
                atomic=chosen.atomic,
                jobs=chosen.jobs,
                progress=progress,
            )

    def push(
        self,
        target: "MovingMethods",
        *,
        trusted: str | os.PathLike[str] | None = None,
        accept: "Callable[[Plan], bool] | None" = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> "Outcome | None":
        """Send the entries that another cache lacks; what is sound there is never replaced.

        >>> len(cache.push(other, include=["jit_mlp*"]).carried)
        1

        To pull is to have the other cache push here. For caches of JAX.

        Args:
            trusted: as of :meth:`import_`; for what goes into a directory.
            accept: shown the plan; where it says no, nothing happens and None comes back.
            options: :class:`jaxcache.options.move.PushOptions`: ``include``, ``exclude``,
                ``filters``, ``max_size``, ``make_room``, ``side_caches``, ``ledger``, ``jobs``,
                ``sign``, ``require_signed``, ``allow_large``.

        Raises:
            UsageError: ``other-layout``.
            NoCacheError: a store cannot be reached; what went over until then is whole.
        """
        from jaxcache.cache.move.sync import execute, plan_sync
        from jaxcache.layouts import check_layout, check_not_torch

        check_not_torch(self.store)
        check_layout(target.store, "jax")
        chosen = PushOptions.read(**options)
        signed = None
        incoming = trusted is not None or not (chosen.sign or target.store.remote)
        if chosen.require_signed or (incoming and _requires_signatures(trusted)):
            from jaxcache.cache.move.signatures import load_signed

            signed = load_signed(self.store, _trusted_keys(trusted))
        plan = plan_sync(
            self.store,
            target.store,
            chosen,
            target_url=target.store.url,
            now_ns=time.time_ns(),
            signed=signed,
            progress=progress,
        )
        if accept is not None and not accept(plan):
            return None
        return execute(
            self.store,
            target.store,
            plan,
            now_ns=time.time_ns(),
            jobs=chosen.jobs,
            signers=_private_keys(chosen.sign),
            progress=progress,
        )


def _private_keys(files: Sequence[str | os.PathLike[str]]) -> list[object]:
    if not files:
        return []
    from pathlib import Path

    from jaxcache.cache.trust import read_private_key

    return [read_private_key(Path(file)) for file in files]


def _requires_signatures(trusted: str | os.PathLike[str] | None) -> bool:
    """Whether a trusted key must have signed what comes in: by the caller, or the configuration."""
    from jaxcache.store.location import config_is_set

    return trusted is not None or config_is_set("require-signed")


def _trusted_keys(directory: str | os.PathLike[str] | None) -> "Sequence[TrustedKey]":
    from pathlib import Path

    from jaxcache.cache.trust import key_directory, load_trusted

    return load_trusted(key_directory() if directory is None else Path(directory))
