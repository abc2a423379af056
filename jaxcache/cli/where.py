"""``jaxcache where``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from jaxcache.cli.options import JsonOutput
from jaxcache.cli.output import emit
from jaxcache.errors import NoCacheError, NoJaxError, UsageError
from jaxcache.options import CacheDir
from jaxcache.options.declare import TEXTS, option
from jaxcache.options.query import WhereOptions
from jaxcache.units import format_duration

if TYPE_CHECKING:
    from jaxcache.warm.where import Use

EXAMPLE = "jaxcache where -- python train.py --steps 1"
EXIT_CODES = (0, 2, 10, 13)
CONTEXT_SETTINGS = {"allow_interspersed_args": False}


def command(
    command_line: Annotated[
        list[str] | None,
        option("command_line", TEXTS, "The command to run.", metavar="[-- CMD...]"),
    ] = None,
    *,
    chosen_place: CacheDir,
    options: WhereOptions,
    wanted: JsonOutput,
) -> None:
    """Print the cache directory, or the one that a command uses.

    With a command, what it prints goes to standard error.
    """
    from jaxcache.render.columns import text_column
    from jaxcache.render.document import versioned
    from jaxcache.render.view import Line, View
    from jaxcache.store.location import locate_cache
    from jaxcache.warm.where import find_where

    def show(cache_dir: str | None, places: list[str], uses: "Sequence[Use]" = ()) -> None:
        columns = [text_column("", lambda place: place)]
        document = {"cache_dir": cache_dir, "processes": uses}
        records = uses if command_line else [versioned(document)]
        page = [Line(place, whole=True) for place in places]
        emit(wanted.form, View(document, places, columns, records=records, page=page))

    if not command_line:
        if options.stop or options.timeout_seconds:
            raise UsageError("--stop and --timeout need a command after --")
        path = locate_cache(chosen_place.cache_dir).path
        show(path, [path])
        return
    if chosen_place.cache_dir:
        raise UsageError("--cache-dir does not go with a command: it runs as it is")
    uses, unobserved, _ = find_where(command_line, options, stdout_to_stderr=True)
    if unobserved and not uses:
        raise NoJaxError(unobserved, code="unknown-jax")
    opened = list(dict.fromkeys(u.opened for u in uses if u.opened))
    show(opened[0] if opened else None, opened, uses)
    if not opened:
        setting = next((u.setting for u in uses if u.setting), None)
        why = "JAX opened no cache directory" if uses else "no Python below it imported jax"
        if options.timeout_seconds:
            why += f" within {format_duration(options.timeout_seconds)}"
        hint = f"it compiled nothing, and would use {setting}" if setting else None
        raise NoCacheError(f"{command_line[0]}: {why}", code="no-cache-used", hint=hint)
