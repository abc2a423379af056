"""What documents of many commands hold: times, requests to a store, an error."""

from collections.abc import Mapping
from typing import NewType, NotRequired, TypedDict

#: A time as RFC 3339 in UTC.
Time = NewType("Time", str)


class Requests(TypedDict):
    requests: Mapping[str, int]
    requests_total: int
    sent_bytes: int
    received_bytes: int
    retries: int
    throttled: int


class Metered(TypedDict):
    """What ``--requests`` adds, of each command that has the option."""

    remote: NotRequired[Requests]


class ErrorDetails(TypedDict):
    code: str
    message: str
    hint: str | None
    exit_code: int


class ErrorDocument(TypedDict):
    error: ErrorDetails
