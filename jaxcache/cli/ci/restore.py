"""``jaxcache ci restore``."""

from typing import Annotated

import typer

from jaxcache.cli.ci import OutputsFile, SummaryFile, note_directory, write_outputs, write_summary
from jaxcache.cli.options import Output
from jaxcache.errors import ExitCode, JaxcacheError
from jaxcache.options import CacheDir
from jaxcache.options.move import RestoreOptions
from jaxcache.store.location import expand_location, locate_cache

EXAMPLE = "jaxcache ci restore cache.jxb --python .venv/bin/python"
EXIT_CODES = (0, 1, 2, 3, 12, 13)


def command(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A bundle, a directory, or a URL.")
    ],
    place: CacheDir,
    options: RestoreOptions,
    outputs: OutputsFile = None,
    summary: SummaryFile = None,
    *,
    output: Output,
) -> int:
    """Add the entries that can hit here to the cache, before the job.

    A source that is missing or damaged is a cache miss, not an error.
    """
    from jaxcache.cli.ci.places import restore
    from jaxcache.cli.output import emit
    from jaxcache.render import ci as render

    target = locate_cache(place.cache_dir).path
    restored = restore(expand_location(source), target, options)
    emit(output.form, render.restore_view(restored))
    note_directory(restored.cache_dir)
    write_outputs(render.restore_outputs(restored), outputs)
    write_summary(render.restore_summary(restored), summary)
    if options.fail_on_cache_miss and not restored.hit:
        raise JaxcacheError(f"nothing in {source} fits this job", code="cache-miss")
    return ExitCode.PARTIAL if restored.unwritten else ExitCode.DONE
