"""Labels of entries compiled for a GPU that was not there, as long as the file is the same.

``warm --target`` notes in the ledger how it made an entry. When the real host makes the entry anew,
JAX says nothing to the ledger; but then the file is another one.
"""

from typing import Protocol

UNTUNED = "untuned"


class TuningRecord(Protocol):
    """The ledger's record of how an entry was made."""

    @property
    def tuning(self) -> str | None:
        """``tuned``, ``untuned``, or None for an entry that was not made for a target."""

    @property
    def tuning_mtime_ns(self) -> int | None:
        """The mtime of the file that was written then."""

    @property
    def tuning_size_bytes(self) -> int | None:
        """Its size."""


def tuning_of(record: TuningRecord | None, mtime_ns: int, size_bytes: int) -> str | None:
    """Return the ledger's label of a file, if it is still the one that was written then.

    A copy may have another time and a sealed file another size, but neither has both.
    """
    if record is None or record.tuning is None:
        return None
    same = mtime_ns == record.tuning_mtime_ns or size_bytes == record.tuning_size_bytes
    return record.tuning if same else None
