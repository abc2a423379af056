"""``jaxcache ci save``."""

from typing import Annotated

import typer

from jaxcache.cli.ci import OutputsFile, SummaryFile
from jaxcache.cli.export import Level, Sign
from jaxcache.cli.location import expand_location
from jaxcache.cli.options import CacheDir, DryRun, Json, Jsonl, Quiet, choose_format, locate_cache
from jaxcache.errors import ExitCode

EXAMPLE = "jaxcache ci save cache.jxb --max-size 500MB"
EXIT_CODES = (0, 1, 2, 3, 10, 11, 12)


def command(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A bundle (FILE.jxb), a directory, or a URL.")
    ],
    cache_dir: CacheDir = None,
    save_if: Annotated[
        str,
        typer.Option(
            metavar="true|always|false",
            help="true: if the job compiled anything new; takes what a CI expression gives.",
        ),
    ] = "true",
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Keep the most compile time in so many bytes."),
    ] = None,
    unused_for: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Keep what other jobs used within this time; a bundle by default holds only what "
            "this job used, a shared directory everything.",
        ),
    ] = None,
    job_status: Annotated[
        str,
        typer.Option(
            metavar="STATUS",
            help="How the CI system says that the job ended, or an exit status; unless well, "
            "a bundle keeps what the job did not use, too.",
        ),
    ] = "success",
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="Make an output 'key': this one and a content digest."
        ),
    ] = None,
    level: Level = None,
    sign: Sign = None,
    outputs: OutputsFile = None,
    summary: SummaryFile = None,
    dry_run: DryRun = False,
    json: Json = False,
    jsonl: Jsonl = False,
    quiet: Quiet = False,
) -> int:
    """After the job: keep what it used, if it compiled anything new."""
    from jaxcache.cache.ci.save import parse_job_status, parse_save_if
    from jaxcache.cli.ci import print_step, write_outputs, write_summary
    from jaxcache.cli.ci.target import Bounds, carry_out, plan
    from jaxcache.entry.names import printable
    from jaxcache.render import ci as render

    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    bounds = Bounds.parse(max_size, unused_for)
    planned = plan(
        locate_cache(cache_dir).path,
        expand_location(target),
        parse_save_if(save_if),
        bounds,
        finished=parse_job_status(job_status),
    )
    saved = None
    if not dry_run:
        saved = carry_out(planned, bounds, level=level, sign=sign or [])
    told = render.save_outputs(planned, saved, key)
    print_step(
        form,
        render.save_document(planned, saved, key),
        told,
        render.save_lines(planned, saved),
        (printable(e.key) for e in planned.kept),
    )
    write_outputs(told, outputs)
    write_summary(render.save_summary(planned, saved), summary)
    return ExitCode.PARTIAL if saved and saved.failed else ExitCode.DONE
