"""``jaxcache copy``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.opening import locate_target, open_cache
from jaxcache.cli.options import Output
from jaxcache.errors import ExitCode, UsageError
from jaxcache.options import DryRun
from jaxcache.options.move import CopyOptions

EXAMPLE = "jaxcache copy ~/.cache/jax /mnt/usb/cache.jxb"
EXIT_CODES = (0, 1, 2, 3, 10, 12)


def command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A cache directory or a bundle.")],
    target: Annotated[
        str, typer.Argument(metavar="DST", help="A cache directory, or a bundle (FILE.jxb).")
    ],
    options: CopyOptions,
    dry: DryRun,
    output: Output,
) -> int:
    """Copy entries between caches and bundles.

    Every byte is checked on the way.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    from jaxcache.cache.bundle.deliver import check_file_name, is_bundle_name, make_temporary_bundle
    from jaxcache.cache.bundle.format import is_bundle
    from jaxcache.cache.trust import Verdict
    from jaxcache.cli.bundle import (
        check_trust,
        deliver,
        open_input,
        receive,
        required_signatures,
        rewrite,
    )
    from jaxcache.cli.output import note

    form = output.form
    to_bundle = is_bundle_name(target)
    from_bundle = is_bundle(source)
    if from_bundle and options.filters:
        raise UsageError("a bundle is copied whole; import it and filter then")
    if to_bundle and (dry.dry_run or options.atomic or options.on_conflict != "keep"):
        raise UsageError("--dry-run, --atomic and --on-conflict are for copies into a directory")
    if to_bundle:
        check_file_name(target)
    signed = None
    if not from_bundle:
        opened = open_cache(source, options.layout)
        store, source_layout = opened
        signed = None if to_bundle else required_signatures(opened)
        plan = source_layout.plan_export(
            store,
            keys=(),
            filters=options.filters,
            since=None,
            side_caches=None,
            now_ns=time.time_ns(),
            progress=None,
        )
        if to_bundle:
            partial = deliver(store, plan, target, form, None, [])
            return ExitCode.PARTIAL if partial else ExitCode.DONE
        if not (plan.files or plan.side_files):
            note(*(f"warning: {warning}" for warning in plan.warnings))
        bundle, exported = make_temporary_bundle(store, plan, allow_large=options.allow_large)
        left_out = exported.left_out
        verdict = Verdict(("this machine",), ())
    else:
        bundle, left_out = open_input(source), ()
        verdict = check_trust(bundle)
    with bundle.file:
        if to_bundle:
            rewrite(bundle, target, form)
            return ExitCode.DONE
        code = receive(
            bundle,
            locate_target(target, None, bundle.manifest.layout),
            form,
            options,
            verdict=verdict,
            dry_run=dry.dry_run,
            signed=signed,
            left_out=left_out,
        )
    return ExitCode.PARTIAL if left_out and code == ExitCode.DONE else code
