"""``jaxcache pin``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.opening import open_cache
from jaxcache.cli.options import JsonOutput
from jaxcache.errors import UsageError
from jaxcache.options import CacheLocation, KeyArguments

EXAMPLE = "jaxcache pin 'jit_train_step*'"
EXIT_CODES = (0, 1, 2, 10)


def command(
    chosen: KeyArguments,
    place: CacheLocation,
    remove: Annotated[bool, typer.Option("--remove", help="Unpin the entries.")] = False,
    *,
    output: JsonOutput,
) -> None:
    """Protect entries from prune and rm; without KEY, list the pins."""
    from jaxcache.cache.ledger.pins import pin, pinned_keys, unpin
    from jaxcache.cache.ledger.segments import Ledger
    from jaxcache.cli.output import emit
    from jaxcache.render.view import Column, View

    keys = chosen.keys
    if remove and not keys:
        raise UsageError("--remove needs a KEY", hint="jaxcache pin lists the pins")
    store, layout = open_cache(place.cache_dir, place.layout)
    now_ns = time.time_ns()
    if remove:
        shown = unpin(store, keys, now_ns=now_ns)
    else:
        shown = pin(store, layout, keys, now_ns=now_ns) if keys else pinned_keys(Ledger.load(store))
    document = {"cache_dir": store.url, "unpinned" if remove else "pinned": shown}
    view = View(document, shown, [Column("", str)], records=({"key": k} for k in shown), page=shown)
    emit(output.form, view)
