"""``jaxcache import``."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

from jaxcache.cli.options import Output
from jaxcache.errors import ExitCode
from jaxcache.options import CacheLocation, DryRun
from jaxcache.options.declare import TEXT, option
from jaxcache.options.move import CompatibilityOptions, ImportOptions

EXAMPLE = "jaxcache import cache.jxb --require-compatible"
EXIT_CODES = (0, 1, 2, 3, 10, 12, 13)


def command(
    file: Annotated[
        str,
        option(
            "file",
            TEXT,
            "A bundle, or artifacts saved by torch.compiler; - for stdin.",
            metavar="FILE",
        ),
    ],
    place: CacheLocation,
    options: ImportOptions,
    needed: CompatibilityOptions,
    dry: DryRun,
    output: Output,
) -> int:
    """Check a bundle, and add its entries to a cache.

    The bundle is checked from end to end before anything is written. With --python,
    --require-compatible or --dry-run a jax is started, and what will hit here is forecast.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    from jaxcache.cli.bundle import check_trust, open_import, receive
    from jaxcache.cli.opening import open_target

    required = needed.require_compatible
    python = needed.python
    with ExitStack() as opened:
        bundle, left_out = opened.enter_context(open_import(file))
        layout = bundle.manifest.layout
        verdict = check_trust(bundle, required=options.require_signed)
        host: Callable[[], Any] = lambda: None  # noqa: E731
        asks_jax = layout == "jax" and (required or dry.dry_run or python is not None)
        if asks_jax:
            from jaxcache.warm.child.query import probing_host

            host = opened.enter_context(probing_host(python, required=required))
        code = receive(
            open_target(place.cache_dir, place.layout, layout),
            bundle,
            output.form,
            options,
            verdict=verdict,
            host=host,
            needed=needed,
            dry_run=dry.dry_run,
            expect=asks_jax,
        )
    return ExitCode.PARTIAL if left_out and code == ExitCode.DONE else code
