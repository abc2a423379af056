"""Points in time as people name them."""

import os
from datetime import UTC, datetime

from jaxcache.errors import UsageError
from jaxcache.units import NS_PER_SECOND, parse_duration_seconds


def read_moment(text: str, now_ns: int) -> int:
    """Read a time: a duration before now, RFC 3339 (UTC unless it says otherwise), or a file.

    Raises:
        UsageError: ``bad-time``.
    """
    try:
        return now_ns - int(parse_duration_seconds(text) * NS_PER_SECOND)
    except UsageError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return os.stat(text).st_mtime_ns
        except OSError as error:
            raise UsageError(
                f"{text!r} is neither a time nor a file",
                code="bad-time",
                hint="write 2h, 2026-01-31T12:00:00Z, or the path of a marker file",
            ) from error
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(aware.timestamp()) * NS_PER_SECOND + aware.microsecond * 1000
