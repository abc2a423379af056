"""``jaxcache pin``."""

from typing import Annotated

from jaxcache.cli.opening import open_handle
from jaxcache.cli.options import JsonOutput
from jaxcache.errors import UsageError
from jaxcache.options import CacheLocation, KeyArguments
from jaxcache.options.declare import FLAG, option

EXAMPLE = "jaxcache pin 'jit_train_step*'"
EXIT_CODES = (0, 1, 2, 10)


def command(
    chosen: KeyArguments,
    place: CacheLocation,
    remove: Annotated[bool, option("--remove", FLAG, "Unpin the entries.")] = False,
    *,
    output: JsonOutput,
) -> None:
    """Protect entries from prune and rm; without KEY, list the pins."""
    from jaxcache.cli.output import emit
    from jaxcache.render.view import Column, View
    from jaxcache.units import format_count

    keys = chosen.keys
    if remove and not keys:
        raise UsageError("--remove needs a KEY", hint="jaxcache pin lists the pins")
    cache = open_handle(place)
    change = cache.unpin if remove else cache.pin
    shown = change(*keys) if keys else cache.pins()
    document = {"cache_dir": cache.store.url, "unpinned" if remove else "pinned": shown}
    notes = []
    if keys:
        notes.append(f"{format_count(len(shown), 'entry')} {'unpinned' if remove else 'pinned'}")
    records = ({"key": k} for k in shown)
    emit(
        output.form,
        View(document, shown, [Column("", str)], records=records, page=shown, notes=notes),
    )
