"""From a URL to a store: which service, which credentials, which limits.

Credentials and endpoints come from the environment variables that each provider's own tools use;
docs/remote.md lists them.
"""

import os
import re
from datetime import timedelta
from typing import Any
from urllib.parse import SplitResult, urlsplit

from jaxcache.errors import JaxcacheError, NoCacheError, UsageError
from jaxcache.store import SERVICES
from jaxcache.store.object.failures import CREDENTIAL_HINTS, find_meaning, first_line
from jaxcache.store.object.store import ObjectStore
from jaxcache.units import format_install

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
    service = SERVICES[parts.scheme]
    shown = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    obstore = _import_obstore()
    if service == "memory":
        client = _MEMORY.setdefault(shown, obstore.store.MemoryStore())
    else:
        client = _connect(obstore, url, shown, service)
    can_skip = service in ("s3", "gs")
    return ObjectStore(client, shown, can_skip=can_skip, writable=service != "http")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        userinfo = parts.username or parts.password
    except ValueError as error:
        raise UsageError(f"cannot read the URL: {error}", code="bad-url") from error
    if userinfo or parts.query:
        raise UsageError(
            "credentials do not belong into a URL, where everybody sees them",
            code="bad-url",
            hint="set the provider's environment variables; docs/remote.md lists them",
        )
    if parts.fragment:
        raise UsageError(f"{url} has a # in it", code="bad-url", hint="write %23 for it")
    if not parts.netloc:
        what = {"http": "host", "az": "container"}.get(SERVICES[parts.scheme], "bucket")
        raise UsageError(
            f"{url} names no {what}",
            code="bad-url",
            hint=f"write {parts.scheme}://{what.upper()}/FOLDER",
        )
    return parts


def _import_obstore() -> Any:
    try:
        import obstore.store
    except ImportError as error:
        raise JaxcacheError(
            "object stores take the package obstore",
            code="no-obstore",
            hint=format_install("obstore"),
        ) from error
    return obstore


def _connect(obstore: Any, url: str, shown: str, service: str) -> Any:
    _check_endpoints()
    options: dict[str, Any] = dict(_CLIENT)
    if service == "http" or any(map(_is_set, _PLAIN_HTTP[service])):
        options["allow_http"] = True
    given: dict[str, Any] = {"client_options": options, "retry_config": {"max_retries": 0}}
    if service == "s3":
        given |= _aws()
    if service in _CREDENTIALS and "credential_provider" not in given:
        _require_credentials(service, shown)
    try:
        return obstore.store.from_url(url, **given)
    except Exception as error:
        failure = find_meaning(error, url=shown, verb="list", name="")
        if failure.code in ("no-credentials", "no-bucket"):
            raise failure from error
        raise UsageError(
            f"cannot open {shown}: {first_line(str(error))}", code="bad-url"
        ) from error


def _names_credentials(service: str) -> bool:
    return any(map(_CREDENTIALS[service].fullmatch, filter(os.environ.get, os.environ)))


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in _TRUE


def _check_endpoints() -> None:
    """Refuse endpoints that obstore would fall over, or that hold a password.

    Raises:
        UsageError: ``bad-url``; its message does not repeat the URL.
    """
    for name in filter(_ENDPOINT.fullmatch, os.environ):
        url = os.environ[name]
        try:
            parts = urlsplit(url)
            secret = parts.username or parts.password or parts.query
            sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            secret, sound, parts = "", None, urlsplit("")
        if secret:
            raise UsageError(
                f"credentials do not belong into {name}, where everybody sees them",
                code="bad-url",
                hint="set the provider's variables for them; docs/remote.md lists them",
            )
        if not sound or not _HOST.fullmatch(str(parts.hostname)):
            fault = "is not a URL of a server" if url else "is empty"
            hint = "http://HOST:PORT" if url else f"unset {name}, or set it to http://HOST:PORT"
            raise UsageError(f"{name} {fault}", code="bad-url", hint=hint)


_ENDPOINT = re.compile(r"AWS_ENDPOINT\w*|AZURE_(STORAGE_)?ENDPOINT|AZURITE_BLOB_STORAGE_URL")
_HOST = re.compile(r"[\w.:-]+", re.ASCII)


def _require_credentials(service: str, shown: str) -> None:
    """Refuse to go on where obstore would ask the cloud's metadata address for credentials.

    Raises:
        NoCacheError: ``no-credentials``.
    """
    if _names_credentials(service) or _is_set("JAXCACHE_INSTANCE_CREDENTIALS"):
        return
    if service == "gs" and os.path.exists(os.path.expanduser(_GOOGLE_DEFAULT)):
        return
    raise NoCacheError(
        f"no credentials for {shown}",
        code="no-credentials",
        hint=f"{CREDENTIAL_HINTS[service]}; JAXCACHE_INSTANCE_CREDENTIALS=true for those that a "
        "cloud gives its machines",
    )


#: Variables that name credentials; without any of them obstore asks the metadata address.
_CREDENTIALS = {
    "s3": re.compile(
        r"AWS_(ACCESS_KEY_ID|SKIP_SIGNATURE|WEB_IDENTITY_TOKEN_FILE|CONTAINER_\w+"
        r"|METADATA_ENDPOINT)"
    ),
    "gs": re.compile(r"GOOGLE_(APPLICATION_CREDENTIALS|SERVICE_ACCOUNT\w*|SKIP_SIGNATURE)"),
    "az": re.compile(
        r"AZURE_\w*(KEY|SAS_TOKEN|SECRET|TOKEN|TOKEN_FILE|CLI|EMULATOR|SKIP_SIGNATURE)"
        r"|(AZURE_)?(MSI|IDENTITY)_ENDPOINT"
    ),
}
_GOOGLE_DEFAULT = "~/.config/gcloud/application_default_credentials.json"


def _aws() -> dict[str, Any]:
    """Profiles of ``~/.aws`` take boto3: obstore reads the environment and instance roles only."""
    shared = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    profile = os.environ.get("AWS_PROFILE") or os.path.exists(os.path.expanduser(shared))
    if not profile or _names_credentials("s3"):
        return {}
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider

        return {"credential_provider": Boto3CredentialProvider(boto3.Session())}
    except Exception:  # no boto3, no such profile, nothing in it: then as without a profile
        return {}
