"""A program to warm: a script, a module, a notebook, or a function; and the environment it gets.

What people write as arguments becomes a tree of plain JSON, which ``injected/run_program.py``
builds the real ones from: ``{"array": ["float32", [8, 128]]}``, ``{"value": …}``,
``{"list": […]}``, ``{"tuple": […]}``, ``{"dict": {…}}``, ``{"key": [dims]}`` and
``{"call": {"function": …, "args": […], "kwargs": {…}}}``.

JAX does not write a compile of less than a second, or a small entry, unless settings demand it.
``warm`` fills a cache, so it lifts these thresholds; ``run`` shows what the program does by itself,
so it leaves them as the user has them, unless the run writes nothing that stays.
"""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxcache.core.configuration import JAX_DEFAULTS, read_setting, read_switch
from jaxcache.errors import UsageError, system_errors_as
from jaxcache.options.run import CallOptions, RunOptions, WarmOptions
from jaxcache.store import is_remote
from jaxcache.store.location import absolute_location
from jaxcache.warm.child.child import LIFTED

if TYPE_CHECKING:
    from jaxcache.warm.crosshost.cross_target import CrossTarget

#: JAX's settings of whether it caches, and where.
ENABLED = "jax_enable_compilation_cache"
DIRECTORY = "jax_compilation_cache_dir"
#: The path is in the options of XLA's own caches (jax/_src/compiler.py, 0.4.36 to 0.10).
_PORTABLE = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
PORTABLE_NOTE = (
    "portable keys: set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none where this cache is used, too; "
    "on a GPU XLA's autotune results are then not kept between compiles"
)
#: The settings that decide what is written.
_THRESHOLDS = (
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_compilation_cache_max_size",
)


def lifted_thresholds(options: RunOptions) -> Mapping[str, str]:
    """The settings that lift JAX's thresholds, for ``warm`` and for a run into ``scratch``."""
    return LIFTED if isinstance(options, WarmOptions) or options.scratch else {}


def effective_thresholds(options: RunOptions) -> dict[str, float]:
    """The thresholds that hold in the program of a run, unless it sets them itself."""
    env = {**os.environ, **lifted_thresholds(options)}
    thresholds = {name: float(JAX_DEFAULTS[name]) for name in _THRESHOLDS}
    for name in thresholds:
        with contextlib.suppress(KeyError, ValueError):
            thresholds[name] = float(env[name.upper()])
    with contextlib.suppress(KeyError, ValueError):
        if not read_setting(env[ENABLED.upper()], JAX_DEFAULTS[ENABLED]):
            thresholds[ENABLED] = 0.0
    return thresholds


def run_environment(
    options: RunOptions, cross: "CrossTarget | None", devices: int | None = None
) -> dict[str, str]:
    """The variables that the options of a run put into the environment of its program."""
    # Where the variable names the directory already, this is its value, byte for byte.
    directory = options.jax_cache_dir
    env = {**lifted_thresholds(options)}
    if directory:
        env["JAX_COMPILATION_CACHE_DIR"] = directory
    if cross:
        env |= cross.environment(devices=devices)
    if options.portable:
        env |= _PORTABLE
    has_live_layer = _has_live_layer(options)
    own = {
        "JAXCACHE_FORCE_CACHE_DIR": options.force_cache_dir and (directory or options.cache_dir),
        "JAXCACHE_SCRATCH": options.scratch,
        "JAXCACHE_UNDO": options.undo,
        "JAXCACHE_NO_WRITE": "1" if options.no_write else None,
        "JAXCACHE_LIVE": "1" if has_live_layer else None,
        "JAXCACHE_LIVE_LEDGER": "totals" if has_live_layer else None,  # the run records uses
        "JAXCACHE_LIVE_TIERS": "".join(f"{absolute_location(tier)}\n" for tier in options.tiers),
        "JAXCACHE_COMPONENTS": "1" if options.components else None,
        "JAXCACHE_GUARD": options.guard,
    }
    return env | {name: value for name, value in own.items() if value}


def live_modules(launched: Mapping[str, str]) -> tuple[str, ...]:
    """Return the modules that the live layer needs in a program's Python to do what was asked.

    Args:
        launched: what a run puts into the environment of its program.
    """
    env = {**os.environ, **launched}
    tiers = re.split(r"[,\s]+", env.get("JAXCACHE_LIVE_TIERS", ""))
    is_signed = (
        read_switch("JAXCACHE_LIVE_REQUIRE_SIGNED", env) or "JAXCACHE_LIVE_SIGNING_KEY" in env
    )
    is_in_bucket = any(map(is_remote, (env.get("JAX_COMPILATION_CACHE_DIR", ""), *tiers)))
    needed = {"obstore": is_in_bucket, "cryptography": is_signed and (is_in_bucket or any(tiers))}
    return tuple(n for n in needed if needed[n] and read_switch("JAXCACHE_LIVE", env))


def _has_live_layer(options: RunOptions) -> bool:
    """Whether the live layer is on: a bucket needs it, unless the user has switched it off."""
    is_needed = is_remote(options.cache_dir) and read_switch("JAXCACHE_LIVE") is not False
    return bool(options.live or options.tiers) or is_needed


#: One argument, as the child reads it.
Node = dict[str, Any]

FUNCTION = re.compile(r"(?P<module>.+):(?P<name>[^\W\d]\w*(\.[^\W\d]\w*)*)")
_NAMED = re.compile(r"(?P<name>[^\W\d]\w*)\s*=(?P<value>.*)", re.DOTALL)
#: A typed PRNG key, which is not an array of numbers: ``key[]``, ``key[8]``.
_KEY = re.compile(r"key\[(\d+(,\d+)*)?\]")
_MAX_TABLE_BYTES = 16 << 20
_FIELDS = {"args": list, "kwargs": dict, "static": dict, "committed": bool}
_MARKS = ("$tuple", "$value", "$call")
#: How the names of files end that are no programs, but records of what one compiled.
SAVED_RUNS = (".json", ".jsonl", ".recipe")
_STDIN = "-"
_START_BYTES = 4096


class Call(NamedTuple):
    """One call that is lowered and compiled, not made."""

    function: str
    """``MODULE:FUNCTION``, or ``FILE.py:FUNCTION``."""
    args: tuple[Node, ...]
    kwargs: Mapping[str, Node]
    static: Mapping[str, Node]
    """By keyword, and static where the function is not jitted yet."""
    committed: bool
    """Whether the arrays are committed to the first device, as after ``device_put(x, device)``."""

    def to_json(self) -> dict[str, Any]:
        """The call as the child reads it."""
        return {**self._asdict(), "args": list(self.args)}


class WarmProgram(NamedTuple):
    """One Python script, module or function to warm, as the command line names it."""

    script: str = ""
    arguments: tuple[str, ...] = ()
    module: str | None = None
    """The module to run as ``python -m`` does, instead of a script."""
    call: Call | None = None
    """The function to lower and compile, instead of running a script."""

    @property
    def name(self) -> str:
        """What a reader knows it by."""
        return f"-m {self.module}" if self.module else self.script


def _read_toml(path: str) -> dict[str, Any]:
    """Read a file that people have written.

    Raises:
        UsageError: ``bad-list``.
    """
    import tomllib

    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_TABLE_BYTES + 1)
        if len(data) > _MAX_TABLE_BYTES:
            raise ValueError("it is too large to be a table of arguments")
        return tomllib.loads(data.decode())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None)  # str() of a system's error repeats the path
        message = reason.lower() if reason else error
        raise UsageError(f"cannot read {path}: {message}", code="bad-list") from error


def is_script(name: str) -> bool:
    """Whether a name is that of a script or a notebook, which need not exist."""
    return name.endswith((".py", ".ipynb"))


def is_program(name: str) -> bool:
    """Whether a name is that of a program: standard input, a directory, an archive or a script."""
    import zipfile

    if name == _STDIN or is_script(name) or os.path.isfile(os.path.join(name, "__main__.py")):
        return True
    if name.endswith(SAVED_RUNS) or not os.path.isfile(name):
        return False
    with system_errors_as(UsageError, f"cannot read {name}", code="no-script"):
        with open(name, "rb") as file:
            start = file.read(_START_BYTES).lstrip()
        is_text = not (start.startswith(b"{") or b"\0" in start)
        is_named_so = not os.path.splitext(name)[1] or start.startswith(b"#!")
        return zipfile.is_zipfile(name) or (is_text and is_named_so)


def names_function(text: str) -> bool:
    """Whether the command line names a function, and no script."""
    return FUNCTION.fullmatch(text) is not None


def read_call(function: str, options: CallOptions) -> Call:
    """Make a call from the options of the command line.

    Raises:
        UsageError: ``bad-argument`` or ``bad-list``.
    """
    if options.table is not None:
        if options.words or options.static:
            raise UsageError("--args excludes --arg and --static")
        table = {"committed": options.committed, **_read_toml(options.table)}
        return read_table(function, table, options.table)
    from jaxcache.entry.contents import parse_short_type

    args: list[Node] = []
    kwargs: dict[str, Node] = {}
    for text in options.words:
        named = None if parse_short_type(text) else _NAMED.fullmatch(text)
        if named:
            kwargs[named["name"]] = _read_word(named["value"])
        else:
            args.append(_read_word(text))
    fixed = {}
    for text in options.static:
        named = _NAMED.fullmatch(text)
        if not named:
            raise UsageError(
                f"{text!r} has no name", code="bad-argument", hint="write --static NAME=VALUE"
            )
        fixed[named["name"]] = _read_literal(named["value"])
    return Call(function, tuple(args), kwargs, fixed, options.committed)


def read_table(function: str, table: Mapping[str, Any], place: str) -> Call:
    """Make a call of a TOML table with ``args``, ``kwargs``, ``static`` and ``committed``.

    Raises:
        UsageError: ``bad-list``.
    """
    _check_fields(table, _FIELDS, place)
    return Call(
        function,
        tuple(_read_value(v, place) for v in table.get("args", [])),
        {k: _read_value(v, place) for k, v in table.get("kwargs", {}).items()},
        {k: _as_it_is(v, place) for k, v in table.get("static", {}).items()},
        bool(table.get("committed", False)),
    )


def _check_fields(table: object, types: Mapping[str, type], place: str) -> None:
    """Refuse a table of TOML with fields that are not known, or of the wrong type.

    Raises:
        UsageError: ``bad-list``.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"{place} is not a table", code="bad-list")
    for name, value in table.items():
        if name not in types:
            raise UsageError(
                f"{place} has a field {name!r}",
                code="bad-list",
                hint=f"known are {', '.join(types)}",
            )
        if not isinstance(value, types[name]):
            raise UsageError(f"{name} of {place} is of the wrong type", code="bad-list")


def _read_word(text: str) -> Node:
    """An argument on the command line: an array, or a literal of Python."""
    return _read_array(text.strip()) or _read_literal(text)


def _read_array(text: str) -> Node | None:
    from jaxcache.entry.contents import parse_short_type

    if array := parse_short_type(text):
        return {"array": [array.dtype, list(array.shape)]}
    if _KEY.fullmatch(text):
        return {"key": [int(d) for d in text[4:-1].split(",") if d]}
    return None


def _read_literal(text: str) -> Node:
    import ast

    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        value = ...
    if not isinstance(value, bool | int | float | str | None):
        raise UsageError(
            f"cannot read the argument {text!r}",
            code="bad-argument",
            hint="write f32[8,128], 3, 0.5, True, 'text', or name=… for a keyword; "
            "pytrees go into a TOML file, --args FILE",
        )
    return {"value": value}


def _read_value(value: Any, place: str) -> Node:
    """An argument in a TOML file."""
    if isinstance(value, str):
        node = _read_array(value)
        if node is None:
            raise UsageError(
                f"{value!r} in {place} is not an array",
                code="bad-list",
                hint="write 'f32[8,128]', or { '$value' = 'text' } for text itself",
            )
        return node
    if isinstance(value, bool | int | float):
        return {"value": value}
    if isinstance(value, list):
        return {"list": [_read_value(v, place) for v in value]}
    if not isinstance(value, dict):
        raise UsageError(f"{value!r} in {place} is not an argument", code="bad-list")
    marks = [name for name in value if name.startswith("$")]
    if not marks:
        return {"dict": {k: _read_value(v, place) for k, v in value.items()}}
    if len(value) != 1 or marks[0] not in _MARKS:
        raise UsageError(
            f"a table in {place} has {marks[0]!r} next to other fields, or an unknown field",
            code="bad-list",
            hint=f"known are {', '.join(_MARKS)}, each alone in its table",
        )
    return _read_marked(marks[0], value[marks[0]], place)


def _as_it_is(value: Any, place: str) -> Node:
    """A value that is not an array; a date of TOML has no JSON."""
    import json

    try:
        json.dumps(value)
    except TypeError as error:
        raise UsageError(f"{value!r} in {place} is not an argument", code="bad-list") from error
    return {"value": value}


def _read_marked(mark: str, inner: Any, place: str) -> Node:
    if mark == "$value":
        return _as_it_is(inner, place)
    if mark == "$tuple" and isinstance(inner, list):
        return {"tuple": [_read_value(v, place) for v in inner]}
    function = inner.get("function") if isinstance(inner, dict) else None
    if mark != "$call" or not isinstance(function, str) or not names_function(function):
        raise UsageError(f"{mark} in {place} is of the wrong type", code="bad-list")
    call = read_table(function, {k: v for k, v in inner.items() if k != "function"}, place)
    return {"call": call.to_json()}


_RUN_PROGRAM = os.path.abspath(f"{__file__}/../../injected/run_program.py")


def words_of(program: WarmProgram) -> tuple[str, ...]:
    """The arguments that the Python is started with."""
    if program.call is not None:
        import json

        return _RUN_PROGRAM, "call", json.dumps(program.call.to_json())
    if program.module:
        return "-m", program.module, *program.arguments
    if program.script == _STDIN:
        return _STDIN, *program.arguments
    path = program.script or "."
    if not (os.path.isfile(path) or os.path.isfile(os.path.join(path, "__main__.py"))):
        what = "no __main__.py in" if os.path.isdir(path) else "no script"
        raise UsageError(
            f"there is {what} {path}",
            code="no-script",
            hint="name a Python file, a notebook, or a function as MODULE:FUNCTION",
        )
    if path.endswith(".ipynb"):
        return _RUN_PROGRAM, "notebook", program.script, *program.arguments
    return program.script, *program.arguments


def is_function(program: str) -> bool:
    """Whether it means MODULE:FUNCTION; a file of that name is a script."""
    return names_function(program) and not os.path.exists(program)


def program_of(
    program: str | None,
    arguments: Sequence[str] | None,
    call: CallOptions,
    *,
    module: str | None = None,
) -> WarmProgram:
    """Return the script, module or function of the command line.

    Args:
        call: how the function is called, if it is one.
        module: to be run as ``python -m`` does; all else is arguments.

    Raises:
        UsageError: none was given, or the call cannot be read.
    """
    words = tuple(arguments or ())
    if module is not None and not call:
        return WarmProgram(module=module, arguments=(*([program] if program else ()), *words))
    if program is None or module:
        raise UsageError("name a script, or a module with -m")
    if is_function(program):
        if words:
            raise UsageError(
                f"{program} is a function, and {words[0]!r} is not an option",
                hint="write its arguments as --arg 'f32[8,128]'",
            )
        return WarmProgram(call=read_call(program, call))
    if call:
        raise UsageError("--arg, --static, --args and --committed are for MODULE:FUNCTION")
    return WarmProgram(program, words)
