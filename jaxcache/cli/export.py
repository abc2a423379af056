"""``jaxcache export``."""

from typing import Annotated

from jaxcache.cli.opening import open_handle
from jaxcache.cli.options import Format, Output
from jaxcache.errors import UsageError
from jaxcache.options import CacheLocation
from jaxcache.options.declare import TEXT, option
from jaxcache.options.move import ExportOptions

EXAMPLE = "jaxcache export cache.jxb"
EXIT_CODES = (0, 1, 2, 3, 10, 12)


def command(
    file: Annotated[
        str, option("file", TEXT, "The bundle to write; - for stdout.", metavar="FILE")
    ],
    place: CacheLocation,
    options: ExportOptions,
    output: Output,
) -> int:
    """Write entries to one compressed, checkable file.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    from jaxcache.cache.move.bundle_file import check_file_name
    from jaxcache.cli.bundle import deliver

    form = output.form
    if file == "-" and (form is Format.TABLE or form.is_json or form is Format.KEYS):
        raise UsageError(
            "a bundle on standard output needs a pipe, without --json, --jsonl or --quiet"
        )
    if file != "-":
        check_file_name(file)
    cache = open_handle(place)
    plan = cache.plan_export(options=options)
    return deliver(cache, plan, file, form, options.level, options.sign)
