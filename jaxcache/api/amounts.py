"""Sizes and durations as callers may write them."""

from jaxcache.units import parse_duration_seconds, parse_size_bytes

Size = int | str
Duration = float | str


def size_bytes(size: Size | None) -> int | None:
    """Bytes of ``"10GB"`` or of a number of them.

    Raises:
        UsageError: ``bad-size``.
    """
    return parse_size_bytes(size) if isinstance(size, str) else size


def seconds(duration: Duration | None) -> float | None:
    """Seconds of ``"30d"`` or of a number of them.

    Raises:
        UsageError: ``bad-duration``.
    """
    return parse_duration_seconds(duration) if isinstance(duration, str) else duration
