"""Open the cache that a command is about, as its options name it."""

import os

from jaxcache.api import Cache
from jaxcache.api.handle import locate
from jaxcache.cli import terminal
from jaxcache.cli.output import note
from jaxcache.core.system import available_cores
from jaxcache.errors import UsageError
from jaxcache.options import CacheDir, CacheLocation
from jaxcache.store.location import index_directory


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
    return Cache(
        locate(path, layout),
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
    if layout not in (None, compiler):
        raise UsageError(f"the file to import holds entries of {compiler}", code="other-layout")
    target = open_handle(place, compiler)
    target.require_compiler(compiler)
    return target


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
