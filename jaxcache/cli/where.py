"""``jaxcache where``."""

from typing import Annotated

import typer

from jaxcache.cli.options import JsonOutput
from jaxcache.errors import NoCacheError, NoJaxError, UsageError
from jaxcache.options import CacheDir
from jaxcache.options.run import WhereOptions

EXAMPLE = "jaxcache where -- python train.py --steps 1"
EXIT_CODES = (0, 2, 10, 13)
CONTEXT_SETTINGS = {"allow_interspersed_args": False}


def command(
    command_line: Annotated[
        list[str] | None, typer.Argument(metavar="[-- CMD...]", help="The command to run.")
    ] = None,
    *,
    given: CacheDir,
    options: WhereOptions,
    wanted: JsonOutput,
) -> None:
    """Print the cache directory, or the one that a command uses.

    With a command, what it prints goes to standard error.
    """
    from jaxcache.cli import output
    from jaxcache.cli.options import Format, locate_cache
    from jaxcache.entry.names import printable
    from jaxcache.render.where import use_document, where_document
    from jaxcache.warm.where import find_where

    form = wanted.form
    if not command_line:
        if options.stop or options.timeout_seconds:
            raise UsageError("--stop and --timeout need a command after --")
        place = locate_cache(given.cache_dir)
        if form.is_json:
            output.print_json(
                {"schema_version": 1, "cache_dir": printable(place.path), "processes": []}
            )
        else:
            print(printable(place.path))
        return
    if given.cache_dir:
        raise UsageError("--cache-dir does not go with a command: it runs as it is")
    uses, unheard = find_where(command_line, options, stdout_to_stderr=True)
    if unheard and not uses:
        raise NoJaxError(unheard, code="unknown-jax")
    if form is Format.JSON:
        output.print_json(where_document(uses))
    elif form is Format.JSONL:
        output.print_json_lines(map(use_document, uses))
    else:
        output.print_lines(dict.fromkeys(printable(u.opened) for u in uses if u.opened))
    if not any(u.opened for u in uses):
        setting = next((u.setting for u in uses if u.setting), None)
        why = "no Python below it imported jax" if not uses else "JAX opened no cache directory"
        hint = f"it compiled nothing, and would use {setting}" if setting else None
        raise NoCacheError(f"{command_line[0]}: {why}", code="no-cache-used", hint=hint)
