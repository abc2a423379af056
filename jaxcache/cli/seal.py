"""``jaxcache seal``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.opening import open_jax_cache
from jaxcache.cli.options import (
    CacheDir,
    DryRun,
    Format,
    Jobs,
    Json,
    Jsonl,
    Keys,
    Quiet,
    available_cores,
    choose_format,
    require_writable,
)  # fmt: skip
from jaxcache.errors import ExitCode

EXAMPLE = "jaxcache seal --level 19"
EXIT_CODES = (0, 1, 2, 10, 11)


def command(
    keys: Keys = None,
    cache_dir: CacheDir = None,
    level: Annotated[
        int, typer.Option(min=1, max=22, metavar="N", help="Compression level; zlib takes up to 9.")
    ] = 19,
    again: Annotated[
        bool, typer.Option("--again", help="Compress sealed entries anew, too.")
    ] = False,
    jobs: Jobs = None,
    dry_run: DryRun = False,
    json: Json = False,
    jsonl: Jsonl = False,
    quiet: Quiet = False,
) -> int:
    """Add the checksum that lets JAX itself detect corruption.

    Entries are compressed anew, and are usually smaller afterwards.
    """
    from jaxcache.cache.seal import execute_seal, plan_seal
    from jaxcache.cli.output import note, print_json, print_json_lines, print_lines
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.entry.names import printable
    from jaxcache.render.seal import seal_document, seal_records, seal_summary, seal_tsv

    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    store = open_jax_cache(cache_dir)
    with progress_bar("reading entries") as progress:
        plan = plan_seal(store, keys=keys or (), level=level, again=again, progress=progress)
    result = None
    if not dry_run:
        require_writable(store)
        with progress_bar("sealing") as progress:
            result = execute_seal(
                store, plan, jobs=jobs or available_cores(), now_ns=time.time_ns(),
                progress=progress,
            )  # fmt: skip
    if form is Format.JSON:
        print_json(seal_document(plan, result))
    elif form is Format.JSONL:
        print_json_lines(seal_records(plan, result))
    elif form is Format.KEYS:
        done = [s.entry for s in result.sealed] if result else plan.todo
        print_lines(printable(e.key) for e in done)
    elif form is Format.TSV:
        print_lines(seal_tsv(plan, result))
    if form in (Format.TSV, Format.TABLE):
        for line in seal_summary(plan, result):
            note(line)
    return ExitCode.PROBLEMS if result and result.problems else ExitCode.DONE
