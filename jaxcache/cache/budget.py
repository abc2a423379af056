"""Bound what several workers hold in memory at once."""

import contextlib
import threading
from collections.abc import Iterator


class ByteBudget:
    """Lets workers take bytes until none are left; one that wants more than there is goes alone.

    Args:
        total_bytes: what all of them together may hold.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total = self._left = total_bytes
        self._freed = threading.Condition()

    @contextlib.contextmanager
    def take(self, wanted_bytes: int) -> Iterator[None]:
        """Hold bytes for a while, waiting until they are there."""
        wanted = min(wanted_bytes, self._total)
        with self._freed:
            self._freed.wait_for(lambda: self._left >= wanted)
            self._left -= wanted
        try:
            yield
        finally:
            with self._freed:
                self._left += wanted
                self._freed.notify_all()
