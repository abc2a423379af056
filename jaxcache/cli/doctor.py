"""``jaxcache doctor``."""

import os
from typing import Annotated

import typer

from jaxcache.cli.options import (
    CacheDir,
    DryRun,
    Format,
    Json,
    Jsonl,
    choose_format,
    locate_cache,
)
from jaxcache.errors import ExitCode, NoJaxError, UsageError

EXAMPLE = "jaxcache doctor --python .venv/bin/python --fix"
EXIT_CODES = (0, 1, 2, 11)


def command(
    cache_dir: CacheDir = None,
    python: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="The Python that runs JAX.")
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Make the repairs that lose nothing.")] = False,
    dry_run: DryRun = False,
    decode: Annotated[
        int, typer.Option(min=0, metavar="N", help="Decode the newest N entries; 0 is all.")
    ] = 200,
    json: Json = False,
    jsonl: Jsonl = False,
) -> None:
    """Show the settings that JAX would use here, and every known trap that is present."""
    from jaxcache.cache.doctor.diagnose import diagnose
    from jaxcache.cache.doctor.settings import settings_of_environment
    from jaxcache.cli import output
    from jaxcache.cli.progress import progress_bar
    from jaxcache.render import doctor as render
    from jaxcache.warm.settings import ask_python

    if dry_run and not fix:
        raise UsageError("--dry-run goes with --fix")
    form = choose_format(json=json, jsonl=jsonl)
    interpreter, settings, no_jax = None, settings_of_environment(os.environ), None
    try:
        interpreter, settings = ask_python(python)
    except NoJaxError as error:
        no_jax = error.message
    with progress_bar("reading entries") as progress:
        diagnosis = diagnose(
            locate_cache(cache_dir).path, settings=settings, interpreter=interpreter,
            no_jax=no_jax, max_decoded=decode or None, fix=fix, dry_run=dry_run,
            progress=progress,
        )  # fmt: skip
    if form is Format.JSON:
        output.print_json(render.doctor_document(diagnosis))
    elif form is Format.JSONL:
        output.print_json_lines(map(render.finding_document, diagnosis.findings))
    elif form is Format.TSV:
        output.print_lines(render.doctor_tsv(diagnosis))
    else:
        width, color = output.terminal_width(), output.wants_color()
        print(render.doctor_page(diagnosis, width=width, color=color))
    if no_jax and form is Format.TSV:
        output.note(f"{no_jax}; what takes a jax was left out")
    if diagnosis.wrong:
        raise typer.Exit(ExitCode.PROBLEMS)
