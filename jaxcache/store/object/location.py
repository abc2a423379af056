"""From a URL to a store: which service, which credentials, which limits.

Credentials and endpoints come from the environment variables that each provider's own tools use;
docs/remote.md lists them.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import SplitResult, urlsplit

from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.store.object.failures import first_line
from jaxcache.store.object.listing import Listing
from jaxcache.store.object.store import ObjectStore

#: Every scheme, under the name that error messages and documents use for its service.
SCHEMES: Mapping[str, str] = {
    "s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "azure": "az", "abfs": "az", "abfss": "az",
    "http": "http", "https": "http", "memory": "memory",
}  # fmt: skip

#: Names per answer when listing, and whether they come in order and can start anywhere.
_LISTINGS = {
    "s3": Listing(page=1000, can_skip=True),
    "gs": Listing(page=1000, can_skip=True),
    "az": Listing(page=5000, can_skip=False),
    "http": Listing(page=5000, can_skip=False),
    "memory": Listing(page=5000, can_skip=False),
}
#: A stalled connection is given up after the first; a slow transfer of a large entry after the
#: second.
_CLIENT = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=60),
    "timeout": timedelta(minutes=15),
}
#: Variables that allow a server without TLS: emulators, servers in one's own rack.
_PLAIN_HTTP = {
    "s3": ("AWS_ALLOW_HTTP",),
    "gs": ("GOOGLE_ALLOW_HTTP",),
    "az": ("AZURE_ALLOW_HTTP", "AZURE_STORAGE_USE_EMULATOR"),
    "http": (),
}
_TRUE = frozenset({"1", "true", "yes", "on"})
#: Memory stores of this process, by the name in their URL.
_MEMORY: dict[str, Any] = {}


def open_object_store(url: str) -> ObjectStore:
    """Open the store at a URL. No request is sent: what is wrong there shows at the first one.

    Raises:
        UsageError: the URL is malformed, or holds credentials.
        JaxcacheError: ``no-obstore`` where the extra is not installed.
        NoCacheError: ``no-credentials`` where the configuration of the environment is unusable.
    """
    parts = _split(url)
    service = SCHEMES[parts.scheme]
    shown = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    obstore = _import_obstore()
    if service == "memory":
        client = _MEMORY.setdefault(shown, obstore.store.MemoryStore())
    else:
        client = _connect(obstore, url, shown, service)
    return ObjectStore(client, shown, listing=_LISTINGS[service], writable=service != "http")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        userinfo = parts.username or parts.password
    except ValueError as error:
        raise UsageError(f"cannot read the URL: {error}", code="bad-url") from error
    if userinfo or parts.query:
        raise UsageError(
            "credentials do not belong into a URL, where everybody sees them", code="bad-url",
            hint="set the provider's environment variables; docs/remote.md lists them",
        )  # fmt: skip
    if parts.fragment:
        raise UsageError(f"{url} has a # in it", code="bad-url", hint="write %23 for it")
    if not parts.netloc:
        what = {"http": "host", "az": "container"}.get(SCHEMES[parts.scheme], "bucket")
        raise UsageError(
            f"{url} names no {what}", code="bad-url",
            hint=f"write {parts.scheme}://{what.upper()}/FOLDER",
        )  # fmt: skip
    return parts


def _import_obstore() -> Any:
    try:
        import obstore.store
    except ImportError as error:
        raise JaxcacheError(
            "object stores take the package obstore",
            code="no-obstore",
            hint="pip install 'jaxcache[remote]'",
        ) from error
    return obstore


def _connect(obstore: Any, url: str, shown: str, service: str) -> Any:
    from jaxcache.store.object.failures import understand

    options: dict[str, Any] = dict(_CLIENT)
    if service == "http" or any(map(_is_set, _PLAIN_HTTP[service])):
        options["allow_http"] = True
    given: dict[str, Any] = {"client_options": options, "retry_config": {"max_retries": 0}}
    if service == "s3":
        given |= _aws()
    try:
        return obstore.store.from_url(url, **given)
    except Exception as error:
        failure = understand(error, url=shown, verb="list", name="").error
        if failure.code in ("no-credentials", "no-bucket"):
            raise failure from error
        raise UsageError(
            f"cannot open {shown}: {first_line(str(error))}", code="bad-url"
        ) from error


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in _TRUE


#: Any of these and obstore finds credentials by itself.
_AWS_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip


def _aws() -> dict[str, Any]:
    """Profiles of ``~/.aws`` take boto3: obstore reads the environment and instance roles only."""
    if any(os.environ.get(name) for name in _AWS_CREDENTIALS):
        return {}
    profile = os.environ.get("AWS_PROFILE")
    shared = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    if not profile and not os.path.exists(os.path.expanduser(shared)):
        return {}
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider

        return {"credential_provider": Boto3CredentialProvider(boto3.Session())}
    except Exception:  # no boto3, no such profile, nothing in it: then as without a profile
        return {}
