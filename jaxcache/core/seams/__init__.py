"""Every private name of JAX, by subject, each with the versions it was tried on.

``cache``: what the live layer replaces; ``listening``: what is observed of compiles; ``tracing``:
traces, and what a guard stands before; ``compiling``: options, devices and executables;
``targets``: compiles for other hosts. Here is what they share, functions in place of JAX's and
the settings that act on keys.

Settings of JAX enter a key directly, or through the program and its compile options. JAX's own
registry names them: what its trace context holds, and what the functions read that make compile
options and keys. The environment's name of a setting is the same in upper case.

Private names here, tried on 0.4.30 to 0.12: ``config._value_holders``, ``trace_context`` and
``trace_context_names`` of ``jax/_src/config.py``, and ``swap_local`` of its settings;
``get_compile_options`` and ``use_detailed_logging`` of ``compiler.py``; all of ``cache_key.py``;
``register_exclusion`` of ``traceback_util.py`` and ``source_info_util.py``. Where one is gone the
functions raise, and settings count as unknown; tracebacks then show our frames.
"""

import contextlib
import enum
import functools
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..configuration import read_setting
from ..names import XLA_CACHES

#: Programs read it when they make a random key, so that no part of JAX lists it.
_READ_BY_PROGRAMS = "jax_default_prng_impl"
#: They decide on the path of the cache, which is a fact of its own.
_OF_PATH = frozenset({"jax_compilation_cache_dir", XLA_CACHES})
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: What runs inside the user's program.
_GUESTS = ("core", "core/seams", "injected", "live")


class UnknownJaxError(Exception):
    """This JAX lacks a name that is needed here."""


@contextlib.contextmanager
def known_to(deed: str, jax: Any, tried: str) -> "Iterator[None]":
    """Look names of JAX up for a purpose.

    Raises:
        UnknownJaxError: one is gone, or another than it was.
    """
    try:
        yield
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownJaxError(
            f"cannot {deed} jax {jax.__version__} ({error}); known are {tried}: "
            "upgrade jaxcache, or use an older jax"
        ) from error


def process_index() -> int:
    """Return this process's number in a distributed program; 0 where it is alone."""
    return int(sys.modules["jax._src.distributed"].global_state.process_id or 0)


def describe_versions() -> "dict[str, str]":
    """Return the releases of JAX and jaxlib."""
    import jax
    import jaxlib

    jaxlib_version = getattr(jaxlib, "__version__", "") or jaxlib.version.__version__
    return {"jax_version": str(jax.__version__), "jaxlib_version": str(jaxlib_version)}


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 500 characters; its type where it has none."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:500]


def describe_error(error: BaseException) -> str:
    """Type and first line of an error."""
    return f"{type(error).__name__}: {first_line(error)}"


def wrap(owner: Any, name: str, around: "Callable[..., Any]") -> None:
    """Have ``around(original, args, kwargs)`` called in place of an attribute of ``owner``.

    JAX looks up the attributes of its modules at each call, so that this is enough.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, args, kwargs)

    setattr(owner, name, wrapper)


def hide_frames() -> None:
    """Ask JAX to leave frames of our files out of tracebacks, and of source lines of entries."""
    try:
        for guest in _GUESTS:
            ours = os.path.join(_PACKAGE, guest)
            for name in os.listdir(ours):
                if name.endswith(".py"):
                    path = os.path.join(ours, name)
                    sys.modules["jax._src.traceback_util"].register_exclusion(path)
            sys.modules["jax._src.source_info_util"].register_exclusion(ours)
    except Exception:  # noqa: S110 - nothing but looks depends on it
        pass


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


def settings_of_options() -> "dict[str, Any]":
    """Return those of which JAX makes compile options, with their values, in order."""
    config = sys.modules["jax._src.config"]
    make_options = sys.modules["jax._src.compiler"].get_compile_options
    names = frozenset(_read_by([make_options], config)) - _OF_PATH
    return {name: config.config._value_holders[name].value for name in sorted(names)}


def find_setting(name: str) -> Any:
    """Return a setting that a ``with`` may change; None where this JAX has none of this name."""
    return getattr(sys.modules["jax._src.config"], name.removeprefix("jax_"), None)


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


def default_settings() -> "dict[str, Any]":
    """Return the settings that act on keys, as they are where the environment sets none.

    JAX keeps no defaults: its registry is made once more, without these variables.
    """
    current = current_settings()
    chosen = [n for n in current if os.environ.pop(n.upper(), None) is not None]
    if not chosen:
        return current
    from importlib.util import module_from_spec, spec_from_file_location

    path = sys.modules["jax._src.config"].__file__
    spec: Any = spec_from_file_location("_jaxcache_defaults", path)
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    fresh = module.config._value_holders
    return {
        name: plain_value(fresh[name].value) if name in fresh else value
        for name, value in current.items()
        if name in fresh or name not in chosen
    }
