"""``jaxcache import``."""

from typing import Annotated

import typer

from jaxcache.cli.options import Output
from jaxcache.errors import ExitCode
from jaxcache.options import DryRun, Place
from jaxcache.options.move import Compatibility, ImportOptions

EXAMPLE = "jaxcache import cache.jxb --require-compatible"
EXIT_CODES = (0, 1, 2, 3, 12, 13)


def command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A bundle, or artifacts saved by torch.compiler; - for stdin."
        ),
    ],
    place: Place,
    options: ImportOptions,
    needed: Compatibility,
    dry: DryRun,
    output: Output,
) -> int:
    """Check a bundle, and add its entries to a cache.

    The bundle is checked from end to end before anything is written, and what will hit here is
    forecast.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path where the entries
    are used, or fill the cache with warm --portable.
    """
    from jaxcache.cli.bundle import ask_host, check_trust, open_import, receive
    from jaxcache.cli.opening import locate_target

    with open_import(file) as (bundle, left_out):
        whose = bundle.manifest.layout
        required = needed.require_compatible
        code = receive(
            bundle,
            locate_target(place.cache_dir, place.layout, whose),
            output.form,
            options,
            verdict=check_trust(bundle),
            host=ask_host(needed.python, required=required) if whose == "jax" else None,
            require_compatible=required,
            dry_run=dry.dry_run,
            expect=True,
        )
    return ExitCode.PARTIAL if left_out and code == ExitCode.DONE else code
