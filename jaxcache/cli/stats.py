"""``jaxcache stats``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.opening import open_cache
from jaxcache.cli.options import Format, JsonOutput, available_cores, index_folder
from jaxcache.errors import UsageError
from jaxcache.options import Place

EXAMPLE = "jaxcache stats --prometheus > /var/lib/node_exporter/jaxcache.prom"
EXIT_CODES = (0, 2, 10)


def command(
    place: Place,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print the text format of Prometheus.")
    ] = False,
    long: Annotated[
        bool,
        typer.Option(
            "--long", "-l", help="Of a bucket: read entries too, for codec, seconds and platform."
        ),
    ] = False,
    *,
    output: JsonOutput,
) -> None:
    """Summarize a cache: entries, size, compile time, age."""
    from jaxcache.cache.stats import count_cache
    from jaxcache.cli.output import (
        print_json,
        print_json_lines,
        print_lines,
        terminal_width,
        wants_color,
    )
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.render import stats as render

    if prometheus and output.form.is_json:
        raise UsageError("--prometheus and --json exclude each other")
    form = output.form
    opened = open_cache(place.cache_dir, place.layout)
    now_ns = time.time_ns()
    with progress_bar("reading entries") as progress:
        stats = count_cache(
            opened.store,
            opened.layout,
            index_folder(),
            now_ns=now_ns,
            read=long or not opened.store.remote,
            workers=available_cores(),
            progress=progress,
        )
    if prometheus:
        print_lines(render.stats_prometheus(stats))
    elif form is Format.JSON:
        print_json(render.stats_document(stats))
    elif form is Format.JSONL:
        print_json_lines(render.stats_records(stats))
    elif form is Format.TSV:
        print_lines(render.stats_tsv(stats))
    else:
        width, color = terminal_width(), wants_color()
        print(render.stats_page(stats, now_ns=now_ns, width=width, color=color))
