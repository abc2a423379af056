"""From a URL to a store: which service, which credentials, which limits.

Credentials and endpoints come from the environment variables that each provider's own tools use;
docs/remote.md lists them.
"""

import contextlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from jaxcache.core.remote import (
    SERVICES,
    RemoteError,
    check_endpoints,
    connection,
    has_credentials,
    split_url,
)
from jaxcache.errors import NoCacheError, UsageError
from jaxcache.store.object.retry import CREDENTIAL_HINTS, find_meaning, first_line
from jaxcache.store.object.store import ObjectStore
from jaxcache.units import format_install

if TYPE_CHECKING:
    from urllib.parse import SplitResult

#: A stalled connection is given up after the first; a slow transfer of a large entry after the
#: second.
_CLIENT = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=60),
    "timeout": timedelta(minutes=15),
}
#: Memory stores of this process, by the name in their URL.
_MEMORY: dict[str, Any] = {}


def open_object_store(url: str) -> ObjectStore:
    """Open the store at a URL. No request is sent: what is wrong there shows at the first one.

    Raises:
        UsageError: the URL is malformed, or holds credentials; ``no-obstore`` without the extra.
        NoCacheError: ``no-credentials`` where the configuration of the environment is unusable.
    """
    parts = check_url(url)
    service = SERVICES[parts.scheme]
    with _as_usage_errors():
        options = connection(service, _CLIENT)
    shown = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    obstore = _import_obstore()
    if service == "memory":
        client = _MEMORY.setdefault(shown, obstore.store.MemoryStore())
    else:
        client = _connect(obstore, url, shown, service, options)
    can_skip = service in ("s3", "gs")
    return ObjectStore(client, shown, can_skip=can_skip, writable=service != "http")


def check_url(url: str) -> "SplitResult":
    """Split the URL of a store that a program can open with the environment as it is.

    Raises:
        UsageError: ``bad-url``.
    """
    with _as_usage_errors():
        parts = split_url(url)
        if SERVICES[parts.scheme] != "memory":
            check_endpoints()
        return parts


@contextlib.contextmanager
def _as_usage_errors() -> Iterator[None]:
    try:
        yield
    except RemoteError as error:
        raise UsageError(str(error), code="bad-url", hint=error.hint) from error


def _import_obstore() -> Any:
    try:
        import obstore.store
    except ImportError as error:
        raise UsageError(
            "buckets need jaxcache[remote]", code="no-obstore", hint=format_install("remote")
        ) from error
    return obstore


def _connect(obstore: Any, url: str, shown: str, service: str, options: Mapping[str, Any]) -> Any:
    if "credential_provider" not in options and not has_credentials(service):
        raise NoCacheError(
            f"no credentials for {shown}",
            code="no-credentials",
            hint=f"{CREDENTIAL_HINTS[service]}; JAXCACHE_INSTANCE_CREDENTIALS=true for those that "
            "a cloud gives its machines",
        )
    try:
        return obstore.store.from_url(url, **options)
    except Exception as error:
        failure = find_meaning(error, url=shown, verb="list", name="")
        if failure.code in ("no-credentials", "no-bucket"):
            raise failure from error
        raise UsageError(
            f"cannot open {shown}: {first_line(str(error))}", code="bad-url"
        ) from error
