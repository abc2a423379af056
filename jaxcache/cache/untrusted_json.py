"""JSON from a stranger, read field by field: what is not as expected ends the reading."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxcache.core.signing import count_values

_SHA256 = re.compile(r"[0-9a-f]{64}")


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


class Fields:
    """One JSON object, read field by field.

    Args:
        what: names the object in messages.
        error: makes the exception of a message, which every method raises.
    """

    def __init__(self, value: object, what: str, error: Callable[[str], Exception]) -> None:
        if not isinstance(value, dict):
            raise error(f"{what} of the manifest must be an object")
        self.values: Mapping[str, Any] = value
        self._what = what
        self._error = error

    def any(self, name: str) -> Any:
        """A value that must be there."""
        if name not in self.values:
            raise self.wrong(name, missing=True)
        return self.values[name]

    def wrong(self, name: str, *, missing: bool = False) -> Exception:
        """Make the exception for a value that is missing or nonsense."""
        if missing:
            return self._error(f"{self._what} in its manifest lacks {name}")
        return self._error(f"{name} of {self._what} in its manifest is invalid")

    def whole(self, name: str, below: int) -> int:
        """A whole number from 0 up to, and without, ``below``."""
        value = self.any(name)
        if type(value) is not int or not 0 <= value < below:
            raise self.wrong(name)
        return value

    def seconds(self, name: str) -> float | None:
        """A finite number of seconds, not negative; None if it is not there."""
        value = self.values.get(name)
        if value is None:
            return None
        if type(value) not in (int, float) or not 0 <= value < 1 << 31:
            raise self.wrong(name)
        return float(value)

    def text(self, name: str, *, optional: bool = False) -> str | None:
        """A text that can be written as UTF-8."""
        value = self.values.get(name) if optional else self.any(name)
        if value is None and optional:
            return None
        return self._text(name, value)

    def _text(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise self.wrong(name)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.wrong(name) from error
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty if it is not there."""
        values = self.values.get(name, [])
        if not isinstance(values, list):
            raise self.wrong(name)
        return tuple(self._text(name, v) for v in values)

    def wholes(self, name: str, below: int) -> tuple[int, ...]:
        """A list of whole numbers from 0 up to, and without, ``below``."""
        values = self.items_of(name)
        if not all(type(v) is int and 0 <= v < below for v in values):
            raise self.wrong(name)
        return tuple(values)

    def digest(self, name: str) -> str:
        """64 hexadecimal digits."""
        value = self.any(name)
        if not isinstance(value, str) or not _SHA256.fullmatch(value):
            raise self.wrong(name)
        return value

    def flag(self, name: str) -> bool:
        """True or false; false if it is not there."""
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise self.wrong(name)
        return value

    def items_of(self, name: str) -> list[Any]:
        """A list."""
        value = self.any(name)
        if not isinstance(value, list):
            raise self.wrong(name)
        return value
