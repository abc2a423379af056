"""The meaning of an object store's answer: about one object, the whole place, or for a while.

obstore gives few kinds of exceptions and puts the rest into their text (its ``exceptions`` module,
0.11 and 0.12), so the text is read here and nowhere else.
"""

import re
from typing import Literal

from jaxcache.core.remote import SERVICES
from jaxcache.errors import JaxcacheError, NoCacheError
from jaxcache.store.base import BadNameError, ChangedError, ExistsError, MissingError, StoreError


class OutOfRangeError(StoreError):
    """A ranged read began behind the last byte."""

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
#: Where clients look for credentials when nobody gave them any.
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
    return JaxcacheError(
        f"{url} cannot be written",
        code="read-only",
        hint="docs/remote.md lists the permissions that writing needs",
    )
