"""The words of one compiler on screens that all layouts share."""

from typing import NamedTuple


class Words(NamedTuple):
    """What screens that all layouts share say of one compiler."""

    compiler: str
    fill: str
    """How to fill its cache."""
    record: str | None
    """How to record its hits; None where they cannot be recorded."""
