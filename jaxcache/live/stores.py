"""Stores of a tier's objects: a directory, or a bucket that obstore reaches."""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

from ..core.atomic import open_below, open_folder
from ..core.sharing import adopt_from_folder
from .files import read_file, write_whole

_MAX_NAMES = 200_000


class AbsentError(Exception):
    """The tier has no such object."""


class DeniedError(Exception):
    """The tier refuses this user; asking again is of no use."""


class DirectoryStore:
    """A directory, such as one on a network file system."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, name: str, limit: int) -> bytes:
        """Return an object's bytes, at most ``limit``."""
        data = None
        with contextlib.suppress(FileNotFoundError), self._folder(name) as (folder, base):
            data = read_file(base, limit, folder=folder)
        if data is None:
            raise AbsentError
        return data

    def write(self, name: str, data: bytes, *, replace: bool) -> None:
        """Write an object whole."""
        with self._folder(name, make=True) as (folder, base):
            if replace or not _exists(folder, base):
                write_whole(folder, base, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object if there is none; whether there was none."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with self._folder(name, make=True) as (folder, base):
            try:
                fd = os.open(base, flags, 0o666, dir_fd=folder)
            except FileExistsError:
                return False
            try:
                adopt_from_folder(fd, folder)
                os.write(fd, data)
            finally:
                os.close(fd)
        return True

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        with contextlib.suppress(FileNotFoundError), self._folder(name) as (folder, base):
            os.unlink(base, dir_fd=folder)

    def names(self, folder: str = "") -> "set[str]":
        """The names directly below a folder."""
        try:
            with self._folder(f"{folder}/") as (fd, _):
                return set(os.listdir(fd))
        except FileNotFoundError:
            return set()

    @contextlib.contextmanager
    def _folder(self, name: str, *, make: bool = False) -> "Iterator[tuple[int, str]]":
        """A descriptor of the folder of an object, and its name there; no link is followed."""
        if make:
            os.makedirs(self._path, exist_ok=True)
        path, _, base = name.rpartition("/")
        with open_folder(self._path) as root, open_below(root, path, make=make) as folder:
            yield folder, base


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


#: Variables that allow a server without TLS, as in docs/remote.md.
_PLAIN_HTTP = {
    "s3": ("AWS_ALLOW_HTTP",),
    "gs": ("GOOGLE_ALLOW_HTTP",),
    "az": ("AZURE_ALLOW_HTTP", "AZURE_STORAGE_USE_EMULATOR"),
}
#: Variables that name credentials, as in docs/remote.md. Without any of them obstore asks the
#: metadata address of a cloud, which hangs elsewhere.
_CREDENTIALS = {
    "s3": r"AWS_(ACCESS_KEY_ID|SKIP_SIGNATURE|WEB_IDENTITY_TOKEN_FILE|CONTAINER_\w+"
    r"|METADATA_ENDPOINT)",
    "gs": r"GOOGLE_(APPLICATION_CREDENTIALS|SERVICE_ACCOUNT\w*|SKIP_SIGNATURE)",
    "az": r"AZURE_\w*(KEY|SAS_TOKEN|SECRET|TOKEN|TOKEN_FILE|CLI|EMULATOR|SKIP_SIGNATURE)"
    r"|(AZURE_)?(MSI|IDENTITY)_ENDPOINT",
}
_SERVICES = {"s3a": "s3", "azure": "az", "abfs": "az", "abfss": "az"}


class BucketStore:
    """Whatever obstore reaches; credentials come from the providers' own variables.

    Raises:
        DeniedError: nothing names credentials.
    """

    def __init__(self, url: str, seconds: float) -> None:
        from datetime import timedelta

        import obstore
        import obstore.store

        scheme = url.partition("://")[0]
        service = _SERVICES.get(scheme, scheme)
        options: dict[str, Any] = {
            "timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=min(seconds, 1.0)),
        }
        if service == "http" or any(map(_is_set, _PLAIN_HTTP.get(service, ()))):
            options["allow_http"] = True
        given: dict[str, Any] = {"client_options": options, "retry_config": {"max_retries": 0}}
        if service == "s3":
            given |= _from_profile()
        if "credential_provider" not in given:
            _require_credentials(service)
        self._obstore = obstore
        self._store = obstore.store.from_url(url, **given)

    def read(self, name: str, limit: int) -> bytes:
        """Return an object's bytes, at most ``limit``."""
        with self._errors():
            found = self._obstore.get(self._store, name)
            if found.meta["size"] > limit:
                raise OSError("the object is too large")
            return bytes(found.bytes())

    def write(self, name: str, data: bytes, *, replace: bool) -> None:
        """Write an object; an existing one stays unless it is to be replaced."""
        if replace:
            with self._errors():
                self._obstore.put(self._store, name, data, use_multipart=False)
        else:
            self.create(name, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object if there is none; whether there was none."""
        try:
            with self._errors():
                self._obstore.put(self._store, name, data, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        with contextlib.suppress(AbsentError), self._errors():
            self._obstore.delete(self._store, name)

    def names(self, folder: str = "") -> "set[str]":
        """The names directly below a folder."""
        found: set[str] = set()
        prefix = f"{folder}/" if folder else None
        with self._errors():
            for page in self._obstore.list(self._store, prefix, chunk_size=1000):
                for meta in page:
                    name = meta["path"][len(prefix or "") :]
                    if "/" not in name:
                        found.add(name)
                if len(found) > _MAX_NAMES:
                    raise OSError("too many names")
        return found

    @contextlib.contextmanager
    def _errors(self) -> Any:
        try:
            yield
        except Exception as error:
            name = type(error).__name__
            if name == "NotFoundError" or isinstance(error, FileNotFoundError):
                raise AbsentError from None
            if name in ("AlreadyExistsError", "PreconditionError"):
                raise FileExistsError(str(error)) from error
            if name in ("PermissionDeniedError", "UnauthenticatedError"):
                raise DeniedError(str(error).splitlines()[0]) from error
            raise


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")


def _names_credentials(service: str) -> bool:
    pattern = re.compile(_CREDENTIALS[service])
    return any(pattern.fullmatch(name) for name, value in os.environ.items() if value)


def _from_profile() -> "dict[str, Any]":
    """The credentials of ``~/.aws``, which take boto3."""
    shared = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    profile = os.environ.get("AWS_PROFILE") or os.path.exists(os.path.expanduser(shared))
    if profile and not _names_credentials("s3"):
        with contextlib.suppress(Exception):  # no boto3, or no such profile
            import boto3
            from obstore.auth.boto3 import Boto3CredentialProvider

            return {"credential_provider": Boto3CredentialProvider(boto3.Session())}
    return {}


def _require_credentials(service: str) -> None:
    """Refuse where obstore would ask a metadata address.

    Raises:
        DeniedError
    """
    google = os.path.expanduser("~/.config/gcloud/application_default_credentials.json")
    if (
        service not in _CREDENTIALS
        or _names_credentials(service)
        or _is_set("JAXCACHE_INSTANCE_CREDENTIALS")
        or (service == "gs" and os.path.exists(google))
    ):
        return
    raise DeniedError(
        "no credentials: docs/remote.md has the variables; JAXCACHE_INSTANCE_CREDENTIALS=true for "
        "those that a cloud gives its machines"
    )
