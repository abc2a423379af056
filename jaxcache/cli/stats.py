"""``jaxcache stats``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.opening import open_to_look
from jaxcache.cli.options import JsonOutput
from jaxcache.cli.root import count_root, find_root
from jaxcache.errors import UsageError
from jaxcache.options import CacheLocation
from jaxcache.units import available_cores

EXAMPLE = "jaxcache stats --prometheus > /var/lib/node_exporter/jaxcache.prom"
EXIT_CODES = (0, 2, 10)


def command(
    place: CacheLocation,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print in Prometheus text format.")
    ] = False,
    long: Annotated[
        bool,
        typer.Option(
            "--long",
            "-l",
            help="In a bucket, read every entry, for codec, compile time and platform.",
        ),
    ] = False,
    *,
    output: JsonOutput,
) -> None:
    """Summarize a cache: hits, entries, size, compile time, age."""
    from jaxcache.cache.ledger.uses import live_totals, read_refusals
    from jaxcache.cache.stats import count_cache
    from jaxcache.cli.output import emit, print_lines
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.entry.names import FileKind
    from jaxcache.render.stats import stats_prometheus, stats_view

    if prometheus and output.form.is_json:
        raise UsageError("--prometheus and --json cannot be combined")
    if root := find_root(place):
        if prometheus:
            raise UsageError("--prometheus is for one cache", hint="name it with -C")
        count_root(root, place, output.form)
        return
    opened = open_to_look(place.cache_dir, place.layout)
    now_ns = time.time_ns()
    with progress_bar("reading entries") as progress:
        stats = count_cache(
            opened.store,
            opened.layout,
            opened.index_directory,
            now_ns=now_ns,
            read=long or not opened.store.remote,
            workers=available_cores(),
            progress=progress,
        )
    # A bucket without a directory of ours is asked nothing more.
    recorded = not opened.store.remote or any(
        c.kind in (FileKind.OWN, FileKind.LEDGER) for c in stats.files
    )
    live = live_totals(opened.store) if recorded else None
    if prometheus:
        print_lines(stats_prometheus(stats, live))
    else:
        emit(output.form, stats_view(stats, live, read_refusals(opened.store), now_ns=now_ns))
