"""URLs of object stores, the variables with their credentials, and what is refused of either.

And words of a command line that look secret.

obstore reads the variables of each provider's own tools; docs/remote.md lists them.
"""

import contextlib
import os
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .configuration import read_switch
from .system import expand_home

if TYPE_CHECKING:  # a completion needs the schemes alone
    from urllib.parse import SplitResult


#: The object service of each scheme.
SERVICES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
    "http": "http",
    "https": "http",
    "memory": "memory",
}
#: Variables that allow a server without TLS: emulators, servers in one's own rack.
_PLAIN_HTTP = {
    "s3": ("AWS_ALLOW_HTTP",),
    "gs": ("GOOGLE_ALLOW_HTTP",),
    "az": ("AZURE_ALLOW_HTTP", "AZURE_STORAGE_USE_EMULATOR"),
}
#: Variables that name credentials. Without any of them obstore requests them from the metadata
#: address of a cloud, which hangs elsewhere.
_CREDENTIALS = {
    "s3": r"AWS_(ACCESS_KEY_ID|SKIP_SIGNATURE|WEB_IDENTITY_TOKEN_FILE|CONTAINER_\w+"
    r"|METADATA_ENDPOINT)",
    "gs": r"GOOGLE_(APPLICATION_CREDENTIALS|SERVICE_ACCOUNT\w*|SKIP_SIGNATURE)",
    "az": r"AZURE_\w*(KEY|SAS_TOKEN|SECRET|TOKEN|TOKEN_FILE|CLI|EMULATOR|SKIP_SIGNATURE)"
    r"|(AZURE_)?(MSI|IDENTITY)_ENDPOINT",
}
_MAX_CERTIFICATES_BYTES = 16 << 20
_GOOGLE_DEFAULT = "~/.config/gcloud/application_default_credentials.json"
_ENDPOINT = r"AWS_ENDPOINT\w*|AZURE_(STORAGE_)?ENDPOINT|AZURITE_BLOB_STORAGE_URL"
_HOST = r"[\w.:-]+"


class RemoteError(ValueError):
    """A URL, an endpoint or credentials that cannot be used; the text never repeats a secret."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def split_url(url: str) -> "SplitResult":
    """Split the URL of an object store.

    Raises:
        RemoteError: it cannot be read, names no bucket, or has credentials in it.
    """
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        has_secret = bool(parts.username or parts.password or parts.query)
    except ValueError as error:
        raise RemoteError(f"cannot read the URL: {error}", "write SCHEME://BUCKET/PREFIX") from None
    if has_secret:
        raise RemoteError(
            "credentials do not belong into a URL, where everybody sees them",
            "set the provider's environment variables; docs/remote.md lists them",
        )
    if parts.fragment:
        raise RemoteError(f"{url} has a # in it", "write %23 for it")
    if not parts.netloc:
        what = {"http": "host", "az": "container"}.get(SERVICES[parts.scheme], "bucket")
        raise RemoteError(f"{url} names no {what}", f"write {parts.scheme}://{what.upper()}/PREFIX")
    return parts


def redact(url: str) -> str:
    """Return a URL without what may be a secret, to be shown; a path as it is."""
    scheme, separator, place = url.partition("://")
    if not separator:
        return url
    host, slash, path = place.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def check_endpoints() -> None:
    """Refuse endpoints that obstore would fall over, or that hold a password.

    Raises:
        RemoteError: its text does not repeat the URL.
    """
    from urllib.parse import urlsplit

    for name in os.environ:
        if not re.fullmatch(_ENDPOINT, name):
            continue
        url = os.environ[name]
        try:
            parts = urlsplit(url)
            secret = parts.username or parts.password or parts.query
            sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            secret = ""
            sound = None
            parts = urlsplit("")
        if secret:
            raise RemoteError(
                f"credentials do not belong into {name}, where everybody sees them",
                "set the provider's variables for them; docs/remote.md lists them",
            )
        if not sound or not re.fullmatch(_HOST, str(parts.hostname), re.ASCII):
            fault = "is not a URL of a server" if url else "is empty"
            hint = "http://HOST:PORT" if url else f"unset {name}, or set it to http://HOST:PORT"
            raise RemoteError(f"{name} {fault}", hint)


def has_credentials(service: str) -> bool:
    """Whether anything names credentials, so that obstore does not ask a metadata address."""
    return (
        service not in _CREDENTIALS
        or _names_credentials(service)
        or bool(read_switch("JAXCACHE_INSTANCE_CREDENTIALS"))
        or (service == "gs" and _exists(_GOOGLE_DEFAULT))
    )


_opener = 0
"""The id of the first process that opened a bucket; forked children inherit it."""


def connection(service: str, client: "dict[str, Any]") -> "dict[str, Any]":
    """Return the arguments of ``obstore.store.from_url`` for a service.

    obstore's own retries are off.

    Args:
        client: its client options, such as limits of time.

    Raises:
        RemoteError: ``AWS_CA_BUNDLE`` names a file without certificates; or the process that this
            one was forked from has opened a bucket, and would crash if both used obstore.
    """
    global _opener
    _opener = _opener or os.getpid()
    if _opener != os.getpid():
        raise RemoteError(
            "the process that this one was forked from has opened a bucket",
            "open buckets in the parent only, or start processes with spawn or forkserver",
        )
    plain = service == "http" or any(map(read_switch, _PLAIN_HTTP.get(service, ())))
    options = {**client, **({"allow_http": True} if plain else {})}
    authorities = os.environ.get("AWS_CA_BUNDLE")
    if service == "s3" and authorities:
        options["root_certificate"] = _read_certificates(authorities)
    arguments: dict[str, Any] = {"client_options": options, "retry_config": {"max_retries": 0}}
    return arguments | (_from_profile() if service == "s3" else {})


def _read_certificates(path: str) -> bytes:
    """Return the certificates to trust in addition to those of the system."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_CERTIFICATES_BYTES)
        fault = "" if b"-----BEGIN CERTIFICATE-----" in data else "holds no certificate"
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    if fault:
        hint = "name a PEM file of certificates, or unset AWS_CA_BUNDLE"
        raise RemoteError(f"AWS_CA_BUNDLE names {path}, which {fault}", hint)
    return data


def _exists(path: str) -> bool:
    try:
        return os.path.exists(expand_home(path))
    except FileNotFoundError:
        return False


def _names_credentials(service: str) -> bool:
    pattern = re.compile(_CREDENTIALS[service])
    return any(pattern.fullmatch(name) for name, value in os.environ.items() if value)


def _from_profile() -> "dict[str, Any]":
    """Profiles of ``~/.aws`` take boto3: obstore reads the environment and instance roles only."""
    shared = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    try:  # boto3, which runs commands that profiles name, would take a directory ~ for the home
        profile = os.environ.get("AWS_PROFILE") or os.path.exists(expand_home(shared))
        expand_home(os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"))
    except FileNotFoundError:
        return {}
    if profile and not _names_credentials("s3"):
        with contextlib.suppress(Exception):  # no boto3, no such profile, nothing in it
            session = import_module("boto3").Session()
            provider = import_module("obstore.auth.boto3").Boto3CredentialProvider
            return {"credential_provider": provider(session)}
    return {}


#: Names of secret values; "tokenizer" and "max_tokens" do not match.
_HIDDEN_NAME = (
    r"(?i)(^|[-_.])(token|secret|passw(or)?d|passphrase|credentials?|auth(orization)?|bearer|"
    r"(api|access|private|secret|signing|encryption|account|license)[-_]?key|apikey)($|[-_.])"
)
_USER_IN_URL = r"(?<=://)[^/@\s]*@"
#: Items of a URL's query that give access, as in presigned URLs of S3, GCS and Azure.
_KEY_IN_QUERY = (
    r"(?i)(?<=[?&])([\w-]*(?:token|signature|credential|secret|password)|sig|(?:[\w-]*[-_])?key)"
    r"=[^&#\s]*"
)


def hide_secrets(arguments: "list[str]") -> "list[str]":
    """Replace the values of arguments that look secret: what is sent may end up in files."""
    shown = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = bool(re.search(_HIDDEN_NAME, name.lstrip("-"))) and "/" not in name
        if hide_next and not argument.startswith("-"):
            shown.append("***")
        elif equals and secret:
            shown.append(f"{name}=***")
        else:
            without_password = re.sub(_USER_IN_URL, "***@", argument)
            shown.append(re.sub(_KEY_IN_QUERY, r"\1=***", without_password))
        hide_next = secret and not equals and argument.startswith("-")
    return shown
