"""Ask again when it makes sense: exponential backoff that all requests of a store share.

obstore could retry by itself, but it would neither tell nor let the requests be counted.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from jaxcache.errors import JaxcacheError, NoCacheError
from jaxcache.store.ahead import pause
from jaxcache.store.object.failures import understand
from jaxcache.store.object.traffic import Traffic, Verb

_Result = TypeVar("_Result")
#: Without a handler, Python itself prints what is said here on standard error.
_log = logging.getLogger("jaxcache.store")


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits of repeated requests."""

    attempts: int = 8
    """Attempts of one request in all."""
    attempts_at_first: int = 3
    """While nothing has ever been answered: the address may simply be wrong."""
    first_wait_seconds: float = 0.2
    longest_wait_seconds: float = 10.0
    say_again_seconds: float = 10.0
    """Throttling is mentioned this often at the most."""


class Requests:
    """Sends the requests of one store, counts them, and slows all of them down together."""

    def __init__(self, url: str, traffic: Traffic, patience: Patience) -> None:
        self._url, self._traffic, self._patience = url, traffic, patience
        self._lock = threading.Lock()
        self._answered = False
        self._not_before = 0.0
        self._said_at = -1e9

    def send(
        self, verb: Verb | None, name: str, request: Callable[[], _Result], *, sent_bytes: int = 0
    ) -> _Result:
        """Do a request until it is answered.

        Args:
            verb: None for a listing, which counts its pages itself.
            request: does it once; may raise what obstore raises.

        Raises:
            JaxcacheError: what :func:`jaxcache.store.object.failures.understand` makes of the
                last answer.
        """
        attempt = 1
        while True:
            self._wait()
            self._traffic.add(verb, sent_bytes=sent_bytes, retries=attempt > 1)
            try:
                result = request()
            except JaxcacheError:
                raise
            except Exception as error:
                failure = understand(error, url=self._url, verb=verb or "list", name=name)
                self._answered = self._answered or failure.again != "connection"
                if failure.again == "never" or attempt >= self._attempts():
                    raise failure.error from error
                if failure.again == "throttled":
                    self._traffic.add(throttled=1)
                self._hold_back(attempt, throttled=failure.again == "throttled")
            except BaseException as error:
                if type(error).__name__ != "PanicException":  # of Rust, below obstore
                    raise
                raise NoCacheError(
                    f"the client library gave up on {self._url}",
                    code="bad-url",
                    hint="check the URL and the endpoint",
                ) from error
            else:
                self._answered = True
                return result
            attempt += 1

    def _attempts(self) -> int:
        patience = self._patience
        return patience.attempts if self._answered else patience.attempts_at_first

    def _wait(self) -> None:
        while (seconds := self._not_before - time.monotonic()) > 0:
            pause(seconds)

    def _hold_back(self, attempt: int, *, throttled: bool) -> None:
        """Wait longer each time; after throttling nobody sends anything until then."""
        patience = self._patience
        most = min(patience.longest_wait_seconds, patience.first_wait_seconds * 2 ** (attempt - 1))
        seconds = random.uniform(most / 2, most)  # noqa: S311 - to spread requests, not to hide
        if not throttled:
            pause(seconds)
            return
        with self._lock:
            now = time.monotonic()
            self._not_before = max(self._not_before, now + seconds)
            if now - self._said_at < patience.say_again_seconds:
                return
            self._said_at = now
        _log.warning("%s asks to slow down; waiting %.1f s", self._url, seconds)
