"""JSON from outside as dataclasses: every value has the type of its field, and is bounded."""

import base64
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from jaxcache.core.ledger import read_seconds
from jaxcache.core.signing import count_values

T = TypeVar("T")
_Reader = Callable[[Any], Any]
_MAX_CHARACTERS = 1 << 16
_MAX_EXACT = 256 << 10
_ITEMS = range((1 << 16) + 1)
_INTEGERS = range(1 - (1 << 63), 1 << 63)
_SAME_NAMES: Mapping[str, str] = MappingProxyType({})


class FieldError(ValueError):
    """A value of a document has another type than its field, or is out of bounds.

    Args:
        rule: what the value must be.
        path: the names of its field and of the fields around it, the innermost first.
    """

    def __init__(self, rule: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"{' of '.join(path)} is invalid: {rule}" if path else rule)
        self.rule = rule
        self.path = path


def parse_json(
    data: bytes | bytearray, error: Callable[[str], Exception], *, max_values: int
) -> Any:
    """Parse JSON of at most so many values.

    Args:
        error: makes the exception of a message, which is raised.
    """
    if count_values(data) > max_values:
        raise error("its manifest holds more values than any")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as cause:
        raise error("its manifest is not JSON") from cause


def build(kind: type[T], document: object, names: Mapping[str, str] = _SAME_NAMES) -> T:
    """Make a dataclass of a JSON object; fields of the object that it lacks are ignored.

    A field of the dataclass with a default, or that may be None, may be missing or null.

    Args:
        names: the names in the object of fields that have another name there.

    Raises:
        FieldError: a value is missing, of another type, or out of bounds.
    """
    if not isinstance(document, dict):
        raise FieldError("it must be an object")
    values = {}
    for field, (reader, has_default) in _readers(kind).items():  # type: ignore[arg-type]
        name = names.get(field, field)
        value = document.get(name)
        if value is not None or not has_default:
            try:
                values[field] = reader(value)
            except FieldError as error:
                raise FieldError(error.rule, (*error.path, name)) from error
            except (TypeError, ValueError, OverflowError) as error:
                rule = "it is missing" if value is None else str(error)
                raise FieldError(rule, (name,)) from error
    return kind(**values)


def read_fields(kind: type, document: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return some fields of a dataclass from a JSON object, without those that are invalid."""
    readers = _readers(kind)
    values = {}
    for name, value in document.items():
        if name in names and value is not None:
            try:
                values[name] = readers[name][0](value)
            except (TypeError, ValueError, OverflowError):
                continue
    return values


@cache
def _readers(kind: type) -> dict[str, tuple[_Reader, bool]]:
    """Return the reader of each field, and whether the field has a default."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        f.name: (
            _reader(hints[f.name]),
            f.default is not MISSING or f.default_factory is not MISSING,
        )
        for f in fields(kind)
    }


def _reader(hint: Any, within: range | None = None) -> _Reader:
    """Return the function that reads values of one type, and refuses all others.

    Args:
        within: the bounds of a number, or of the length of a list or mapping.
    """
    kind = get_origin(hint)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if kind is Annotated:
        annotation = hint.__metadata__[0]
        is_range = isinstance(annotation, range)
        return _reader(hint.__origin__, annotation) if is_range else annotation
    if hint is int:
        bounds = within or _INTEGERS
        return lambda value: _integer(value, bounds)
    if is_dataclass(hint):
        return lambda value: build(hint, value)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        read_row = _row_reader([_reader(h) for h in get_type_hints(hint).values()])
        return lambda value: hint(*read_row(value))
    if kind is Literal:
        return _one_of(get_args(hint))
    if kind is tuple and Ellipsis not in get_args(hint):
        return _row_reader([_reader(h) for h in get_args(hint)])
    if kind in (tuple, frozenset):
        item = _reader(get_args(hint)[0])
        return lambda value: kind(map(item, _bounded(value, list, within or _ITEMS)))
    if kind is Mapping:
        key, item = map(_reader, get_args(hint))
        return lambda value: {
            key(k): item(v) for k, v in _bounded(value, dict, within or _ITEMS).items()
        }
    return _choice(get_args(hint))


def _row_reader(readers: Collection[_Reader]) -> _Reader:
    """Return the reader of a list with one value for each reader."""
    length = range(len(readers), len(readers) + 1)
    return lambda value: tuple(
        reader(item) for reader, item in zip(readers, _bounded(value, list, length), strict=True)
    )


def _choice(kinds: Collection[Any]) -> _Reader:
    """Return the reader of a union: of several types, or of one and None."""
    readers = {kind: _reader(kind) for kind in kinds if kind is not NoneType}
    if len(readers) > 1:
        return lambda value: readers.get(type(value), _refuse)(value)
    (reader,) = readers.values()
    return lambda value: None if value is None else reader(value)


def _refuse(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is not one of its types")


def _one_of(choices: tuple[Any, ...]) -> _Reader:
    def read(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(map(str, choices))}")
        return value

    return read


def _bounded(value: Any, kind: type[list[Any] | dict[Any, Any]], length: range) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} is not a {kind.__name__}")
    if len(value) not in length:
        raise ValueError(f"must have {length[0]} to {length[-1]} items (got {len(value)})")
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not a string")
    return value


def _cut_text(value: Any) -> str:
    return _string(value)[:_MAX_CHARACTERS]


def _exact_text(value: Any) -> str:
    if len(_string(value).encode()) > _MAX_EXACT:
        raise ValueError(f"must have at most {_MAX_EXACT} bytes")
    return value  # type: ignore[no-any-return]


def _base64(value: Any) -> bytes:
    return base64.b64decode(_string(value), validate=True)


def _integer(value: Any, within: range) -> int:
    if type(value) is not int:
        raise TypeError(f"{type(value).__name__} is not an integer")
    if value not in within:
        raise ValueError(f"must be {within[0]} to {within[-1]} (got {value})")
    return value


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError("must be a finite number")
    return float(value)


def _seconds(value: Any) -> float:
    seconds = read_seconds(value)
    if seconds is None:
        raise ValueError("must be a number of seconds")
    return seconds


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{type(value).__name__} is neither true nor false")
    return value


def _scalar(value: Any) -> "Scalar":
    is_scalar = value is None or isinstance(value, bool | int | float)
    return value if is_scalar else str(value)[:_MAX_CHARACTERS]


def _digest(value: Any) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", _string(value)):
        raise ValueError("must be 64 lower-case hexadecimal digits")
    return value  # type: ignore[no-any-return]


Scalar = str | int | float | bool | None
Digest = Annotated[str, _digest]
Text = Annotated[str, _exact_text]
"""A text that is refused, not cut, if it is too long or no UTF-8."""
Base64 = Annotated[bytes, _base64]
Seconds = Annotated[float, _seconds]
Flag = Annotated[bool, lambda value: value is not None and _bool(value)]
"""False if it is missing."""
Many = Annotated[tuple[T, ...], range(1 << 63)]
ManyNamed = Annotated[Mapping[str, T], range(1 << 63)]
"""As many items as :func:`parse_json` has passed."""

_SIMPLE: dict[Any, _Reader] = {
    str: _cut_text,
    float: _float,
    bool: _bool,
    Scalar: _scalar,
    Any: lambda value: value,
}
