"""``jaxcache show``."""

import os
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

from jaxcache.api import Cache, Detail
from jaxcache.api.handle import kind_of_file
from jaxcache.cli.opening import open_handle
from jaxcache.cli.options import Format, JsonOutput
from jaxcache.errors import ExitCode, UsageError
from jaxcache.options import CacheLocation, ListOptions
from jaxcache.options.declare import FLAG, TEXT, option
from jaxcache.units import printable_lines

if TYPE_CHECKING:
    from jaxcache.layouts import Layout
    from jaxcache.store.base import Store

EXAMPLE = "jaxcache show 'jit_train_step*'"
#: How a pickle of protocol 2 or later begins.
_PICKLED = b"\x80"
EXIT_CODES = (0, 1, 2, 10, 13)


def command(
    key: Annotated[
        str,
        option(
            "key",
            TEXT,
            "Key, prefix or module glob; the file of an entry, or xla_gpu_kernel_cache_file; "
            "a bundle or recipe.",
            metavar="KEY|FILE",
        ),
    ],
    inside: Annotated[
        str | None,
        option("inside", TEXT, "In a bundle or recipe.", metavar="[KEY]", show_default=False),
    ] = None,
    *,
    place: CacheLocation,
    hlo: Annotated[
        bool, option("--hlo", FLAG, "Print the optimized HLO as text, through jaxlib.")
    ] = False,
    payload: Annotated[
        str | None,
        option(
            "--payload",
            TEXT,
            "Write the decompressed executable to FILE (- for stdout).",
            metavar="FILE",
        ),
    ] = None,
    python: Annotated[
        str | None,
        option("--python", TEXT, "Python with jaxlib, for --hlo.", metavar="PYTHON"),
    ] = None,
    verbose: Annotated[
        bool, option("--verbose -v", FLAG, "Show all shapes, opcodes and CPU features.")
    ] = False,
    wanted: JsonOutput,
) -> int:
    """Show what is inside an entry.

    Also in a bundle or recipe: show FILE [KEY], or show KEY -C FILE.
    """
    from jaxcache.cache import show
    from jaxcache.cli.output import emit, write_file
    from jaxcache.entry.names import FileKind, split_name
    from jaxcache.render.show import kernels_view, show_view

    if hlo and payload is not None:
        raise UsageError("--hlo and --payload cannot be combined")
    if (hlo or payload is not None) and wanted.form.is_json:
        raise UsageError("--hlo and --payload cannot be combined with --json or --jsonl")
    whole = False
    if os.path.isfile(key) and kind_of_file(key) != "cache":
        whole = inside is None
        place = place.replace(cache_dir=key)
        key = inside or key
    elif inside is not None:
        raise UsageError(f"{key} is neither a bundle nor a recipe", code="not-a-bundle")
    cache = open_handle(place)
    if cache.kind == "recipe":
        if hlo or payload is not None:
            raise UsageError("--hlo and --payload are for entries: a recipe holds none")
        _show_recipe(cache.location.path, [] if whole else [key], wanted.form)
        return ExitCode.DONE
    if whole:
        _show_bundle(cache, wanted.form)
        return ExitCode.DONE
    is_file = os.sep in key or os.path.isfile(key)
    directory, name = os.path.split(key) if is_file else ("", key)
    store, layout = _open_file(directory, name) if is_file else cache.readable
    if hlo or payload is not None:
        if not (layout.single_file_entries and layout.keeps_index):
            raise UsageError("--hlo and --payload are for entries of JAX in a directory")
        name = name if is_file else show.choose_file(store, key)
    if payload is not None:
        write_file(payload, show.payload_chunks(store, name))
    elif hlo:
        from jaxcache.warm.child.query import hlo_text

        print(printable_lines(hlo_text(show.read_hlo(store, name), python=python)), end="")
    elif split_name(name)[0] is FileKind.KERNEL_CACHE:
        emit(wanted.form, kernels_view(show.show_kernels(store, name)))
    else:
        details = list(layout.shows.show_file(store, name)) if is_file else cache.show_all(key)
        emit(wanted.form, show_view(details, now_ns=cache.clock(), verbose=verbose))
        if any(s.damaged for s in details):
            return ExitCode.PROBLEMS
    return ExitCode.DONE


def _show_recipe(path: str, keys: list[str], form: Format) -> None:
    """Show modules of a recipe; all of them without a KEY."""
    from jaxcache.cache.recipe.format import list_recipe, open_recipe
    from jaxcache.cli.output import emit
    from jaxcache.render.recipe import show_view

    with open_recipe(path) as file:
        emit(form, show_view(file, list_recipe(file, keys=keys), whole=not keys))


def _show_bundle(cache: Cache, form: Format) -> None:
    """List a bundle as a whole, with its size."""
    from jaxcache.cache.bundle.format import open_bundle
    from jaxcache.cache.move.bundle_file import written_bundle
    from jaxcache.cli.output import emit
    from jaxcache.render.bundle import export_summary
    from jaxcache.render.listing import listing_view

    detail = Detail.RECORDS if form.is_json else Detail.ROWS
    view = listing_view(
        cache.select(options=ListOptions(sort="key"), detail=detail), now_ns=cache.clock()
    )
    path = cache.location.path
    with closing(open_bundle(path)) as bundle:
        size = export_summary(written_bundle(bundle, path))
    emit(form, view._replace(notes=[*view.notes, size]))


def _open_file(directory: str, name: str) -> "tuple[Store, Layout]":
    """The directory of one file, and its layout: torch's are pickles, JAX's are compressed."""
    from jaxcache.layouts import load_layout
    from jaxcache.store import open_store

    store = open_store(directory or ".")
    pickled = store.read(name, limit=1) == _PICKLED
    return store, load_layout("torch" if pickled else "jax")
