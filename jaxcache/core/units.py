"""Sizes and durations as people write them."""

import re
from collections.abc import Mapping
from typing import Any

SIZES = "500MB, 10GiB, or bare bytes"
DURATIONS = "30s, 15m, 12h, 7d or 2w"
_SIZE_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _SIZE_UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power}
    _SIZE_UNITS[f"{_letter}ib"] = 1024**_power
_DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
#: Compiled when there is something to read. More digits would overflow.
_AMOUNT = r"(\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})\s*([A-Za-z]*)"


def read_size_bytes(text: str) -> "int | None":
    """Read a size such as ``10GB`` (10^9), ``10GiB`` (2^30) or ``4096``; None if it is not one."""
    number, unit = _read(text, _SIZE_UNITS)
    if unit is None:
        return None
    return int(float(number) * unit) if "." in number else int(number) * unit


def read_seconds(text: str) -> "float | None":
    """Read a duration such as ``30s``, ``15m`` or ``7d``; None if it is not a duration."""
    number, unit = _read(text, _DURATION_UNITS)
    return None if unit is None else float(number) * unit


def _read(text: str, units: "Mapping[str, int]") -> "tuple[str, Any]":
    match = re.fullmatch(_AMOUNT, text.strip())
    return (match[1], units.get(match[2].lower())) if match else ("", None)
