"""``jaxcache ci restore``."""

from typing import Annotated

import typer

from jaxcache.cli.ci import OutputsFile, SummaryFile
from jaxcache.cli.import_ import AllowLarge
from jaxcache.cli.location import expand_location
from jaxcache.cli.options import (
    CacheDir,
    Json,
    Jsonl,
    Platform,
    Python,
    Quiet,
    choose_format,
    locate_cache,
)
from jaxcache.errors import ExitCode, JaxcacheError

EXAMPLE = "jaxcache ci restore cache.jxb --python .venv/bin/python"
EXIT_CODES = (0, 1, 2, 3, 12, 13)


def command(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A bundle, a directory, or a URL.")
    ],
    cache_dir: CacheDir = None,
    lookup_only: Annotated[
        bool, typer.Option("--lookup-only", help="Say what fits, and restore nothing.")
    ] = False,
    fail_on_cache_miss: Annotated[
        bool, typer.Option("--fail-on-cache-miss", help="Exit 1 where nothing there fits.")
    ] = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--everything",
            help="Restore what cannot hit here, too; no jax is asked without --python.",
        ),
    ] = False,
    allow_large: AllowLarge = False,
    python: Python = None,
    platform: Platform = None,
    outputs: OutputsFile = None,
    summary: SummaryFile = None,
    json: Json = False,
    jsonl: Jsonl = False,
    quiet: Quiet = False,
) -> int:
    """Before the job: add the entries that can hit here to the cache.

    A source that is missing or damaged is a cache miss, not an error.
    """
    from jaxcache.cli.ci import print_step, write_outputs, write_summary
    from jaxcache.cli.ci.source import restore
    from jaxcache.entry.names import printable
    from jaxcache.render import ci as render

    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    restored = restore(
        expand_location(source),
        locate_cache(cache_dir).path,
        python=python,
        platform=platform,
        lookup_only=lookup_only,
        everything=everything,
        allow_large=allow_large,
    )
    told = render.restore_outputs(restored)
    print_step(
        form,
        render.restore_document(restored),
        told,
        render.restore_lines(restored),
        (printable(i.key) for i in restored.plan.fitting),
    )
    write_outputs(told, outputs)
    write_summary(render.restore_summary(restored), summary)
    if fail_on_cache_miss and not restored.plan.hit:
        raise JaxcacheError(f"nothing in {source} fits this job", code="cache-miss")
    return ExitCode.PARTIAL if restored.failed else ExitCode.DONE
