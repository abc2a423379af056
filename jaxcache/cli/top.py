"""``jaxcache top``."""

from typing import TYPE_CHECKING, Annotated

from jaxcache.cli.opening import open_handle
from jaxcache.cli.options import Format, JsonOutput
from jaxcache.errors import UsageError
from jaxcache.options import CacheDir
from jaxcache.options.declare import FLAG, TEXT, option

if TYPE_CHECKING:
    from jaxcache.store.base import Store

EXAMPLE = "jaxcache top --interval 2s"
EXIT_CODES = (0, 2, 10)


def command(
    place: CacheDir,
    interval: Annotated[
        str, option("--interval", TEXT, "Time between updates.", metavar="DURATION")
    ] = "1s",
    once: Annotated[
        bool, option("--once", FLAG, "Show the newest entries once, and exit.")
    ] = False,
    *,
    wanted: JsonOutput,
) -> None:
    """Watch a cache in use. Hits appear for programs under jaxcache run or with the live layer.

    The live layer (JAXCACHE_LIVE=1) is jaxcache at work inside the program's JAX. Show new, hit
    and removed entries as they happen; q or Ctrl-C ends it with code 0, and --once shows the
    newest entries and exits. In a pipe, and with --jsonl, each change is a line. On a terminal it
    waits for a directory that does not exist yet.
    """
    from jaxcache.cli.output import top as output
    from jaxcache.cli.terminal import is_dumb
    from jaxcache.units import parse_duration_seconds

    form = wanted.form
    if form is Format.JSON and not once:
        raise UsageError("--json needs --once", hint="--jsonl prints changes as they come")
    seconds = parse_duration_seconds(interval)
    if seconds <= 0:
        raise UsageError("--interval must be positive")
    view = None
    watches = form is Format.TABLE and not once
    try:
        opened: tuple[Store, bool] | None
        if watches:
            opened = output.wait_for_cache(lambda: open_handle(place).jax_store, seconds)
        else:
            opened = open_handle(place).jax_store, False
        if opened is None:
            return
        view = output.Screen(opened[0], seconds, from_empty=opened[1])
        if once:
            view.once(form)
        elif watches and not is_dumb():
            view.live()
            view.end(form)
        else:
            view.lines(form)
    except KeyboardInterrupt:
        if view is not None:
            view.end(form)
