"""Entries of tiers that this process has refused, for the end of the program and for ``stats``."""

import threading
import time
from collections import Counter
from collections.abc import Iterator

from ..core.refusals import (
    MAX_RECORD_BYTES,
    RECORD,
    TierRefusal,
    describe_refusal,
    read_record,
    refusal_fix,
    write_record,
)
from .files import own_directory_of, read_file, write_whole


class Refusals:
    """Why entries were refused, by tier and key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[tuple[str, str], str] = {}
        self._replaced: set[tuple[str, str]] = set()
        self._good_tiers: set[str] = set()

    def __contains__(self, tier_and_key: "tuple[str, str]") -> bool:
        return tier_and_key in self._reasons

    def add(self, tier: str, key: str, reason: str) -> None:
        """Note that an entry was refused."""
        with self._lock:
            self._reasons[tier, key] = reason

    def accept(self, tier: str, key: str) -> None:
        """Note that an entry was taken, maybe after it was refused."""
        with self._lock:
            self._reasons.pop((tier, key), None)
            self._good_tiers.add(tier)

    def replace(self, tier: str, key: str) -> None:
        """Note that this process has uploaded a good entry."""
        with self._lock:
            if (tier, key) in self._reasons:
                self._replaced.add((tier, key))

    def lines(self) -> Iterator[str]:
        """Name each tier whose entries were refused, and the command that mends it."""
        everything = self._count(set())
        remaining = self._count(self._replaced)
        for refusal in everything:
            is_mended = all(refusal[:2] != other[:2] for other in remaining)
            mend = "replaced there by this program" if is_mended else refusal_fix(refusal)
            yield f"live: refused {describe_refusal(refusal)}; {mend}"

    def save(self, root: str) -> None:
        """Keep what is still to be mended, for ``stats`` and ``doctor``.

        Raises:
            OSError: the directory cannot be written.
        """
        tiers = self._good_tiers | {tier for tier, _ in self._reasons}
        if not tiers:
            return
        directory, name = RECORD.split("/")
        with own_directory_of(root, directory) as opened:
            before = read_record(read_file(name, MAX_RECORD_BYTES, directory=opened) or b"")
            others = tuple(refusal for refusal in before if refusal.tier not in tiers)
            after = (*others, *self._count(self._replaced))
            if {r[:3] for r in before} != {r[:3] for r in after}:
                write_whole(opened, name, write_record(after))

    def _count(self, without: "set[tuple[str, str]]") -> "list[TierRefusal]":
        with self._lock:
            numbers = Counter(
                (tier, reason)
                for (tier, key), reason in self._reasons.items()
                if (tier, key) not in without
            )
        at_ns = time.time_ns()
        return [TierRefusal(*place, number, at_ns) for place, number in sorted(numbers.items())]
