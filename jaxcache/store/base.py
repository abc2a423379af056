"""The store of a cache's bytes: the protocol that every store keeps, and its errors.

The contract, which ``tests/store/conformance.py`` holds every store to:

* **Names** are relative, ``/``-separated, without empty, ``.`` or ``..`` parts. A store refuses
  any other name (:class:`BadNameError`) before it touches anything, and never leaves its root:
  symbolic links below the root are listed as links and never followed.
* **Listing** is a snapshot of no particular instant: names that vanish while it runs are left
  out, names that appear may be missing. It opens no file.
* **Reads** are bounded by the caller, return what is there now, possibly less than asked, and
  leave no trace: looking at a cache must not make its entries look used.
* **Writes** are atomic: another process sees the old bytes or the new bytes, never a mixture,
  and after an interruption at any instant the name holds the old or the new bytes. Bytes are
  durable (fsync) before the name shows them. An interrupted write leaves a ``.jaxcache-tmp-*``
  name, which listings show, which no reader takes for an entry, and which
  :meth:`Store.delete_abandoned` removes.
* **Deletes** can be made conditional on the file still being the one that was looked at.
* Failures of one file raise :class:`StoreError` with the name; they never end a listing.
* Failures of the place itself (no such bucket, no credentials, no network) raise
  :class:`jaxcache.errors.NoCacheError` from any method: they would repeat for every file.

Object stores (:attr:`Store.remote`) keep the same promises by other means:

* The ETag, in :attr:`FileInfo.etag`, identifies a version of an object; objects have no inode,
  owner, mode or access time.
* ``replace=False`` and ``rewrite()`` are conditional requests (``If-None-Match: *``,
  ``If-Match``), so the server itself decides races. No store offers conditional deletes through
  the library used here: :meth:`Store.delete` looks again right before it deletes, and a write in
  between is lost. Only ``seal``, ``verify --fix`` and a conflicting import replace an entry, so
  that a compile can be lost, but never the soundness of an entry.
* A rename is a conditional write and a delete, and between them both names exist.
* Object stores have no lock, and JAX takes none there either (``jax/_src/lru_cache.py`` makes a
  ``SoftFileLock`` of a local path even for a bucket): :meth:`Store.lock` holds nothing.
* An object appears whole or not at all, so that no temporary name is needed or left.
* Listings date an object by when it was put; :meth:`Store.info`, :meth:`Store.fetch` and
  :meth:`Store.rewrite` know the time that it was given.
"""

import contextlib
import errno
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, TypeVar, runtime_checkable

from jaxcache.errors import JaxcacheError, NoCacheError
from jaxcache.model import FileInfo, FileType

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_Result = TypeVar("_Result")


class StoreError(JaxcacheError):
    """One file could not be read, written or deleted."""

    def __init__(self, name: str, reason: str, *, code: str = "store-error") -> None:
        super().__init__(f"{name}: {reason}", code=code)
        self.name = name
        self.reason = reason


class MissingError(StoreError):
    """The name is not in the store (any more)."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "no such file", code="missing")


class BadNameError(StoreError):
    """The name would leave the store's root, or cannot be a name at all."""

    def __init__(self, name: str) -> None:
        super().__init__(repr(name), "not a name inside a cache", code="bad-name")


class ExistsError(StoreError):
    """A write that must not replace found the name taken."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "exists already", code="exists")


class ChangedError(StoreError):
    """The file has changed since it was looked at."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "changed meanwhile", code="changed")


class NewFile(NamedTuple):
    """A file to write with others."""

    name: str
    chunks: Iterable[bytes]
    mtime_ns: int | None = None
    replace: bool = True
    """False: fail with :class:`ExistsError` where the name is taken."""
    expected: FileInfo | None = None
    """Replace this file alone, and fail with :class:`ChangedError` where it is another one."""


class FetchedFile(NamedTuple):
    """A whole file, and what it was at the moment of reading."""

    data: bytes
    info: FileInfo


#: Names without a slash that are not allowed.
NO_NAMES = frozenset({"", ".", ".."})


def check_name(name: str) -> str:
    """Return ``name`` if it stays inside a store, else raise :class:`BadNameError`."""
    if "/" not in name and "\0" not in name and name not in NO_NAMES:  # as nearly all are
        return name
    if not name or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise BadNameError(name)
    return name


#: Entered by :meth:`Store.rewrite` for its last look and the swap.
Guard = AbstractContextManager[None] | None


@runtime_checkable
class Store(Protocol):
    """A flat place of named bytes with a few sub-directories, local or remote."""

    @property
    def url(self) -> str:
        """The location as a person would write it: an absolute path or a URL."""

    @property
    def path(self) -> str | None:
        """The absolute path of a directory, which other processes can open; None for others."""

    @property
    def writable(self) -> bool:
        """Whether a write can be expected to succeed."""

    @property
    def keeps_atime(self) -> bool:
        """Whether reads by others show in ``FileInfo.atime_ns`` (not on a noatime mount)."""

    @property
    def remote(self) -> bool:
        """Whether every read is a request over a network: worth sparing, and many at once."""

    @property
    def root(self) -> FileInfo | None:
        """The place itself, for its owner and permissions; None where a store has neither."""

    def list(self, prefix: str = "", *, start: str = "") -> Iterator[FileInfo]:
        """Yield the files directly in the root, or in the directory ``prefix``.

        A local store sorts them by name, so that no result depends on the file system.

        Yields nothing if the directory does not exist.

        Args:
            start: only names (inside the directory) that begin like this. A remote store that lists
                in order then requests that range alone.
        """

    def walk(self, prefix: str) -> Iterator[FileInfo]:
        """Yield every file and link below the directory ``prefix``, at any depth."""

    def info(self, name: str) -> FileInfo:
        """Look at one name again.

        Raises:
            MissingError: it is gone.
        """

    def read(self, name: str, *, limit: int) -> bytes:
        """Read at most the first ``limit`` bytes.

        Raises:
            MissingError, StoreError
        """

    def read_many(self, names: Sequence[str], *, limit: int) -> Iterator[bytes | StoreError]:
        """Read the first ``limit`` bytes of each name, in order; a failure takes its place."""

    def open(self, name: str) -> BinaryIO:
        """Open one file for sequential reading.

        Raises:
            MissingError, StoreError: also from what reads the file.
        """

    def open_many(self, names: Sequence[str]) -> Iterator[BinaryIO | StoreError]:
        """Open each name, in order, some ahead where it helps; a failure takes its place.

        The caller closes each file.
        """

    def fetch(self, name: str, *, limit: int) -> FetchedFile:
        """Read a whole file of at most ``limit`` bytes, all of it of one version.

        Raises:
            ChangedError: it was written to meanwhile.
            MissingError, StoreError: ``too-large`` if it holds more; ``checksum-mismatch`` if the
                store has recorded another digest.
        """

    def write(
        self,
        name: str,
        chunks: Iterable[bytes],
        *,
        mtime_ns: int | None = None,
        replace: bool = True,
    ) -> FileInfo:
        """Write a file atomically, keeping ``mtime_ns`` if given.

        Args:
            replace: False raises :class:`ExistsError` where the name is taken, without a race.
        """

    def write_many(self, files: Sequence[NewFile]) -> Iterator[FileInfo | StoreError]:
        """Write files as :meth:`write` and :meth:`rewrite` do, in order.

        A failure takes the place of its file and does not end the others. A local store keeps all
        files open meanwhile: some dozens at once. Only :meth:`sync_names` makes new names durable.
        """

    def sync_names(self, names: Iterable[str]) -> None:
        """Make names that :meth:`write_many` gave durable."""

    def rewrite(self, file: NewFile, expected: FileInfo, guard: Guard = None) -> FileInfo:
        """Replace the bytes of one file, keeping its times, permissions and owner.

        Args:
            file: its modification time, if any, takes the place of that of the file.
            expected: the file as it was looked at.
            guard: entered when the new bytes are durable, around the last look and the swap.

        Raises:
            ChangedError: the file has been replaced or is gone; it is left as it is.
        """

    def rename(self, name: str, new_name: str, *, replace: bool = False) -> None:
        """Move a file inside the store, atomically, making directories as needed.

        Raises:
            ExistsError: ``new_name`` is taken, and not to be replaced.
        """

    def delete(self, name: str, *, expected: FileInfo | None = None) -> bool:
        """Remove a file; False if it was gone, or differs from the one ``expected``."""

    def delete_many(self, files: Sequence[FileInfo]) -> Iterator[StoreError | bool]:
        """Delete the unchanged files; yield for each the result of :meth:`delete`, or an error."""

    def delete_abandoned(self, name: str) -> bool:
        """Remove a temporary file whose writer is gone; False if it lives, or that is unknown."""

    def hold(self, name: str) -> AbstractContextManager[None]:
        """Keep an empty file of a temporary name that is not abandoned while the context lasts.

        An object store keeps none: it cannot show whether the writer of a name lives.

        Raises:
            StoreError
        """

    def lock(self, *, timeout_seconds: float) -> AbstractContextManager[None]:
        """Hold JAX's own lock (``.lockfile``), where a JAX with a size cap would respect it.

        Raises:
            LockedError: another process held it all that time.
        """


#: Holds the lock of a file, without waiting: False if another process has it.
FileLock = Callable[[Store, str], AbstractContextManager[bool]]


def or_error(work: Callable[[], _Result]) -> _Result | StoreError:
    """Return the result of some work, or its failure about one file."""
    try:
        return work()
    except StoreError as error:
        return error


def same_file(now: FileInfo, then: FileInfo) -> bool:
    """Whether ``now`` is the file seen ``then``: same inode, size and modification time.

    For objects: same ETag and size.
    """
    if now.etag or then.etag:
        return (now.etag, now.size_bytes) == (then.etag, then.size_bytes)
    return (now.inode, now.size_bytes, now.mtime_ns) == (then.inode, then.size_bytes, then.mtime_ns)


@contextlib.contextmanager
def name_errors(name: str) -> Iterator[None]:
    """Turn the system's errors into errors that name the file."""
    try:
        yield
    except OSError as error:
        raise file_error(name, error) from error


class StoredFile(io.FileIO):
    """A file of a store, to be read; an error of the disk becomes one that names the file.

    Raises:
        StoreError: ``io-error``, from each method that reads.
    """

    def __init__(self, file: int, name: str) -> None:
        super().__init__(file)
        self._name = name

    def readinto(self, buffer: "WriteableBuffer") -> int | None:
        with name_errors(self._name):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with name_errors(self._name):
            return super().readall()


def file_info(name: str, status: os.stat_result) -> FileInfo:
    """Describe a file as a store does."""
    mode = status.st_mode
    owner = status.st_uid
    return FileInfo(
        name,
        _TYPES.get(mode & _TYPE_BITS, "other"),
        status.st_size,
        status.st_mtime_ns,
        status.st_atime_ns,
        status.st_ino,
        _SHARED.setdefault(mode, mode),
        _SHARED.setdefault(owner, owner),
        "",
        status.st_ctime_ns,
    )


_TYPE_BITS = stat.S_IFMT(0xFFFF)
_TYPES: dict[int, FileType] = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink"}
#: Modes and owners, of which a large cache has few: one object for all files.
_SHARED: dict[int, int] = {}


def file_error(name: str, error: OSError) -> StoreError:
    """Name the file in an error of the system."""
    if error.errno == errno.ENOENT:
        return MissingError(name)
    if error.errno == errno.EEXIST:
        return ExistsError(name)
    if error.errno == errno.ELOOP:
        return StoreError(name, "is a symbolic link, which is not followed", code="symlink")
    reason = os.strerror(error.errno) if error.errno else str(error)
    return StoreError(name, reason.lower(), code="io-error")


def cannot_make(path: str) -> str | None:
    """The reason why a path cannot be made, its missing directories included; None if it can."""
    above = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        return f"{above} is not a directory"
    return None if os.access(above, os.W_OK | os.X_OK) else f"{above} cannot be written"


def no_cache(path: str, error: OSError) -> NoCacheError:
    """Say why a directory cannot be opened as a cache."""
    from pathlib import PurePath  # which a command that finds its cache does without
    from shlex import quote

    name = quote(path)
    if error.errno == errno.ENOENT:
        hint = f"check the path, or fill it: jaxcache warm -C {name} SCRIPT"
        if cannot_make(path):
            hint = "name a directory of your own with -C"
        if any(part.startswith("~") for part in PurePath(path).parts):
            hint = 'JAX does not expand ~: write "$HOME/…"'
        if "file:" in PurePath(path).parts:
            hint = "JAX uses a directory named file:; write the path without file://"
        return NoCacheError(f"no such cache directory: {path}", hint=hint)
    if error.errno == errno.ENOTDIR:
        hints = {
            ".jxb": f"put its entries into a cache: jaxcache import {name} -C DIR",
            ".py": f"run it and cache what it compiles: jaxcache warm -C DIR {name}",
        }
        return NoCacheError(
            f"{path} is a file, not a cache directory",
            code="not-a-directory",
            hint=hints.get(PurePath(path).suffix, "name a directory"),
        )
    if error.errno == errno.EACCES:
        return NoCacheError(
            f"no permission to read {path}",
            code="permission-denied",
            hint="ask its owner, or name another directory",
        )
    return NoCacheError(f"cannot read {path}: {os.strerror(error.errno or 0).lower()}")
