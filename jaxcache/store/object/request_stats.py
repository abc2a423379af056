"""The cost of talking to object stores: requests by kind, and bytes."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

#: A request as providers bill them; a ``list`` is one page.
Verb = Literal["list", "head", "get", "put", "delete"]


@dataclass(slots=True)
class RequestStats:
    """Counts from any thread. Every attempt counts, those that failed too."""

    requests: Counter[Verb] = field(default_factory=Counter)
    sent_bytes: int = 0
    """Size of objects sent, without headers."""
    received_bytes: int = 0
    """Size of objects received, without headers and listings."""
    retries: int = 0
    """Attempts beyond the first."""
    throttled: int = 0
    """Answers that asked to slow down (429, 503)."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(
        self,
        verb: Verb | None = None,
        *,
        sent_bytes: int = 0,
        received_bytes: int = 0,
        retries: int = 0,
        throttled: int = 0,
    ) -> None:
        """Count a request, or what came of it."""
        with self._lock:
            if verb is not None:
                self.requests[verb] += 1
            self.sent_bytes += sent_bytes
            self.received_bytes += received_bytes
            self.retries += retries
            self.throttled += throttled


#: Of this process, over all stores.
TRAFFIC = RequestStats()
