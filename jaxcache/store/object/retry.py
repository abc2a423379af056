"""Count requests, and ask again when it makes sense: backoff that all requests of a store share.

obstore could retry by itself, but it would neither report retries nor let them be counted.

obstore gives few kinds of exceptions and puts the rest into their text (its ``exceptions`` module,
0.11 and 0.12), so the text is read here and nowhere else.
"""

import logging
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from jaxcache.core.remote import SERVICES
from jaxcache.errors import JaxcacheError, NoCacheError
from jaxcache.store.base import BadNameError, ChangedError, ExistsError, MissingError, StoreError
from jaxcache.store.concurrency import pause

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


class OutOfRangeError(StoreError):
    """A ranged read began after the last byte."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "ends before that", code="out-of-range")


class UnansweredError(NoCacheError):
    """A request that may be answered when it is sent again.

    Args:
        again: why: the network is bad, the server is, or it asks to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        again: Literal["connection", "server", "throttled"],
        code: str = "unavailable",
        hint: str = "try again later; completed transfers are kept",
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.again = again


_STATUS = re.compile(r"status code: (\d{3})")
#: In its element, because messages hold names of objects, too.
_NO_BUCKET = re.compile(
    r"<Code>(NoSuchBucket|ContainerNotFound)</|specified (bucket|container) does not exist"
)
#: In errors of clients without valid credentials; without any, they look in the cloud's network.
_NO_CREDENTIALS = re.compile(
    r"169\.254\.\d+\.\d+|metadata\.google\.internal|Missing\w*(AccessKey|SecretAccessKey|Account)"
    r"|Missing (AccessKeyId|SecretAccessKey)|Account must be specified|token request"
    r"|credentials? (provider|not found)|ExpiredToken|InvalidAccessKeyId|SignatureDoesNotMatch"
)
_NETWORK = re.compile(
    r"error sending request|error decoding response|connection|timed? ?out|dns error|broken pipe"
    r"|HTTP error|unexpected (EOF|end)|IncompleteBody|body from connection",
    re.IGNORECASE,
)
_BAD_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_THROTTLED = re.compile(r"SlowDown|TooManyRequests|ThrottlingException|ServerBusy")
_OUT_OF_RANGE = re.compile(r"InvalidRange|Invalid range|StartTooLarge")
_READING = frozenset({"list", "head", "get"})

CREDENTIAL_HINTS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE with boto3 installed); "
    "AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or: gcloud auth application-default login",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or a SAS token)",
}


def find_meaning(error: Exception, *, url: str, verb: str, name: str) -> JaxcacheError:
    """The meaning of an exception of obstore; an :class:`UnansweredError` is worth another try.

    Args:
        url: the store, as people write it.
        verb: of the request.
        name: of the object; empty for a listing.
    """
    text = str(error)
    kind = type(error).__name__
    status = int(match[1]) if (match := _STATUS.search(text)) else None
    if _NO_BUCKET.search(text):
        return NoCacheError(
            f"bucket not found: {url}",
            code="no-bucket",
            hint="check its name and the region, or make it with your provider's own tool",
        )
    if kind == "FileNotFoundError" or kind == "NotFoundError" or status == 404:
        return MissingError(name) if name else NoCacheError(f"nothing found at {url}")
    if kind == "AlreadyExistsError":
        return ExistsError(name)
    if kind == "PreconditionError" or status == 412:
        return ChangedError(name)
    if status == 416 or _OUT_OF_RANGE.search(text):
        return OutOfRangeError(name)
    if kind in ("InvalidPathError", "ValueError", "UnicodeEncodeError"):
        if name:
            return BadNameError(name)
        return NoCacheError(
            f"{url} holds an object of an unusable name: {first_line(text)}",
            code="bad-name",
            hint="remove it with your provider's own tool: no listing gets past it",
        )
    if kind in ("NotSupportedError", "NotImplementedError") or status in (405, 501):
        if verb == "list" and not name:
            return NoCacheError(
                f"{url} does not list its files",
                code="no-listing",
                hint="the server must speak WebDAV; a bundle there is read by its own URL",
            )
        if "Range request" in text:
            return StoreError(name, "its server sends no parts", code="no-ranges")
        return StoreError(name or url, "not supported by this store", code="not-supported")
    if _NO_CREDENTIALS.search(text) or kind == "UnauthenticatedError" or status == 401:
        hint = CREDENTIAL_HINTS.get(SERVICES[url.partition("://")[0]])
        return NoCacheError(f"no credentials that {url} accepts", code="no-credentials", hint=hint)
    if kind == "PermissionDeniedError" or status == 403:
        return _denied(url, verb)
    if status == 429 or status == 503 or _THROTTLED.search(text):
        message = f"{url} asks to slow down ({status or 503})"
        return UnansweredError(message, again="throttled")
    if status is not None and (status >= 500 or status == 408):
        return UnansweredError(f"{url} answers with error {status}", again="server")
    if status in (301, 307, 400) and verb == "list":
        return NoCacheError(
            f"{url} is not served like this: {first_line(text)}",
            code="bad-request",
            hint="check region and endpoint (AWS_REGION, AWS_ENDPOINT_URL)",
        )
    if certificate := _BAD_CERTIFICATE.search(text):
        return NoCacheError(
            f"cannot reach {url}: its certificate is not trusted ({certificate[1]})",
            code="no-network",
            hint="AWS_CA_BUNDLE names the certificates of a private authority (docs/remote.md)",
        )
    if status is None and _NETWORK.search(text):
        return UnansweredError(
            f"cannot reach {url}: {first_line(text)}",
            again="connection",
            code="no-network",
            hint="check the network, a proxy, and the endpoint; one without TLS (http://) needs "
            "AWS_ALLOW_HTTP=true",
        )
    return StoreError(name or url, first_line(text))


def first_line(text: str) -> str:
    """The readable part of an obstore message: no debug dump, no body."""
    line = text.partition("\n")[0]
    line = re.sub(r"Error performing (\w+) \S+ in \S+ - ", "", line)
    line = re.sub(r": <(\?xml|html|Error).*", "", line)
    return line.removeprefix("Generic ").strip()[:200]


def _denied(url: str, verb: str) -> JaxcacheError:
    if verb in _READING:
        return NoCacheError(
            f"no permission to read {url}",
            code="permission-denied",
            hint="docs/remote.md lists the permissions that reading needs",
        )
    return NoCacheError(
        f"{url} cannot be written",
        code="read-only",
        hint="docs/remote.md lists the permissions that writing needs",
    )


_Result = TypeVar("_Result")
#: Without a handler, Python itself prints these messages on standard error.
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
            JaxcacheError: what :func:`jaxcache.store.object.retry.find_meaning` makes of the
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
        """Wait longer each time; after throttling, all requests of the store wait until then."""
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
