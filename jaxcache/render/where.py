"""``where`` as a document."""

from collections.abc import Sequence

from jaxcache.entry.names import printable
from jaxcache.render.document import SCHEMA_VERSION, Document
from jaxcache.warm.where import Use


def where_document(uses: Sequence[Use]) -> Document:
    """What ``where --json`` prints; ``cache_dir`` is the first that was opened."""
    opened = [u.opened for u in uses if u.opened]
    return {
        "schema_version": SCHEMA_VERSION,
        "cache_dir": printable(opened[0]) if opened else None,
        "processes": [use_document(u) for u in uses],
    }


def use_document(use: Use) -> Document:
    """One Python with jax."""
    return {
        "pid": use.pid,
        "executable": use.executable,
        "cache_dir": use.opened and printable(use.opened),
        "jax_compilation_cache_dir": use.setting and printable(use.setting),
        "jax_enable_compilation_cache": use.enabled,
    }
