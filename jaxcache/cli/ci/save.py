"""``jaxcache ci save``."""

from typing import Annotated

from jaxcache.cli.ci import OutputsFile, SummaryFile, note_directory, write_outputs, write_summary
from jaxcache.cli.options import Output
from jaxcache.errors import ExitCode
from jaxcache.options import CacheDir, DryRun
from jaxcache.options.declare import TEXT, option
from jaxcache.options.move import SaveOptions
from jaxcache.store.location import expand_location, locate_cache

EXAMPLE = "jaxcache ci save cache.jxb --max-size 500MB"
EXIT_CODES = (0, 1, 2, 3, 10, 11, 12)


def command(
    target: Annotated[
        str, option("target", TEXT, "A bundle (FILE.jxb), a directory, or a URL.", metavar="TARGET")
    ],
    place: CacheDir,
    options: SaveOptions,
    outputs: OutputsFile = None,
    summary: SummaryFile = None,
    *,
    dry: DryRun,
    output: Output,
) -> int:
    """Save the entries that the job used, if it compiled anything new."""
    from jaxcache.cli.ci.places import carry_out, check, plan
    from jaxcache.cli.output import emit
    from jaxcache.render import ci as render

    planned = plan(locate_cache(place.cache_dir).path, expand_location(target), options)
    saved = check(planned, options) if dry.dry_run else carry_out(planned, options)
    key = options.key
    emit(output.form, render.save_view(planned, saved, key))
    if not (planned.usage.new or planned.usage.used):
        note_directory(planned.cache_dir)
    write_outputs(render.save_outputs(planned, saved, key), outputs)
    write_summary(render.save_summary(planned, saved), summary)
    return ExitCode.DONE if saved.complete else ExitCode.PARTIAL
