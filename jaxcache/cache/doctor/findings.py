"""The findings of ``doctor``."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["problem", "note"]
#: Repairs that ``--fix`` makes by itself: they lose nothing and change no result.
Mend = Literal["write-atime", "drop-permissions"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One trap that is present here."""

    trap: str
    """Kebab-case name; part of the JSON of ``doctor``."""
    severity: Severity
    """A ``problem`` makes ``doctor`` exit with 1; a ``note`` is worth knowing."""
    seen: str
    """The fact that was found."""
    cost: str
    """Its effect on runs."""
    fix: str
    """The command, setting or step that mends it."""
    mend: Mend | None = None
    """The repair that ``--fix`` would make; None where a person must decide."""
    files: tuple[str, ...] = ()
    """The files concerned, as far as it is about files."""

    @property
    def mendable(self) -> bool:
        """Whether ``--fix`` can mend it."""
        return self.mend is not None
