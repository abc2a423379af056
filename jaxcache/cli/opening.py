"""Open the cache that a command is about, as its options name it."""

import os

from jaxcache.api import Cache
from jaxcache.api.handle import locate
from jaxcache.cli import terminal
from jaxcache.cli.output import note
from jaxcache.core.system import available_cores
from jaxcache.errors import UsageError
from jaxcache.layouts import check_layout, load_layout
from jaxcache.options import CacheDir, CacheLocation
from jaxcache.store.location import Location, index_directory


def open_handle(place: "CacheDir | str", layout: str | None = None) -> Cache:
    """Resolve ``-C``, the environment and the configuration: once, here.

    ``--layout`` without ``--cache-dir`` means the compiler's own directory.

    Args:
        place: the options of a command, or a path or URL.
        layout: of a path or URL, or of what its options name.

    Raises:
        UsageError: ``bad-layout``, ``bad-config`` or ``bad-path``.
    """
    if isinstance(place, CacheDir):
        terminal.named_cache = place.cache_dir  # in the commands that are printed
        if isinstance(place, CacheLocation):
            layout = layout or place.layout
    path = place.cache_dir if isinstance(place, CacheDir) else place
    return handle_at(locate(path, layout), layout)


def handle_at(location: Location, layout: str | None = None) -> Cache:
    """Return the handle of one place, with what commands have: bars, all cores, an index."""
    return Cache(
        location,
        layout,
        progress=terminal.progress_bar,
        note=note,
        workers=available_cores(),
        index_directory=index_directory(),
    )


def open_target(place: "CacheDir | str", layout: str | None, compiler: str) -> Cache:
    """Return the place for the files of one compiler: the option, else its own directory.

    Its directory need not exist.

    Raises:
        UsageError: ``other-layout`` if ``--layout`` or the existing cache is of another compiler.
        NoCacheError: it has caches below it alone.
    """

    if layout is not None and load_layout(layout).name != compiler:
        raise UsageError(f"the file to import holds entries of {compiler}", code="other-layout")
    target = open_handle(place, compiler)
    if os.path.isdir(target.location.path) and target.existing:
        target.refuse_caches_below()
        check_layout(target.existing, compiler)
        note_foreign(target.path)
    return target


def note_foreign(path: str) -> None:
    """Say of a directory without a cache that it has files of other programs, and stays theirs."""
    from jaxcache.cache.files import is_foreign

    if os.path.isdir(path) and is_foreign(path):
        note(f"note: {path} has files of other programs, and the cache is written beside them")


def check_local(cache_dir: str, other: str) -> None:
    """Refuse a cache that the steps of a job can do nothing with.

    Raises:
        UsageError: ``not-local``, ``same-directory``
    """
    if "://" in cache_dir:
        raise UsageError(
            f"{cache_dir} is not a local directory",
            code="not-local",
            hint="give JAX a local directory, and name the bucket as source and target",
        )
    if os.path.realpath(other) == os.path.realpath(cache_dir):
        raise UsageError(
            f"{other} is the cache itself",
            code="same-directory",
            hint="name another directory, or a bundle, which is also smaller",
        )
