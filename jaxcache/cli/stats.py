"""``jaxcache stats``."""

from typing import Annotated

from jaxcache.cli.options import JsonOutput
from jaxcache.errors import UsageError
from jaxcache.options import CacheLocation
from jaxcache.options.declare import FLAG, option

EXAMPLE = "jaxcache stats --prometheus > /var/lib/node_exporter/jaxcache.prom"
EXIT_CODES = (0, 2, 10)


def command(
    place: CacheLocation,
    prometheus: Annotated[
        bool, option("--prometheus", FLAG, "Print in Prometheus text format.")
    ] = False,
    long: Annotated[
        bool,
        option(
            "--long -l",
            FLAG,
            "In a bucket, read every entry, for codec, compile time and platform.",
        ),
    ] = False,
    *,
    output: JsonOutput,
) -> None:
    """Summarize a cache: hits, entries, size, compile time, age."""
    from jaxcache.cli.opening import open_handle
    from jaxcache.cli.output import emit, print_lines
    from jaxcache.render.stats import stats_prometheus, stats_view

    if prometheus and output.form.is_json:
        raise UsageError("--prometheus and --json cannot be combined")
    cache = open_handle(place)
    stats = cache.stats(long=long)
    live = cache.live_stats(stats)
    if prometheus:
        print_lines(stats_prometheus(stats, live.totals))
    else:
        emit(output.form, stats_view(stats, live, cache.readable[1].words, now_ns=cache.clock()))
