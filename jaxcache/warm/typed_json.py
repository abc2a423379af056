"""JSON from a stranger as dataclasses: every value is of the type of its field, and bounded."""

import base64
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

_MAX_CHARACTERS = 1 << 16
_MAX_ITEMS = 1 << 16
_MAX_EXACT = 256 << 10
_SAME: Mapping[str, str] = MappingProxyType({})

Span = tuple[float, float]
"""Start in seconds since the epoch, and length in seconds."""
Scalar = str | int | float | bool | None
Digest = Annotated[str, "64 hexadecimal digits"]
Text = Annotated[str, "as it is"]
"""A text that is refused, not cut, where it is too long."""
Base64 = Annotated[bytes, "base64"]


def build(kind: type, wire: object, names: Mapping[str, str] = _SAME) -> Any:
    """Make a dataclass of a JSON object; fields that are not known are left alone.

    Args:
        names: fields of ``kind`` that are called otherwise in the object.

    Raises:
        ValueError: a value is missing, or of another type.
    """
    if not isinstance(wire, dict):
        raise ValueError("not an object")
    values = {}
    for name, (reader, required) in _readers(kind).items():
        value = wire.get(names.get(name, name))
        if value is not None or required:
            try:
                values[name] = reader(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"{name}: {error}") from error
    return kind(**values)


@cache
def _readers(kind: type) -> dict[str, tuple[Callable[[Any], Any], bool]]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        f.name: (
            _reader(hints[f.name]),
            f.default is MISSING and f.default_factory is MISSING,
        )
        for f in fields(kind)
    }


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return the function that reads values of one type, and refuses all others."""
    if is_dataclass(hint):
        return lambda value: build(hint, value)  # type: ignore[arg-type]
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if get_origin(hint) is Literal:
        return _one_of(get_args(hint))
    inner = [_reader(a) for a in get_args(hint) if a not in (type(None), Ellipsis)]
    if get_origin(hint) is tuple:
        return lambda value: tuple(map(inner[0], _bounded(value, list)))
    if get_origin(hint) is Mapping:
        return lambda value: {inner[0](k): inner[1](v) for k, v in _bounded(value, dict).items()}
    return inner[0]  # X | None: a missing value is never read


def _one_of(choices: tuple[Any, ...]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value

    return read


def _bounded(value: Any, kind: type[list[Any] | dict[Any, Any]]) -> Any:
    if not isinstance(value, kind) or len(value) > _MAX_ITEMS:
        raise ValueError(f"no {kind.__name__}, or too long")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not a string")
    return value[:_MAX_CHARACTERS]


def _exact_text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_EXACT or "\0" in value:
        raise TypeError("no text, or too long")
    value.encode()  # an error of it is a ValueError
    return value


def _base64(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("no text")
    return base64.b64decode(value, validate=True)


def _int(value: Any) -> int:
    if type(value) is not int or abs(value) >= 1 << 64:
        raise TypeError(f"{type(value).__name__} is not an integer")
    return value


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError("no finite number")
    return float(value)


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{type(value).__name__} is neither true nor false")
    return value


def _scalar(value: Any) -> Scalar:
    is_scalar = value is None or isinstance(value, bool | int | float)
    return value if is_scalar else str(value)[:_MAX_CHARACTERS]


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError("no SHA-256")
    return value


def _span(value: Any) -> Span:
    start, length = _bounded(value, list)
    return _float(start), _float(length)


def _axis(value: Any) -> int | str:
    return _text(value) if isinstance(value, str) else _int(value)


_SIMPLE: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    int: _int,
    float: _float,
    bool: _bool,
    Scalar: _scalar,
    Digest: _digest,
    Text: _exact_text,
    Base64: _base64,
    Any: lambda value: value,
    Span: _span,
    int | str: _axis,
}
