"""The store that JAX itself uses: one directory of a local (or mounted) file system."""

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import BinaryIO, NamedTuple

from jaxcache.core import atomic
from jaxcache.core.atomic import open_below, sync_directory
from jaxcache.core.names import LOCKFILE
from jaxcache.core.system import open_unread
from jaxcache.errors import LockedError, NoCacheError
from jaxcache.model import FileInfo
from jaxcache.store import base as stores


class _Unnamed(NamedTuple):
    """A file of :meth:`LocalStore.write_many` that has no name yet."""

    file: stores.NewFile
    new: atomic.TemporaryFile | FileInfo
    """Its bytes, written; or the file that it is to replace where that one is unchanged."""


class LocalStore:
    """One directory, opened once: later renames of its parents do not mislead it.

    :class:`jaxcache.store.base.Store` has the contract.

    Raises:
        NoCacheError: no directory there, or it cannot be entered.
    """

    remote = False  # a mounted file system counts as near

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = self.url = os.path.abspath(path)
        try:
            self._fd = os.open(self.url, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise stores.no_cache(self.url, error) from error

    def __del__(self) -> None:
        if (fd := getattr(self, "_fd", None)) is not None:
            with contextlib.suppress(OSError):
                os.close(fd)

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    @property
    def writable(self) -> bool:
        """Whether the process may create files here (false on a read-only mount)."""
        return os.access(self.url, os.W_OK | os.X_OK)

    @property
    def keeps_atime(self) -> bool:
        """Whether the mount records reads (``relatime`` does, at most once a day)."""
        return not os.fstatvfs(self._fd).f_flag & getattr(os, "ST_NOATIME", 0)

    @property
    def root(self) -> FileInfo:
        return stores.file_info("", os.fstat(self._fd))

    def list(self, prefix: str = "", *, start: str = "") -> Iterator[FileInfo]:
        lead = f"{stores.check_name(prefix.rstrip('/'))}/" if prefix else ""
        try:
            with self.directory(lead) as fd, os.scandir(fd) as names:
                # Taken off the end, because an item keeps its status as long as it lives.
                wanted = (item for item in names if item.name.startswith(start))
                items = sorted(wanted, key=attrgetter("name"), reverse=True)
                while items:
                    item = items.pop()
                    try:
                        status = item.stat(follow_symlinks=False)
                    except OSError:
                        continue  # gone since the directory was read
                    yield stores.file_info(lead + item.name, status)
        except OSError as error:
            if not prefix or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise stores.no_cache(os.path.normpath(f"{self.url}/{lead}"), error) from error

    def walk(self, prefix: str) -> Iterator[FileInfo]:
        """Yield every file and link below a directory; unreadable directories are left out."""
        directories = [prefix]
        while directories:
            with contextlib.suppress(NoCacheError):
                for info in self.list(directories.pop()):
                    if info.type == "dir":
                        directories.append(info.name)
                    else:
                        yield info

    def info(self, name: str) -> FileInfo:
        if "/" not in name:  # spelled out: a large prune looks at every file again
            try:
                status = os.stat(stores.check_name(name), dir_fd=self._fd, follow_symlinks=False)
            except OSError as error:
                raise stores.file_error(name, error) from error
            return stores.file_info(name, status)
        with stores.name_errors(name), self._parent(name) as (fd, base):
            return stores.file_info(name, os.stat(base, dir_fd=fd, follow_symlinks=False))

    def read(self, name: str, *, limit: int) -> bytes:
        with self.open(name) as file:
            return file.read(limit)

    def read_many(self, names: Sequence[str], *, limit: int) -> Iterator[bytes | stores.StoreError]:
        # Written out, because it runs once per file over whole caches.
        for name in names:
            try:
                if "/" in name or name in stores.NO_NAMES:
                    yield self.read(name, limit=limit)
                    continue
                file = open_unread(name, directory=self._fd)
                try:
                    data = os.read(file, limit)
                finally:
                    os.close(file)
            except OSError as error:
                yield stores.file_error(name, error)
            except ValueError:  # a NUL inside
                yield stores.BadNameError(name)
            except stores.StoreError as error:
                yield error
            else:
                yield data

    def open(self, name: str) -> BinaryIO:
        with stores.name_errors(name), self._parent(name) as (directory, base):
            fd = open_unread(base, directory=directory)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise stores.StoreError(name, "not a regular file", code="not-a-file")
        return io.BufferedReader(stores.StoredFile(fd, name))

    def open_many(self, names: Sequence[str]) -> Iterator[BinaryIO | stores.StoreError]:
        return (stores.or_error(partial(self.open, name)) for name in names)

    def fetch(self, name: str, *, limit: int) -> stores.FetchedFile:
        with self.open(name) as file:
            before = stores.file_info(name, os.fstat(file.fileno()))
            if before.size_bytes > limit:
                raise stores.StoreError(name, f"holds more than {limit} bytes", code="too-large")
            data = file.read(before.size_bytes + 1)
            if not stores.same_file(stores.file_info(name, os.fstat(file.fileno())), before):
                raise stores.ChangedError(name)
        if len(data) != before.size_bytes:
            raise stores.ChangedError(name)
        return stores.FetchedFile(data, before)

    def write(
        self,
        name: str,
        chunks: Iterable[bytes],
        *,
        mtime_ns: int | None = None,
        replace: bool = True,
    ) -> FileInfo:
        with stores.name_errors(name), self._parent(name, make=True) as (directory, base):
            with atomic.new_file(directory, chunks, _times(mtime_ns), like=directory) as file:
                file.give_name(base, replace=replace)
                info = stores.file_info(name, os.fstat(file.fd))
            sync_directory(directory)
        return info

    def write_many(self, files: Sequence[stores.NewFile]) -> Iterator[FileInfo | stores.StoreError]:
        """Write all, then sync all, and then name them."""
        directories: dict[str, int] = {}
        with contextlib.ExitStack() as opened:
            new_files = [
                stores.or_error(partial(self._make, file, directories, opened)) for file in files
            ]
            synced = [stores.or_error(partial(_sync, new)) for new in new_files]
            named = [stores.or_error(partial(self._name, new)) for new in synced]
        yield from named

    def sync_names(self, names: Iterable[str]) -> None:
        for path in {name.rpartition("/")[0] for name in names}:
            with contextlib.suppress(OSError), self.directory(path) as directory:
                sync_directory(directory)

    def _make(
        self, file: stores.NewFile, directories: dict[str, int], opened: contextlib.ExitStack
    ) -> "_Unnamed":
        """Write a file of :meth:`write_many` under a temporary name."""
        if file.expected is not None:
            return _Unnamed(file, file.expected)
        path = stores.check_name(file.name).rpartition("/")[0]
        with stores.name_errors(file.name):
            if path not in directories:
                directories[path] = opened.enter_context(self.directory(path, make=True))
            directory = directories[path]
            times_ns = _times(file.mtime_ns)
            new = atomic.new_file(directory, file.chunks, times_ns, like=directory, durable=False)
            return _Unnamed(file, opened.enter_context(new))

    def _name(self, unnamed: _Unnamed | stores.StoreError) -> FileInfo:
        """Give a file of :meth:`write_many` its name."""
        if isinstance(unnamed, stores.StoreError):
            raise unnamed
        file, new = unnamed
        if isinstance(new, FileInfo):
            return self.rewrite(file, new)
        with stores.name_errors(file.name):
            new.give_name(file.name.rpartition("/")[2], replace=file.replace)
            return stores.file_info(file.name, os.fstat(new.fd))

    def rewrite(
        self, file: stores.NewFile, expected: FileInfo, guard: stores.Guard = None
    ) -> FileInfo:
        name, chunks, mtime_ns, *_ = file
        times_ns = expected.atime_ns, expected.mtime_ns if mtime_ns is None else mtime_ns
        with stores.name_errors(name), self._parent(name) as (directory, base):
            try:
                old = self.open(name)
            except stores.StoreError as error:
                if error.code == "io-error":
                    raise
                raise stores.ChangedError(name) from error
            with (
                old,
                atomic.new_file(directory, chunks, times_ns, like=old.fileno()) as new,
                guard or contextlib.nullcontext(),
            ):
                like = stores.file_info(name, os.fstat(old.fileno()))
                try:
                    unchanged = stores.same_file(like, expected) and stores.same_file(
                        self.info(name), expected
                    )
                except stores.MissingError:
                    unchanged = False
                if not unchanged:
                    raise stores.ChangedError(name)
                new.give_name(base)
                info = stores.file_info(name, os.fstat(new.fd))
            sync_directory(directory)
        return info

    def rename(self, name: str, new_name: str, *, replace: bool = False) -> None:
        with (
            stores.name_errors(new_name),
            self._parent(new_name, make=True) as (to_directory, to_base),
            stores.name_errors(name),
            self._parent(name) as (from_directory, from_base),
        ):
            if replace:
                os.replace(from_base, to_base, src_dir_fd=from_directory, dst_dir_fd=to_directory)
            else:
                try:
                    atomic.move_to_new_name(from_directory, from_base, to_directory, to_base)
                except FileExistsError as error:
                    raise stores.ExistsError(new_name) from error
            sync_directory(to_directory)

    def delete(self, name: str, *, expected: FileInfo | None = None) -> bool:
        try:
            if expected is not None and not stores.same_file(self.info(name), expected):
                return False
            if "/" not in name:
                try:
                    os.unlink(stores.check_name(name), dir_fd=self._fd)
                except OSError as error:
                    raise stores.file_error(name, error) from error
                return True
            with stores.name_errors(name), self._parent(name) as (directory, base):
                os.unlink(base, dir_fd=directory)
        except stores.MissingError:
            return False
        return True

    def delete_many(self, files: Sequence[FileInfo]) -> Iterator[stores.StoreError | bool]:
        return (stores.or_error(partial(self.delete, f.name, expected=f)) for f in files)

    def delete_abandoned(self, name: str) -> bool:
        try:
            with stores.name_errors(name), self._parent(name) as (directory, base):
                return atomic.remove_if_abandoned(directory, base)
        except stores.StoreError:
            return False

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            with stores.name_errors(name):
                directory, base = held.enter_context(self._parent(name, make=True))
                held.enter_context(atomic.locked_name(directory, base))
            yield

    @contextlib.contextmanager
    def lock(self, *, timeout_seconds: float) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            with stores.name_errors(LOCKFILE):
                lock = atomic.hold_lockfile(self._fd, timeout_seconds=timeout_seconds)
                taken = held.enter_context(lock)
            if not taken:
                raise LockedError(
                    f"another process holds {os.path.join(self.url, LOCKFILE)}",
                    hint="a JAX process with a size cap is writing; try again in a moment",
                )
            yield

    @contextlib.contextmanager
    def _parent(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the directory that holds ``name``; give its descriptor and the last part."""
        directory, _, base = stores.check_name(name).rpartition("/")
        with self.directory(directory, make=make) as fd:
            yield fd, base

    @contextlib.contextmanager
    def directory(self, directory: str, *, make: bool = False) -> Iterator[int]:
        """Open a directory part by part, so that no link on the way is followed.

        Raises:
            OSError
        """
        with open_below(self._fd, directory, make=make) as fd:
            yield fd


def _times(mtime_ns: int | None) -> tuple[int, int] | None:
    return None if mtime_ns is None else (mtime_ns, mtime_ns)


def _sync(unnamed: _Unnamed | stores.StoreError) -> _Unnamed:
    if isinstance(unnamed, stores.StoreError):
        raise unnamed
    if isinstance(unnamed.new, atomic.TemporaryFile):
        with stores.name_errors(unnamed.file.name):
            os.fsync(unnamed.new.fd)
    return unnamed
