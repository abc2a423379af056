"""Ask again when it makes sense: exponential backoff that all requests of a store share.

obstore could retry by itself, but it would neither tell nor let the requests be counted.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from jaxcache.errors import JaxcacheError, NoCacheError
from jaxcache.store.base import StoreError
from jaxcache.store.concurrency import pause
from jaxcache.store.object.failures import UnansweredError, find_meaning
from jaxcache.store.object.request_stats import TRAFFIC, Verb

_Result = TypeVar("_Result")
#: Without a handler, Python itself prints what is said here on standard error.
_log = logging.getLogger("jaxcache.store")


#: Attempts of one request in all; fewer while nothing has ever been answered, because the address
#: may simply be wrong.
_ATTEMPTS = 8
_ATTEMPTS_AT_FIRST = 3
_FIRST_WAIT_SECONDS = 0.2
_LONGEST_WAIT_SECONDS = 10.0
#: A request that took so long, with its repetitions, is not repeated: a server that sends one byte
#: after another must not keep a command for hours.
_REPEAT_SECONDS = 900.0
#: An object of which fewer bytes arrive in a minute is given up. 32 of them share a slow network.
SPEED_SECONDS = 60.0
SLOWEST_BYTES = 6_000
#: A store with so many slow objects is given up: together they take minutes, not hours.
SLOW_OBJECTS = 8
#: Throttling is mentioned this often at the most.
_SAY_AGAIN_SECONDS = 10.0


class Requests:
    """Sends the requests of one store, counts them, and slows all of them down together."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._answered = False
        self._not_before = 0.0
        self._said_at = -1e9
        self._slow_objects = 0

    def send(
        self, verb: Verb | None, name: str, request: Callable[[], _Result], *, sent_bytes: int = 0
    ) -> _Result:
        """Do a request until it is answered.

        Args:
            verb: None for a listing, which counts its pages itself.
            request: does it once; may raise what obstore raises.

        Raises:
            JaxcacheError: what :func:`jaxcache.store.object.failures.find_meaning` makes of the
                last answer.
        """
        attempt = 1
        last_at = time.monotonic() + _REPEAT_SECONDS
        while True:
            self._wait()
            TRAFFIC.add(verb, sent_bytes=sent_bytes, retries=attempt > 1)
            try:
                result = request()
            except JaxcacheError:
                raise
            except Exception as error:
                failure = find_meaning(error, url=self._url, verb=verb or "list", name=name)
                again = failure.again if isinstance(failure, UnansweredError) else None
                self._answered = self._answered or again != "connection"
                most = _ATTEMPTS if self._answered else _ATTEMPTS_AT_FIRST
                if again == "connection" and name and time.monotonic() > last_at:
                    raise self._too_slow(name, f"took over {_REPEAT_SECONDS:.0f} s") from error
                if again is None or attempt >= most or time.monotonic() > last_at:
                    raise failure from error
                if again == "throttled":
                    TRAFFIC.add(throttled=1)
                self._hold_back(attempt, throttled=again == "throttled")
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

    def receive(self, name: str, answer: Any) -> Iterator[Any]:
        """Yield the parts of an object's bytes as they arrive.

        Raises:
            StoreError: ``too-slow``; NoCacheError where other objects were before it.
        """
        received_bytes = 0
        seconds = 0.0
        asked_at = time.monotonic()
        for part in answer.stream(min_chunk_size=1):
            received_bytes += len(part)
            # A process that was stopped meanwhile has not waited for the server.
            seconds += min(time.monotonic() - asked_at, _LONGEST_WAIT_SECONDS)
            yield part
            if seconds > SPEED_SECONDS:
                if received_bytes < SLOWEST_BYTES:
                    raise self._too_slow(
                        name,
                        f"arrives too slowly: {received_bytes:,} bytes in {seconds:.0f} s, "
                        f"expected at least {SLOWEST_BYTES:,}",
                    )
                received_bytes = 0
                seconds = 0.0
            asked_at = time.monotonic()

    def _too_slow(self, name: str, reason: str) -> JaxcacheError:
        """Return the failure of one object; of the store where it is not the first."""
        with self._lock:
            self._slow_objects += 1
        if self._slow_objects < SLOW_OBJECTS:
            return StoreError(name, reason, code="too-slow")
        return NoCacheError(
            f"{self._slow_objects} objects of {self._url} were too slow; the last one {reason}",
            code="too-slow",
            hint="check the network and the server; run the same command again to resume",
        )

    def _wait(self) -> None:
        while (seconds := self._not_before - time.monotonic()) > 0:
            pause(seconds)

    def _hold_back(self, attempt: int, *, throttled: bool) -> None:
        """Wait longer each time; after throttling nobody sends anything until then."""
        most = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2 ** (attempt - 1))
        seconds = random.uniform(most / 2, most)  # noqa: S311 - to spread requests, not to hide
        if not throttled:
            pause(seconds)
            return
        with self._lock:
            now = time.monotonic()
            self._not_before = max(self._not_before, now + seconds)
            if now - self._said_at < _SAY_AGAIN_SECONDS:
                return
            self._said_at = now
        _log.warning("%s asks to slow down; waiting %.1f s", self._url, seconds)
