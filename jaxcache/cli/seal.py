"""``jaxcache seal``."""

import time

from jaxcache.cli.opening import open_jax_cache
from jaxcache.cli.options import Output, require_writable
from jaxcache.errors import ExitCode
from jaxcache.options import CacheDir, DryRun, SealOptions
from jaxcache.units import available_cores

EXAMPLE = "jaxcache seal --recompress 19"
EXIT_CODES = (0, 1, 2, 3, 10, 11)


def command(place: CacheDir, options: SealOptions, consent: DryRun, output: Output) -> int:
    """Add the checksum that lets JAX itself detect corruption.

    A zstd entry grows by 4 bytes and is otherwise unchanged; a zlib entry has a checksum already.
    --recompress also makes entries smaller.
    """
    from jaxcache.cache.seal import execute_seal, plan_seal
    from jaxcache.cli.output import emit
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.render.seal import seal_view

    store = open_jax_cache(place.cache_dir)
    with progress_bar("reading entries") as progress:
        plan = plan_seal(store, options, progress=progress)
    result = None
    if not consent.dry_run:
        require_writable(store)
        with progress_bar("sealing") as progress:
            result = execute_seal(
                store,
                plan,
                jobs=options.jobs or available_cores(),
                now_ns=time.time_ns(),
                progress=progress,
            )
    emit(output.form, seal_view(plan, result))
    if consent.dry_run:
        require_writable(store)
    if result and result.problems:
        return ExitCode.PROBLEMS
    return ExitCode.PARTIAL if result and result.failed else ExitCode.DONE
