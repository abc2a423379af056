"""Convert the operating system's facts and errors about files to those of a store."""

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jaxcache.errors import NoCacheError
from jaxcache.model import FileInfo, FileType
from jaxcache.store.base import ExistsError, MissingError, StoreError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


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
_TYPES: dict[int, FileType] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "symlink",
}
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


def no_cache(path: Path, error: OSError) -> NoCacheError:
    """Say why a directory cannot be opened as a cache."""
    if error.errno == errno.ENOENT:
        from shlex import quote  # which a command that finds its cache does without

        hint = f"name one with --cache-dir, or fill it: jaxcache warm -C {quote(str(path))} SCRIPT"
        if any(part.startswith("~") for part in path.parts):
            hint = 'JAX does not expand ~: write "$HOME/…"'
        if "file:" in path.parts:
            hint = "JAX uses a directory named file:; write the path without file://"
        return NoCacheError(f"no such cache directory: {path}", hint=hint)
    if error.errno == errno.ENOTDIR:
        from shlex import quote

        file = quote(str(path))
        hints = {
            ".jxb": f"put its entries into a cache: jaxcache import {file} -C DIR",
            ".py": f"run it and cache what it compiles: jaxcache warm -C DIR {file}",
        }
        return NoCacheError(
            f"{path} is a file, not a cache directory",
            code="not-a-directory",
            hint=hints.get(path.suffix, "name a directory"),
        )
    if error.errno == errno.EACCES:
        return NoCacheError(
            f"no permission to read {path}",
            code="permission-denied",
            hint="ask its owner, or name another directory with --cache-dir",
        )
    return NoCacheError(f"cannot read {path}: {os.strerror(error.errno or 0).lower()}")
