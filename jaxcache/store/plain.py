"""A directory on a system where no function takes a descriptor of one, as on Windows: read only."""

import contextlib
import io
import os
import stat
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from jaxcache.model import FileInfo
from jaxcache.store.base import StoreError, check_name, or_error
from jaxcache.store.local import LocalStore
from jaxcache.store.system import StoredFile, file_info, name_errors, no_cache


class PlainStore(LocalStore):
    """One directory, whose files are opened by their paths; links are refused as far as they show.

    Raises:
        NoCacheError: no directory there, or it cannot be entered.
    """

    writable = False
    keeps_atime = False  # unknown

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(path))
        try:
            os.scandir(self.path).close()
        except OSError as error:
            raise no_cache(self.path, error) from error

    @property
    def root(self) -> FileInfo:
        return file_info("", os.stat(self.path))

    def info(self, name: str) -> FileInfo:
        with name_errors(name), self.directory(name.rpartition("/")[0]):
            return file_info(name, os.lstat(self.path / check_name(name)))

    def read_many(self, names: Sequence[str], *, limit: int) -> Iterator[bytes | StoreError]:
        return (or_error(partial(self.read, name, limit=limit)) for name in names)

    def open(self, name: str) -> BinaryIO:
        before = self.info(name)
        if before.type == "symlink":
            raise StoreError(name, "is a symbolic link, which is not followed", code="symlink")
        if before.type != "file":
            raise StoreError(name, "not a regular file", code="not-a-file")
        with name_errors(name):
            return io.BufferedReader(StoredFile(self.path / name, name))

    @contextlib.contextmanager
    def directory(self, directory: str, *, make: bool = False) -> Iterator[str]:  # type: ignore[override]
        """Give the path of a directory, after a look at each part of it.

        Raises:
            OSError: a part is missing, or is a link or a file.
        """
        path = self.path
        for part in filter(None, directory.split("/")):
            path /= part
            if make or not stat.S_ISDIR(os.lstat(path).st_mode):
                raise NotADirectoryError(20, "is not a directory", str(path))
        yield str(path)
