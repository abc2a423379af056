"""``jaxcache seal``."""

from jaxcache.cli.opening import open_handle
from jaxcache.cli.options import Output
from jaxcache.errors import ExitCode
from jaxcache.options import CacheDir, DryRun, SealOptions

EXAMPLE = "jaxcache seal --recompress 19"
EXIT_CODES = (0, 1, 2, 3, 10, 11)


def command(place: CacheDir, options: SealOptions, consent: DryRun, output: Output) -> int:
    """Add the checksum that lets JAX itself detect corruption.

    A zstd entry grows by 4 bytes and is otherwise unchanged; a zlib entry has a checksum already.
    --recompress also makes entries smaller.
    """
    from jaxcache.cli.output import emit
    from jaxcache.render.seal import seal_view

    cache = open_handle(place)
    plan = cache.plan_seal(options=options)
    result = None
    if not consent.dry_run:
        cache.require_writable()
        result = cache.execute(plan, jobs=options.jobs)
    emit(output.form, seal_view(plan, result))
    if consent.dry_run:
        cache.require_writable()
    if result and result.problems:
        return ExitCode.PROBLEMS
    return ExitCode.PARTIAL if result and result.failed else ExitCode.DONE
