"""``push`` and ``pull`` for caches whose files say by their names what is in them."""

import time
from typing import TYPE_CHECKING

from jaxcache.cli.opening import Opened, locate_target
from jaxcache.cli.options import Format
from jaxcache.errors import ExitCode, UntrustedError, UsageError

if TYPE_CHECKING:
    from jaxcache.cache.sync import SyncOptions


def carry_files(
    source: Opened,
    location: str | None,
    options: "SyncOptions",
    form: Format,
    *,
    signed: bool,
    dry_run: bool,
) -> int:
    """Bring to a place what it lacks of a cache, each file checked; never replace one there.

    Args:
        location: of the target; None for the compiler's own place.
        signed: a signature was asked for, or is required.

    Raises:
        UsageError: an option that is for JAX's caches alone; ``other-layout``.
        UntrustedError: nothing here is signed; a bundle can be.
    """
    from jaxcache.cache.bundle.deliver import make_in_between
    from jaxcache.cache.diff import Side
    from jaxcache.cache.trust import Verdict
    from jaxcache.cli.bundle import receive
    from jaxcache.layouts.names_there import names_there

    whose = source.layout.name
    if options.exclude or options.max_size_bytes is not None:
        raise UsageError("--exclude and --max-size are for JAX's caches; prune first")
    if signed:
        raise UntrustedError(
            f"files of {whose} are not signed one by one", hint="jaxcache export --sign KEY"
        )
    target = locate_target(location, None, whose)
    there = Side(target, {}, files=names_there(target))
    plan = source.layout.plan_export(
        source.store, keys=options.include, filters=(), since=there,
        side_caches=options.side_caches and not options.include, now_ns=time.time_ns(),
        progress=None,
    )  # fmt: skip
    bundle, exported = make_in_between(source.store, plan)
    with bundle.file:
        code = receive(
            bundle, target, form, verdict=Verdict(("this machine",), ()), host=None,
            dry_run=dry_run,
        )  # fmt: skip
    return ExitCode.PARTIAL if exported.left_out and code == ExitCode.DONE else code
