"""Either side of a ``diff``: a cache directory or a bundle, of any layout."""

import os

from jaxcache.cache.bundle.format import is_bundle, open_bundle
from jaxcache.cache.diff import DiffSide
from jaxcache.errors import UsageError
from jaxcache.layouts import choose_layout, load_layout
from jaxcache.model import FileInfo, Progress
from jaxcache.store import is_remote, open_store


def open_side(
    location: str, progress: Progress | None = None, *, layout: str | None = None
) -> DiffSide:
    """Read what a bundle or a cache holds.

    Raises:
        BundleError, NoCacheError
        UsageError: ``two-layouts``.
    """
    if not is_bundle(location):
        store = open_store(location)
        return choose_layout(store, layout).sides.read_side(store, progress)
    bundle = open_bundle(location)
    with bundle.file:
        return load_layout(bundle.manifest.layout).sides.read_bundle(bundle)


def names_there(location: str) -> frozenset[str]:
    """Return the names of all regular files at a path or URL; none if it does not exist yet.

    Raises:
        NoCacheError: it cannot be listed.
    """
    if not is_remote(location) and not os.path.isdir(location):
        return frozenset()
    store = open_store(location)
    files: list[FileInfo] = []
    for info in store.list():
        files += store.walk(info.name) if info.type == "dir" else [info]
    return frozenset(info.name for info in files if info.type == "file")


def check_same_layout(left: DiffSide, right: DiffSide) -> None:
    """Refuse to compare what no compiler could exchange.

    Raises:
        UsageError: ``other-layout``.
    """
    if left.layout != right.layout and left.entries and right.entries:
        raise UsageError(
            f"one side is a cache of {left.layout}, the other of {right.layout}",
            code="other-layout",
        )
