"""``jaxcache seal``."""

import time

from jaxcache.cli.opening import open_jax_cache
from jaxcache.cli.options import Format, Output, available_cores, require_writable
from jaxcache.errors import ExitCode
from jaxcache.options import CacheDir, DryRun, SealOptions

EXAMPLE = "jaxcache seal --level 19"
EXIT_CODES = (0, 1, 2, 3, 10, 11)


def command(place: CacheDir, options: SealOptions, consent: DryRun, output: Output) -> int:
    """Add the checksum that lets JAX itself detect corruption.

    Entries are compressed anew, and are usually smaller afterwards.
    """
    from jaxcache.cache.seal import execute_seal, plan_seal
    from jaxcache.cli.output import note, print_json, print_json_lines, print_lines
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.entry.names import printable
    from jaxcache.render.seal import seal_document, seal_records, seal_summary, seal_tsv

    form = output.form
    store = open_jax_cache(place.cache_dir)
    with progress_bar("reading entries") as progress:
        plan = plan_seal(store, options, progress=progress)
    result = None
    if not consent.dry_run:
        require_writable(store)
        with progress_bar("sealing") as progress:
            result = execute_seal(
                store,
                plan,
                jobs=options.jobs or available_cores(),
                now_ns=time.time_ns(),
                progress=progress,
            )
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
    if result and result.problems:
        return ExitCode.PROBLEMS
    return ExitCode.PARTIAL if result and result.failed else ExitCode.DONE
