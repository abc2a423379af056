"""Stores of a tier's objects: a directory, or a bucket that obstore reaches."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from ..core import remote
from ..core.atomic import adopt_from_directory, open_below, open_directory
from .files import read_file, write_whole

_MAX_NAMES = 200_000
_MAX_LISTED = 1_000_000
#: No directory has longer names, so no entry has.
_MAX_NAME_LENGTH = 255


class AbsentError(Exception):
    """The tier has no such object."""


class DeniedError(Exception):
    """The tier refuses this user; asking again is of no use.

    Args:
        is_open: whether the tier itself did, which a request has reached.
    """

    def __init__(self, reason: str, *, is_open: bool = False) -> None:
        super().__init__(reason)
        self.is_open = is_open


class DirectoryStore:
    """A directory, such as one on a network file system."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, name: str, limit: int) -> bytes:
        """Return an object's bytes, at most ``limit``."""
        data = None
        with contextlib.suppress(FileNotFoundError), self._directory(name) as (directory, base):
            data = read_file(base, limit, directory=directory)
        if data is None:
            raise AbsentError
        return data

    def write(self, name: str, data: bytes, *, replace: bool) -> None:
        """Write an object whole."""
        with self._directory(name, make=True) as (directory, base):
            if replace or not os.access(base, os.F_OK, dir_fd=directory):
                write_whole(directory, base, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object if it does not exist; return whether it was written."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with self._directory(name, make=True) as (directory, base):
            try:
                fd = os.open(base, flags, 0o666, dir_fd=directory)
            except FileExistsError:
                return False
            try:
                adopt_from_directory(fd, directory)
                os.write(fd, data)
            finally:
                os.close(fd)
        return True

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        with contextlib.suppress(FileNotFoundError), self._directory(name) as (directory, base):
            os.unlink(base, dir_fd=directory)

    def names(self, directory: str = "") -> "set[str]":
        """The names directly below a directory."""
        try:
            with self._directory(f"{directory}/") as (fd, _):
                return set(os.listdir(fd))
        except FileNotFoundError:
            return set()

    @contextlib.contextmanager
    def _directory(self, name: str, *, make: bool = False) -> "Iterator[tuple[int, str]]":
        """A descriptor of the directory of an object, and its name there; no link is followed."""
        if make:
            os.makedirs(self._path, exist_ok=True)
        path, _, base = name.rpartition("/")
        with open_directory(self._path) as root, open_below(root, path, make=make) as directory:
            yield directory, base


class BucketStore:
    """Whatever obstore reaches; credentials come from the providers' own variables.

    Raises:
        DeniedError: nothing names credentials, or the URL or an endpoint holds some.
    """

    def __init__(self, url: str, seconds: float) -> None:
        from datetime import timedelta

        import obstore
        import obstore.store

        client = {
            "timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=min(seconds, 1.0)),
        }
        try:
            scheme = url.partition("://")[0]
            if scheme not in remote.SERVICES:
                raise DeniedError(f"no store serves {scheme}://")
            service = remote.SERVICES[remote.split_url(url).scheme]
            remote.check_endpoints()
            options = remote.connection(service, client)
        except remote.RemoteError as error:
            raise DeniedError(f"{error}: {error.hint}") from None
        if "credential_provider" not in options and not remote.has_credentials(service):
            raise DeniedError(
                "no credentials: docs/remote.md has the variables; "
                "JAXCACHE_INSTANCE_CREDENTIALS=true for those that a cloud gives its machines"
            )
        self._obstore = obstore
        self._store = obstore.store.from_url(url, **options)

    def read(self, name: str, limit: int) -> bytes:
        """Return an object's bytes, at most ``limit``."""
        with self._errors():
            result = self._obstore.get(self._store, name)
            if result.meta["size"] > limit:
                raise OSError("the object is too large")
            return bytes(result.bytes())

    def write(self, name: str, data: bytes, *, replace: bool) -> None:
        """Write an object; an existing one stays unless it is to be replaced."""
        if replace:
            with self._errors():
                self._obstore.put(self._store, name, data, use_multipart=False)
        else:
            self.create(name, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object if it does not exist; return whether it was written."""
        try:
            with self._errors():
                self._obstore.put(self._store, name, data, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        with contextlib.suppress(AbsentError), self._errors():
            self._obstore.delete(self._store, name)

    def names(self, directory: str = "") -> "set[str]":
        """The names directly below a directory."""
        names: set[str] = set()
        prefix = f"{directory}/" if directory else None
        with self._errors():
            listed = 0  # names of other directories and repeated ones count, too
            for page in self._obstore.list(self._store, prefix, chunk_size=1000):
                for meta in page:
                    name = meta["path"][len(prefix or "") :]
                    if "/" not in name and len(name) <= _MAX_NAME_LENGTH:
                        names.add(name)
                listed += len(page)
                if len(names) > _MAX_NAMES or listed > _MAX_LISTED:
                    raise OSError("the listing has too many names")
        return names

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
