"""The arguments of a function that is warmed without being called: shapes, values, pytrees.

What people write becomes a tree of plain JSON, which ``jaxside/call_function.py`` builds the real
arguments from: ``{"array": ["float32", [8, 128]]}``, ``{"value": …}``, ``{"list": […]}``,
``{"tuple": […]}``, ``{"dict": {…}}``, ``{"key": [dims]}`` and
``{"call": {"function": …, "args": […], "kwargs": {…}}}``.
"""

import ast
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxcache.entry.shapes import parse_short_type
from jaxcache.errors import UsageError
from jaxcache.options.run import CallOptions

#: One argument, as the child reads it.
Node = dict[str, Any]

FUNCTION = re.compile(r"(?P<module>.+):(?P<name>[^\W\d]\w*(\.[^\W\d]\w*)*)")
_NAMED = re.compile(r"(?P<name>[^\W\d]\w*)\s*=(?P<value>.*)", re.DOTALL)
#: A typed PRNG key, which is no array of numbers: ``key[]``, ``key[8]``.
_KEY = re.compile(r"key\[(\d+(,\d+)*)?\]")
_FIELDS = {"args": list, "kwargs": dict, "static": dict, "committed": bool}
_MARKS = ("$tuple", "$value", "$call")


@dataclass(frozen=True, slots=True)
class Call:
    """One call that is lowered and compiled, not made."""

    function: str
    """``MODULE:FUNCTION``, or ``FILE.py:FUNCTION``."""
    args: tuple[Node, ...] = ()
    kwargs: Mapping[str, Node] = field(default_factory=dict)
    static: Mapping[str, Node] = field(default_factory=dict)
    """By keyword, and static where the function is not jitted yet."""
    committed: bool = False
    """Whether the arrays are committed to the first device, as after ``device_put(x, device)``."""

    def to_json(self) -> dict[str, Any]:
        """The call as the child reads it."""
        return {
            "function": self.function,
            "args": list(self.args),
            "kwargs": dict(self.kwargs),
            "static": dict(self.static),
            "committed": self.committed,
        }


def names_function(text: str) -> bool:
    """Whether the command line names a function, and no script."""
    return FUNCTION.fullmatch(text) is not None


def read_call(function: str, given: CallOptions) -> Call:
    """Make a call of what the command line says.

    Raises:
        UsageError: ``bad-argument`` or ``bad-list``.
    """
    if given.table is not None:
        if given.words or given.static:
            raise UsageError("--args excludes --arg and --static")
        try:
            with open(given.table, "rb") as opened:
                table = tomllib.load(opened)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {given.table}: {error}", code="bad-list") from error
        return read_table(function, {"committed": given.committed, **table}, given.table)
    args: list[Node] = []
    kwargs: dict[str, Node] = {}
    for text in given.words:
        named = None if parse_short_type(text) else _NAMED.fullmatch(text)
        if named:
            kwargs[named["name"]] = _read_word(named["value"])
        else:
            args.append(_read_word(text))
    fixed = {}
    for text in given.static:
        named = _NAMED.fullmatch(text)
        if not named:
            raise UsageError(
                f"{text!r} has no name", code="bad-argument", hint="write --static NAME=VALUE"
            )
        fixed[named["name"]] = _read_literal(named["value"])
    return Call(function, tuple(args), kwargs, fixed, given.committed)


def read_table(function: str, table: Mapping[str, Any], place: str) -> Call:
    """Make a call of a TOML table with ``args``, ``kwargs``, ``static`` and ``committed``.

    Raises:
        UsageError: ``bad-list``.
    """
    check_fields(table, _FIELDS, place)
    return Call(
        function,
        tuple(_read_value(v, place) for v in table.get("args", [])),
        {k: _read_value(v, place) for k, v in table.get("kwargs", {}).items()},
        {k: {"value": v} for k, v in table.get("static", {}).items()},
        bool(table.get("committed", False)),
    )


def check_fields(table: Mapping[str, Any], known: Mapping[str, type], place: str) -> None:
    """Refuse a table of TOML with fields that are not known, or of the wrong type.

    Raises:
        UsageError: ``bad-list``.
    """
    for name, value in table.items():
        if name not in known:
            raise UsageError(
                f"{place} has a field {name!r}",
                code="bad-list",
                hint=f"known are {', '.join(known)}",
            )
        if not isinstance(value, known[name]):
            raise UsageError(f"{name} of {place} is of the wrong type", code="bad-list")


def _read_word(text: str) -> Node:
    """An argument on the command line: an array, or a literal of Python."""
    return _read_array(text.strip()) or _read_literal(text)


def _read_array(text: str) -> Node | None:
    if array := parse_short_type(text):
        return {"array": [array.dtype, list(array.shape)]}
    if _KEY.fullmatch(text):
        return {"key": [int(d) for d in text[4:-1].split(",") if d]}
    return None


def _read_literal(text: str) -> Node:
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
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
                f"{value!r} in {place} is no array",
                code="bad-list",
                hint="write 'f32[8,128]', or { '$value' = 'text' } for text itself",
            )
        return node
    if isinstance(value, bool | int | float):
        return {"value": value}
    if isinstance(value, list):
        return {"list": [_read_value(v, place) for v in value]}
    if not isinstance(value, dict):
        raise UsageError(f"{value!r} in {place} is no argument", code="bad-list")
    marks = [name for name in value if name.startswith("$")]
    if not marks:
        return {"dict": {k: _read_value(v, place) for k, v in value.items()}}
    if len(value) != 1 or marks[0] not in _MARKS:
        raise UsageError(
            f"a table in {place} has {marks[0]!r} beside other fields, or which is not known",
            code="bad-list",
            hint=f"known are {', '.join(_MARKS)}, each alone in its table",
        )
    return _read_marked(marks[0], value[marks[0]], place)


def _read_marked(mark: str, inner: Any, place: str) -> Node:
    if mark == "$value":
        return {"value": inner}
    if mark == "$tuple" and isinstance(inner, list):
        return {"tuple": [_read_value(v, place) for v in inner]}
    function = inner.get("function") if isinstance(inner, dict) else None
    if mark != "$call" or not isinstance(function, str) or not names_function(function):
        raise UsageError(f"{mark} in {place} is of the wrong type", code="bad-list")
    call = read_table(function, {k: v for k, v in inner.items() if k != "function"}, place)
    return {"call": call.to_json()}
