"""``jaxcache unpin``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.opening import open_jax_cache
from jaxcache.cli.options import CacheDir, Json, Jsonl, choose_format

EXAMPLE = "jaxcache unpin 'jit_train_step*'"
EXIT_CODES = (0, 1, 2, 10)


def command(
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY...", help="Full key, prefix of key or hash, or module glob."),
    ],
    cache_dir: CacheDir = None,
    json: Json = False,
    jsonl: Jsonl = False,
) -> None:
    """Remove the protection of pin."""
    from jaxcache.cache.ledger.pins import unpin
    from jaxcache.cli.output import print_pins

    form = choose_format(json=json, jsonl=jsonl)
    store = open_jax_cache(cache_dir)
    print_pins(store.url, "unpinned", unpin(store, keys, now_ns=time.time_ns()), form)
