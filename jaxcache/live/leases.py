"""Let one process compile what several miss at the same time.

On one machine a lease is a record lock on one byte of ``.jaxcache/live/leases``, at an offset that
the key gives: the system frees it when its owner ends, however it ends. Between machines it is an
object in the last writable tier, created only if it does not exist, with the time until which it
counts. Any user who may write there can make leases, so the waiting time of a process is limited in
total.
"""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ..core.atomic import open_lock
from ..core.system import try_lock
from .files import own_directory_of

_POLL_SECONDS = 0.03
_REMOTE_POLL_SECONDS = 0.5
_DIRECTORY = ".jaxcache/live/leases"
_MAX_BYTES = 1 << 12
#: No compile takes longer; a lease that counts for longer is wrong, by a bad clock or on purpose.
_MAX_SECONDS = 86_400.0


class Leases:
    """The leases of this process on the keys of one directory; a forked child has its own."""

    def __init__(self, root: str, limit_seconds: float, counters: Any) -> None:
        self._root = root
        self._limit = limit_seconds
        self._patience = limit_seconds
        """How long this process may still wait in vain, for all keys together."""
        self._counters = counters
        self._lock = threading.RLock()
        self._fd = -1
        self._held: set[str] = set()
        self._remote: set[str] = set()

    def take_or_wait(
        self, key: str, look: "Callable[[], bytes | None]", tiers: Any
    ) -> "bytes | None":
        """Take the lease of a key, or wait for what its owner compiles.

        Args:
            look: looks for the entry in the local directory.
            tiers: the tiers of the directory, or None.

        Returns:
            The entry of another process; None where this process is to compile.

        Raises:
            OSError: the directory cannot be written.
        """
        started = time.monotonic()
        deadline = started + self._patience
        waited = False
        value = None
        while True:
            if self._try(key):
                value = look()  # its last owner may have written it since this process looked
                if value is None and tiers is not None:
                    value, waited = self._ask_machines(key, tiers, deadline, waited=waited)
                break
            waited = True
            value = look()
            if value is not None or time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        if waited:
            seconds = time.monotonic() - started
            self._counters.add("wait_seconds", seconds)
            if value is None:
                self._patience = max(0.0, self._patience - seconds)
        if value is not None:
            self._counters.count("waited")
            self.release(key, tiers)
        return value

    def release(self, key: str, tiers: Any) -> None:
        """Give the lease of a key back, between machines when its entry is up."""
        with self._lock:
            remote = key in self._remote
            self._remote.discard(key)
            if key in self._held:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _offset(key))
            self._held.discard(key)
        if remote and tiers is not None:
            tiers.uploads.call_after(key, lambda: _delete(tiers.last_writable(), key))

    def _try(self, key: str) -> bool:
        with self._lock:
            if self._fd < 0:
                with own_directory_of(self._root, "live") as directory:
                    self._fd, _ = open_lock(directory, "leases")
            if key in self._held:  # another thread of this process
                return True
            if try_lock(self._fd, _offset(key), 1):
                self._held.add(key)
                return True
            return False

    def _ask_machines(
        self, key: str, tiers: Any, deadline: float, *, waited: bool
    ) -> "tuple[bytes | None, bool]":
        """Take the lease in a tier, or wait for the machine that has it."""
        tier = tiers.last_writable()
        if tier is None or key in self._remote:
            return None, waited
        until = time.time() + self._limit
        text = json.dumps({"owner": f"{socket.gethostname()}:{os.getpid()}", "until": until})
        while True:
            created = tier.attempt(lambda store: store.create(_name(key), text.encode()))
            if created is None:  # no answer: do not wait for a tier that is down
                return None, waited
            if created:
                self._remote.add(key)
                # Its last owner may have finished since this process looked.
                return tiers.lookup(key, fresh=True)[0], waited
            if _has_expired(tier.read(_name(key), fresh=True, limit=_MAX_BYTES)):
                _delete(tier, key)
                continue
            waited = True
            if time.monotonic() > deadline:
                return None, waited
            time.sleep(_REMOTE_POLL_SECONDS)
            value = tiers.lookup(key, fresh=True)[0]
            if value is not None:
                return value, waited


def _delete(tier: Any, key: str) -> None:
    tier.attempt(lambda store: store.delete(_name(key)) or True)


def _name(key: str) -> str:
    return f"{_DIRECTORY}/{key}"


def _offset(key: str) -> int:
    """A byte for a key, from the end of its hash; two keys of one byte only wait in vain."""
    return int(key[-15:], 16)


def _has_expired(data: "bytes | None") -> bool:
    """Return whether a lease has expired or has no plausible date; False if it is not there."""
    try:
        seconds = json.loads(data or b"")["until"] - time.time()
        return not 0 <= seconds <= _MAX_SECONDS
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return data is not None
