"""Caches of several compilers behind the same facts; :func:`choose_layout` picks one."""

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from jaxcache.core.names import AUTOTUNE_DIR, OWN_DIR
from jaxcache.entry.names import split_name
from jaxcache.errors import UsageError
from jaxcache.store.base import MissingError, Store

if TYPE_CHECKING:
    from jaxcache.layouts.base import Layout


class _Lazy:
    """A layout of facts that are imported when they are asked for."""

    def __init__(self, name: str, facts: dict[str, Any], places: dict[str, str]) -> None:
        self.name = name
        self.__dict__.update(facts)
        self._places = places

    def __getattr__(self, name: str) -> Any:
        if name not in (places := self.__dict__.get("_places", {})):
            raise AttributeError(name)
        module, _, function = places[name].partition(":")
        return attrgetter(function)(import_module(module))


#: Where each fact of :class:`Layout` comes from.
LAYOUTS: dict[str, _Lazy] = {
    "jax": _Lazy(
        "jax",
        {
            "single_file_entries": True,
            "has_headers": True,
            "keeps_index": True,
            "directories": (AUTOTUNE_DIR, OWN_DIR),
            "file_lock": None,
            "removal_rank": None,
            "own_directory": None,
            "run_options": None,
            "diagnose": None,
        },
        {
            "load_index": "jaxcache.cache.index:Index.load",
            "scan": "jaxcache.cache.scan:scan",
            "decode": "jaxcache.cache.scan:decode_entries",
            "files_to_check": "jaxcache.cache.verify.check:files_to_check",
            "check": "jaxcache.cache.verify.check:check_entries",
            "check_beside": "jaxcache.cache.verify.check:check_beside",
            "key_of": "jaxcache.entry.names:key_of",
            "find_removable": "jaxcache.cache.prune.removable:find_removable",
            "plan_export": "jaxcache.cache.move.export_plan:plan_export",
            "plan_import": "jaxcache.cache.move.import_bundle:plan_import",
            "read_side": "jaxcache.cache.diff:read_cache",
            "read_bundle": "jaxcache.cache.diff:read_bundle",
            "show": "jaxcache.cache.show:show_entries",
            "show_file": "jaxcache.cache.show:show_file",
            "explain": "jaxcache.cache.explain.arguments:explain_given",
            "find_churn": "jaxcache.cache.explain.churn:find_churn",
            "explain_script": "jaxcache.warm.explain:explain_script",
            "run": "jaxcache.warm.run:run_command",
            "warm": "jaxcache.warm.run:warm_programs",
            "report_view": "jaxcache.render.warm:report_view",
        },
    ),
    "torch": _Lazy(
        "torch",
        {
            "single_file_entries": False,
            "has_headers": False,
            "keeps_index": True,
            "directories": None,
            "run_options": ("python", "jobs", "timeout_seconds"),
        },
        {
            "own_directory": "jaxcache.layouts.torch.names:own_directory",
            "load_index": "jaxcache.layouts.torch.scan:GraphIndex.load",
            "scan": "jaxcache.layouts.torch.scan:scan",
            "decode": "jaxcache.layouts.torch.scan:decode",
            "files_to_check": "jaxcache.layouts.torch.check:files_to_check",
            "check": "jaxcache.layouts.torch.check:check",
            "check_beside": "jaxcache.layouts.torch.check:check_beside",
            "key_of": "jaxcache.layouts.torch.names:key_of",
            "file_lock": "jaxcache.layouts.torch.locks:hold_lock",
            "removal_rank": "jaxcache.layouts.torch.units:removal_rank",
            "find_removable": "jaxcache.layouts.torch.units:find_removable",
            "plan_export": "jaxcache.layouts.torch.bundle:plan_export",
            "plan_import": "jaxcache.layouts.torch.bundle:plan_import",
            "read_side": "jaxcache.layouts.torch.sides:read_side",
            "read_bundle": "jaxcache.layouts.torch.sides:read_bundle",
            "show": "jaxcache.layouts.torch.show:show_graphs",
            "show_file": "jaxcache.layouts.torch.show:show_graph_file",
            "explain": "jaxcache.layouts.torch.explain:explain_graphs",
            "find_churn": "jaxcache.layouts.torch.explain:find_churn",
            "diagnose": "jaxcache.layouts.torch.doctor:diagnose",
            "explain_script": "jaxcache.warm.explain:explain_torch_script",
            "run": "jaxcache.warm.torch:run_command",
            "warm": "jaxcache.warm.torch:warm_programs",
            "report_view": "jaxcache.render.torch:report_view",
        },
    ),
}
#: A bundle of JAX's entries, which can be looked at and no more.
BUNDLE = _Lazy(
    "bundle",
    {"single_file_entries": True, "has_headers": True, "keeps_index": False, "directories": None},
    {
        "scan": "jaxcache.cache.bundle.reader:scan_bundle",
        "decode": "jaxcache.cache.bundle.reader:decode_bundle",
        "show": "jaxcache.cache.bundle.reader:show_bundle",
    },
)
#: Directories that torch's compilers make in their cache, and JAX never.
_TORCH_DIRECTORIES = ("aotautograd", "fxgraph")
#: The directory of its locks, which is all that tells a cache of kernels alone.
_LOCKS = "locks"

__all__ = [
    "BUNDLE",
    "LAYOUTS",
    "check_layout",
    "check_not_torch",
    "choose_layout",
    "detect_layout",
    "load_layout",
]


def load_layout(name: str) -> "Layout":
    """The layout of that name.

    Raises:
        UsageError: ``bad-layout``.
    """
    if name not in LAYOUTS:
        raise UsageError(
            f"{name!r} is not a layout", code="bad-layout", hint=f"one of {', '.join(LAYOUTS)}"
        )
    return cast("Layout", LAYOUTS[name])


def choose_layout(store: Store, name: str | None = None) -> "Layout":
    """The layout that was asked for, else the one that the cache has.

    Raises:
        UsageError: ``bad-layout``, or ``two-layouts`` where JAX and torch share a directory.
    """
    return load_layout(name or detect_layout(store))


def detect_layout(store: Store) -> str:
    """Tell what wrote a cache by its directories; an empty one counts as JAX's. Opens no file.

    An object store has none to look at for free: there it is JAX's unless one says otherwise.

    Raises:
        UsageError: ``two-layouts``.
    """
    if store.remote or not _has_torch(store):
        return "jax"
    if _has_jax_entries(store):
        raise UsageError(
            f"{store.url} holds entries of JAX and of torch",
            code="two-layouts",
            hint="choose with --layout jax or --layout torch",
        )
    return "torch"


def check_not_torch(store: Store) -> None:
    """Refuse a cache of torch's compilers for what only one of JAX can be asked.

    One that has entries of both will do; it costs two lookups.

    Raises:
        UsageError: ``other-layout``.
    """
    if not store.remote and _has_torch(store) and not _has_jax_entries(store):
        raise UsageError(
            f"{store.url} is a cache of torch's compilers, and this is for JAX's",
            code="other-layout",
            hint="jaxcache ls, show, stats, verify, prune and rm know it",
        )


def check_layout(store: Store, layout: str) -> None:
    """Refuse to put what one compiler made into a cache of another.

    Raises:
        UsageError: ``other-layout``.
    """
    if store.remote:
        return
    has_torch = _has_torch(store)
    if has_torch if layout == "jax" else _has_jax_entries(store) and not has_torch:
        other = "torch" if layout == "jax" else "JAX"
        raise UsageError(
            f"{store.url} is a cache of {other}",
            code="other-layout",
            hint="name another directory with --cache-dir",
        )


def _has_torch(store: Store) -> bool:
    if any(_is_directory(store, name) for name in _TORCH_DIRECTORIES):
        return True
    if not _is_directory(store, _LOCKS):
        return False
    from jaxcache.layouts.torch.names import is_lock

    return any(is_lock(info.name) for info in store.list(_LOCKS))


def _has_jax_entries(store: Store) -> bool:
    return any(split_name(info.name)[1] for info in store.list() if info.type == "file")


def _is_directory(store: Store, name: str) -> bool:
    try:
        return store.info(name).type == "dir"
    except MissingError:
        return False
