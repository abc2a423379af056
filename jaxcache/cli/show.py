"""``jaxcache show``."""

import os
import time
from contextlib import closing
from typing import Annotated

import typer

from jaxcache.cli.opening import Opened, open_to_look
from jaxcache.cli.options import Format, JsonOutput
from jaxcache.errors import ExitCode, UsageError
from jaxcache.options import CacheLocation, ListOptions
from jaxcache.store.location import locate_cache

EXAMPLE = "jaxcache show 'jit_train_step*'"
#: How a pickle of protocol 2 or later begins.
_PICKLED = b"\x80"
EXIT_CODES = (0, 1, 2, 10, 13)


def command(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY|FILE",
            help="Key, prefix or module glob; the file of an entry, or xla_gpu_kernel_cache_file; "
            "a bundle or recipe.",
        ),
    ],
    inside: Annotated[
        str | None,
        typer.Argument(metavar="[KEY]", help="In a bundle or recipe.", show_default=False),
    ] = None,
    *,
    place: CacheLocation,
    hlo: Annotated[
        bool, typer.Option("--hlo", help="Print the optimized HLO as text, through jaxlib.")
    ] = False,
    payload: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the decompressed executable to FILE (- for stdout)."
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PYTHON", help="Python with jaxlib, for --hlo."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show all shapes, opcodes and CPU features.")
    ] = False,
    wanted: JsonOutput,
) -> int:
    """Show what is inside an entry.

    Also in a bundle or recipe: show FILE [KEY], or show KEY -C FILE.
    """
    from jaxcache.cache import show
    from jaxcache.cache.bundle.format import is_bundle
    from jaxcache.cli.opening import names_recipe
    from jaxcache.cli.output import emit, write_file
    from jaxcache.entry.names import FileKind, split_name
    from jaxcache.render.show import kernels_view, show_view

    if hlo and payload is not None:
        raise UsageError("--hlo and --payload cannot be combined")
    if (hlo or payload is not None) and wanted.form.is_json:
        raise UsageError("--hlo and --payload cannot be combined with --json or --jsonl")
    whole = False
    if names_recipe(key) or is_bundle(key):
        whole = inside is None
        place = place.replace(cache_dir=key)
        key = inside or key
    elif inside is not None:
        raise UsageError(f"{key} is neither a bundle nor a recipe", code="not-a-bundle")
    path = locate_cache(place.cache_dir).path
    if names_recipe(path):
        if hlo or payload is not None:
            raise UsageError("--hlo and --payload are for entries: a recipe holds none")
        from jaxcache.cache.recipe.format import open_recipe
        from jaxcache.cache.recipe.listing import list_recipe
        from jaxcache.render import recipe

        with open_recipe(path) as file:
            modules = list_recipe(file, keys=[] if whole else [key])
            emit(wanted.form, recipe.show_view(file, modules, whole=whole))
        return ExitCode.DONE
    if whole:
        return _show_bundle(path, wanted.form)
    is_file = os.sep in key or os.path.isfile(key)
    directory, name = os.path.split(key) if is_file else ("", key)
    opened = _open_file(directory, name) if is_file else open_to_look(place.cache_dir, place.layout)
    store = opened.store
    if hlo or payload is not None:
        if not (opened.layout.single_file_entries and opened.layout.keeps_index):
            raise UsageError("--hlo and --payload are for entries of JAX in a directory")
        name = name if is_file else show.choose_file(store, key)
    if payload is not None:
        write_file(payload, show.payload_chunks(store, name))
    elif hlo:
        from jaxcache.warm.query import hlo_text

        typer.echo(hlo_text(show.read_hlo(store, name), python=python), nl=False)
    elif split_name(name)[0] is FileKind.KERNEL_CACHE:
        emit(wanted.form, kernels_view(show.show_kernels(store, name)))
    else:
        look = opened.layout.show_file if is_file else opened.layout.show
        details = list(look(store, name))
        emit(wanted.form, show_view(details, now_ns=time.time_ns(), verbose=verbose))
        if any(s.damaged for s in details):
            return ExitCode.PROBLEMS
    return ExitCode.DONE


def _show_bundle(path: str, form: Format) -> int:
    """List a bundle as a whole, and say how large it is."""
    from jaxcache.cache.bundle.format import open_bundle
    from jaxcache.cache.listing import list_cache
    from jaxcache.cache.move.bundle_file import written_bundle
    from jaxcache.cli.output import emit
    from jaxcache.render.bundle import export_summary
    from jaxcache.render.listing import listing_view

    opened = open_to_look(path)
    now_ns = time.time_ns()
    options = ListOptions(sort="key")
    listing = list_cache(*opened, options, headers=True, details=form.is_json, now_ns=now_ns)
    with closing(open_bundle(path)) as bundle:
        size = export_summary(written_bundle(bundle, path))
    view = listing_view(listing, now_ns=now_ns)
    emit(form, view._replace(notes=[*view.notes, size]))
    return ExitCode.DONE


def _open_file(directory: str, name: str) -> Opened:
    """The directory of one file, and its layout: torch's are pickles, JAX's are compressed."""
    from jaxcache.layouts import load_layout
    from jaxcache.store import open_store

    store = open_store(directory or ".")
    pickled = store.read(name, limit=1) == _PICKLED
    return Opened(store, load_layout("torch" if pickled else "jax"))
