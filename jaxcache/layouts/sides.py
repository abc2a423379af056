"""Either side of a ``diff``: a cache directory or a bundle, of any layout."""

from collections.abc import Callable

from jaxcache.cache import diff
from jaxcache.cache.bundle.format import is_bundle, open_bundle
from jaxcache.cache.diff import Side
from jaxcache.cache.scan import Progress
from jaxcache.errors import UsageError
from jaxcache.layouts import choose_layout
from jaxcache.store.base import Store


def open_side(
    location: str,
    open_cache: Callable[[str], Store],
    progress: Progress | None = None,
    *,
    layout: str | None = None,
) -> Side:
    """Read what a bundle or a cache holds.

    Raises:
        BundleError, NoCacheError
        UsageError: ``two-layouts``.
    """
    if not is_bundle(location):
        store = open_cache(location)
        return choose_layout(store, layout).read_side(store, progress)
    bundle = open_bundle(location)
    with bundle.file:
        if bundle.manifest.layout == "jax":
            return diff.open_side(location, open_cache, progress)
        from jaxcache.layouts.torch.sides import read_bundle_side

        return read_bundle_side(bundle)


def check_same_layout(left: Side, right: Side) -> None:
    """Refuse to compare what no compiler could exchange.

    Raises:
        UsageError: ``other-layout``.
    """
    if left.layout != right.layout and left.entries and right.entries:
        raise UsageError(
            f"one side is a cache of {left.layout}, the other of {right.layout}",
            code="other-layout",
        )
