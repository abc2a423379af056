"""Fetch from tiers while jax is imported: the entries that the program's last run used.

The layer of the process is made before its jax, and takes that jax over once it is imported.
Nothing is loaded, and each entry is checked as ever. Where the program uses another JAX, or names
its credentials later, a new layer takes its place.
"""

import os

from .adapter import Adapter
from .layer import Layer
from .settings import ResolvedSettings, resolve

_OFF = ("0", "false", "no", "off")
_early: "Layer | None" = None


class UnimportedJax:
    """The facts about a jax that is about to be imported."""

    monitoring = None

    def __init__(self) -> None:
        from importlib.metadata import version

        self.versions = {"jax_version": version("jax"), "jaxlib_version": version("jaxlib")}

    def hashes_path(self) -> bool:
        """Return False: whether keys contain the path of the cache is not known yet."""
        return False


def begin() -> None:
    """Begin to fetch, where the environment names both the cache directory and tiers."""
    global _early
    if _early is not None:
        return
    path = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    is_off = os.environ.get("JAX_ENABLE_COMPILATION_CACHE", "").strip().lower() in _OFF
    settings = resolve()
    if not path or is_off or not settings["enabled"] or not settings["prefetch"]:
        return
    layer = Layer(settings, UnimportedJax())
    local, bucket = layer.locate(path)
    if "://" not in local and (bucket or settings["tiers"]):
        os.makedirs(local, exist_ok=True)
        layer.open(local, int(os.environ.get("JAX_COMPILATION_CACHE_MAX_SIZE") or -1), bucket)
        _early = layer


def take(settings: ResolvedSettings, adapter: "Adapter") -> "Layer | None":
    """Hand the layer over to the jax that has been imported; None where it is not to be used."""
    global _early
    layer = _early
    _early = None
    if layer is None or layer.forked or layer.settings.values != settings.values:
        return None
    tiers = [d.tiers for d in layer.directories.values() if d.tiers is not None]
    is_refused = any(t.is_given_up() for t in tiers)
    if tiers and not is_refused and layer.adapter.versions == adapter.versions:
        layer.take_over(adapter)
        return layer
    for one in tiers:
        one.abandon()
    return None
