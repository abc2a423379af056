"""The settings and flags that act on keys, as JAX's own registry names them.

Settings of JAX enter a key directly, or through the program and its compile options. JAX's own
registry names them: what its trace context holds, and what the functions read that make compile
options and keys. The environment's name of a setting is the same in upper case.

Private names of JAX, tried on 0.4.30 to 0.12: ``config._value_holders``, ``trace_context`` and
``trace_context_names`` of ``jax/_src/config.py``, and ``swap_local`` of its settings;
``get_compile_options`` and ``use_detailed_logging`` of ``compiler.py``; all of ``cache_key.py``.
Where one is gone, the functions raise: settings are then unknown, and said to be so.
"""

import enum
import functools
import os
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from ..configuration import read_setting
from ..machine import XLA_CACHES

#: Programs read it when they make a random key, so that no part of JAX lists it.
_READ_BY_PROGRAMS = "jax_default_prng_impl"
#: They decide on the path of the cache, which is a fact of its own.
_OF_PATH = frozenset({"jax_compilation_cache_dir", XLA_CACHES})


@functools.lru_cache(maxsize=1)
def key_settings() -> "frozenset[str]":
    """Return the names of these settings; JAX must have been imported."""
    config = sys.modules["jax._src.config"]
    compiler = sys.modules["jax._src.compiler"]
    makers = [getattr(compiler, n, None) for n in ("get_compile_options", "use_detailed_logging")]
    makers += vars(sys.modules["jax._src.cache_key"]).values()
    functions = [f for f in makers if isinstance(f, types.FunctionType)]
    names = {_READ_BY_PROGRAMS, *_trace_context(config), *_read_by(functions, config)}
    return frozenset(names & config.config._value_holders.keys()) - _OF_PATH


def settings_of_options() -> "frozenset[str]":
    """Return those of which JAX makes compile options; JAX must have been imported."""
    make_options = sys.modules["jax._src.compiler"].get_compile_options
    return frozenset(_read_by([make_options], sys.modules["jax._src.config"])) - _OF_PATH


def _trace_context(config: Any) -> "Iterable[str]":
    """Return the names of what JAX's trace context holds."""
    if isinstance(config.trace_context, types.FunctionType):  # up to 0.7
        return _read_by([config.trace_context], config)
    try:
        return tuple(config.trace_context_names())
    except (AttributeError, NotImplementedError):  # up to 0.9 only a change shows what it holds
        return [n for n, state in config.config_states.items() if _changes_context(config, state)]


def _changes_context(config: Any, state: Any) -> bool:
    before = config.trace_context()
    kept = state.swap_local(object())
    try:
        return bool(config.trace_context() != before)
    finally:
        state.set_local(kept)


def _read_by(functions: "Iterable[Any]", config: Any) -> "Iterator[str]":
    """Yield the settings that the code of some functions names."""
    names = {id(holder): name for name, holder in config.config._value_holders.items()}
    for function in functions:
        codes = [function.__code__]
        for code in codes:
            codes += (c for c in code.co_consts if isinstance(c, types.CodeType))
            for word in code.co_names:
                for owner in (vars(config), function.__globals__):
                    if (name := names.get(id(owner.get(word)))) is not None:
                        yield name


def flags() -> "list[tuple[str, str]]":
    """Return the flags of XLA that JAX reads, each with its variable, or ``argv``."""
    variables = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
    read = [(name, flag) for name in variables for flag in os.environ.get(name, "").split()]
    prefixes: list[str] = getattr(sys.modules["jax._src.cache_key"], "get_flag_prefixes", list)()
    return read + [("argv", a) for a in sys.argv if a.startswith(("--xla", *prefixes))]


def is_hashed(flag: str) -> bool:
    """Return whether a flag of XLA is part of keys; tried on JAX 0.4.30 to 0.12."""
    excluded = getattr(sys.modules["jax._src.cache_key"], "xla_flags_to_exclude_from_cache_key", ())
    return flag.partition("=")[0] not in excluded


def settings_of_environment() -> "dict[str, Any]":
    """Return those of the settings that the environment sets, as JAX reads them."""
    holders = sys.modules["jax._src.config"].config._value_holders
    chosen = ((name, os.environ.get(name.upper())) for name in sorted(key_settings()))
    settings: dict[str, Any] = {}
    for name, text in chosen:
        if text is not None:
            try:
                settings[name] = plain_value(read_setting(text, holders[name].value))
            except ValueError:  # JAX refuses it
                settings[name] = text
    return settings


def current_settings() -> "dict[str, Any]":
    """Return the values of all of the settings, as they are now."""
    holders = sys.modules["jax._src.config"].config._value_holders
    return {name: plain_value(holders[name].value) for name in sorted(key_settings())}


def changed_settings(
    before: "dict[str, Any]", *, are_defaults_known: bool
) -> "dict[str, tuple[Any, str]]":
    """Return value and origin of each setting that is not JAX's default.

    Args:
        before: the values of all of them when the program began, as far as that was observed.
        are_defaults_known: whether the program can have changed none before; else the origin of a
            value that is on is ``unknown``.
    """
    environment = settings_of_environment()
    changed = {}
    for name, value in current_settings().items():
        if value != before.get(name):
            changed[name] = (value, "code")
        elif name in environment:
            changed[name] = (value, "environment")
        elif value and not are_defaults_known:
            changed[name] = (value, "unknown")
    return changed


def plain_value(value: Any) -> Any:
    """Return a value of a setting as JSON has it."""
    if isinstance(value, enum.Enum):
        return value.name.lower()
    return value if value is None or isinstance(value, (bool, int, float)) else str(value).lower()
