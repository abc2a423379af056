"""JSON from a stranger, read field by field: what is not as expected ends the reading."""

import re
from collections.abc import Mapping
from typing import Any

from jaxcache.errors import JaxcacheError

_SHA256 = re.compile(r"[0-9a-f]{64}")
_HINT = "get the file again, or make it again with: jaxcache export"


class BundleError(JaxcacheError):
    """The file is no bundle, or a damaged or hostile one. Nothing was written."""

    def __init__(self, message: str, *, hint: str | None = _HINT, code: str = "bad-bundle") -> None:
        super().__init__(message, code=code, hint=hint)


class Fields:
    """One JSON object, read field by field."""

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise BundleError(f"{what} in its manifest is no object")
        self.values: Mapping[str, Any] = value
        self._what = what

    def any(self, name: str) -> Any:
        """A value that must be there."""
        if name not in self.values:
            raise BundleError(f"{self._what} in its manifest lacks {name}")
        return self.values[name]

    def _wrong(self, name: str) -> BundleError:
        return BundleError(f"{name} of {self._what} in its manifest makes no sense")

    def whole(self, name: str, below: int) -> int:
        """A whole number from 0 up to, and without, ``below``."""
        value = self.any(name)
        if type(value) is not int or not 0 <= value < below:
            raise self._wrong(name)
        return value

    def text(self, name: str, *, optional: bool = False) -> str | None:
        """A text that can be written as UTF-8."""
        value = self.values.get(name) if optional else self.any(name)
        if value is None and optional:
            return None
        if not isinstance(value, str):
            raise self._wrong(name)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self._wrong(name) from error
        return value

    def digest(self, name: str) -> str:
        """64 hexadecimal digits."""
        value = self.any(name)
        if not isinstance(value, str) or not _SHA256.fullmatch(value):
            raise self._wrong(name)
        return value

    def flag(self, name: str) -> bool:
        """True or false; false if it is not there."""
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name)
        return value

    def items_of(self, name: str) -> list[Any]:
        """A list."""
        value = self.any(name)
        if not isinstance(value, list):
            raise self._wrong(name)
        return value
