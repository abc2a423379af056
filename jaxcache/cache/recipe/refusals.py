"""Reasons why a request of a recipe cannot be compiled again."""

from collections.abc import Callable

from jaxcache.cache.allow_lists import LEFT_OUT, is_allowed_flag, refused_options
from jaxcache.cache.recipe.model import Environment, Request
from jaxcache.entry.releases import read_release
from jaxcache.entry.wire import WireError

#: The first JAX whose executables may have host callbacks that are given to them when loaded.
_CALLBACKS_SINCE = (0, 12)

#: Why a request cannot be compiled from a recipe, in a sentence.
REFUSALS = {
    "host-callbacks": "it calls back into the Python that recorded it; compiled without, it would "
    "make later runs crash on JAX before 0.12",
    "custom-partitioning": "it holds a pointer to a partitioner of the process that recorded it",
    "pgle": "it was compiled with a profile (PGLE), which is not in the recipe; its key is that of "
    "any profile (_resolve_compilation_strategy in jax/_src/compiler.py), and what is made without "
    "would be taken for it",
    "flags-file": "XLA_FLAGS names a file, which is not in the recipe",
    "path-in-flags": "its XLA flags name a path, which need not mean the same here",
    "unknown-option": "it sets a flag or a compile option that may name a file or start a program",
    "unreadable-options": "its compile options cannot be read",
}


def refuse(request: Request, environment: Environment, blob: Callable[[str], bytes]) -> str | None:
    """Return why a request cannot be compiled, a key of :data:`REFUSALS`; None if it can.

    Args:
        blob: gives the bytes of the options.
    """
    for reason in request.refusals:
        if reason in REFUSALS:
            return reason
    if request.callbacks and read_release(environment.jax_version) < _CALLBACKS_SINCE:
        return "host-callbacks"
    flags = (*environment.xla_flags, *environment.libtpu_init_args, *environment.argv_flags)
    if not all(f.startswith("--") for f in flags):
        return "flags-file"
    if any("/" in f and not LEFT_OUT.match(f) for f in flags):
        return "path-in-flags"
    allowed = (
        *(is_allowed_flag(f) for f in environment.xla_flags),
        *(is_allowed_flag(f, tpu=True) for f in environment.libtpu_init_args),
    )
    try:
        if all(allowed) and not any(refused_options(blob(request.options))):
            return None
    except (WireError, ValueError):
        return "unreadable-options"
    return "unknown-option"
