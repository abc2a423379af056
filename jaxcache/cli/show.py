"""``jaxcache show``."""

import os
import time
from typing import Annotated

import typer

from jaxcache.cli.opening import Opened, open_cache
from jaxcache.cli.options import JsonOutput, locate_cache
from jaxcache.errors import ExitCode, UsageError
from jaxcache.options import Place

EXAMPLE = "jaxcache show 'jit_train_step*'"
#: How a pickle of protocol 2 or later begins.
_PICKLED = b"\x80"
EXIT_CODES = (0, 1, 2, 10, 13)


def command(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY|FILE",
            help="Key, prefix, module glob, a file, a recipe, or xla_gpu_kernel_cache_file.",
        ),
    ],
    place: Place,
    hlo: Annotated[
        bool, typer.Option("--hlo", help="Print the optimized HLO as text, through jaxlib.")
    ] = False,
    payload: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the decompressed executable; - is stdout."),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PYTHON", help="A Python that has jaxlib, for --hlo."),
    ] = None,
    *,
    wanted: JsonOutput,
) -> int:
    """Show what is inside an entry.

    Also what is in a recipe: show FILE.recipe.
    """
    from jaxcache.cache import show
    from jaxcache.cli.output import show as output
    from jaxcache.cli.output.recipe import names_recipe, print_modules
    from jaxcache.entry.names import FileKind, parse_name

    if hlo and payload is not None:
        raise UsageError("--hlo and --payload exclude each other")
    if (hlo or payload is not None) and wanted.form.is_json:
        raise UsageError("--hlo and --payload give no JSON")
    form = wanted.form
    path = locate_cache(place.cache_dir).path
    for recipe, module in ((key, None), (path, key)):
        if names_recipe(recipe):
            if hlo or payload is not None:
                raise UsageError("--hlo and --payload are for entries: a recipe holds none")
            print_modules(recipe, form, module)
            return ExitCode.DONE
    is_file = os.sep in key or os.path.isfile(key)
    folder, name = os.path.split(key) if is_file else ("", key)
    opened = _open_file(folder, name) if is_file else open_cache(place.cache_dir, place.layout)
    store = opened.store
    if hlo or payload is not None:
        if not opened.layout.stands_alone:
            raise UsageError("--hlo and --payload are for JAX's entries")
        name = name if is_file else show.choose_file(store, key)
    if payload is not None:
        output.write_payload(show.payload_chunks(store, name), payload)
    elif hlo:
        from jaxcache.warm.hlo import hlo_text

        typer.echo(hlo_text(show.read_hlo(store, name), python=python), nl=False)
    elif parse_name(name).kind is FileKind.KERNEL_CACHE:
        output.print_kernels(show.show_kernels(store, name), form)
    else:
        found = opened.layout.show(store, name, is_file=is_file)
        output.print_shown(found, form, now_ns=time.time_ns())
        if any(s.damaged for s in found):
            return ExitCode.PROBLEMS
    return ExitCode.DONE


def _open_file(folder: str, name: str) -> Opened:
    """The folder of one file, and whose file it is: torch's are pickles, JAX's are compressed."""
    from jaxcache.layouts import load_layout
    from jaxcache.store import open_store

    store = open_store(folder or ".")
    pickled = store.read(name, limit=1) == _PICKLED
    return Opened(store, load_layout("torch" if pickled else "jax"))
