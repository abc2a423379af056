"""The files of a cache directory: what each is by its name, an entry with its date, and JAX's lock.

JAX before 0.11.2 with a size cap stops writing at the first entry that lacks its date
(``jax/_src/lru_cache.py``). So the date is written before its entry and removed after it, also
if the work is interrupted.

A ``.jaxcache-tmp-*`` file, which a killed command left, is abandoned when no process holds its
lock; only the store can check that. A command that needs many files until all of them are there
keeps them as ``.jaxcache/incoming/<name>-<number>`` next to one such file, which it keeps until it
ends.
"""

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from itertools import islice
from typing import NamedTuple, TypeVar

from jaxcache.core.atomic import open_directory
from jaxcache.core.names import (
    ATIME_SUFFIX,
    AUTOTUNE_DIR,
    CACHE_SUFFIX,
    CACHE_TAG,
    OWN_DIR,
    TEMP_PREFIX,
    Key,
)
from jaxcache.core.system import require_flock, wait_for_flock
from jaxcache.entry.names import TORCH_GRAPHS, TORCH_LOCKS, FileKind, key_of, own_kind, split_name
from jaxcache.errors import JaxcacheError, NoCacheError
from jaxcache.model import FileInfo, Problem, report_progress
from jaxcache.store import is_remote
from jaxcache.store.base import ExistsError, FileLock, MissingError, NewFile, Store, StoreError
from jaxcache.units import format_count, format_size

#: The most files that are counted in a directory of another program.
_MAX_UNKNOWN_FILES = 100_000
#: Levels of directories that are searched.
_MAX_DEPTH = 3
#: The most names to look at; caches deeper in a larger tree are not found.
_MAX_NAMES = 200_000
#: Directories in a cache of torch's; the short ones hold code, by the start of its hash.
_IN_TORCH_CACHE = "|".join((*TORCH_GRAPHS, TORCH_LOCKS, "triton", "dynamo", "[a-z2-7]{2}"))


def is_foreign(path: str) -> bool:
    """Whether a directory holds anything visible, and no compiler gives any of it its name.

    False where it cannot be read.
    """
    foreign = False
    with contextlib.suppress(PermissionError), os.scandir(path) as files:
        for file in files:
            if file.name == CACHE_TAG:  # which programs of any kind leave
                continue
            in_torch_cache = bool(file.is_dir() and re.fullmatch(_IN_TORCH_CACHE, file.name))
            if in_torch_cache and len(file.name) == 2:
                in_torch_cache = any(f"c{file.name}" == name[:3] for name in os.listdir(file))
            if split_name(file.name)[0] is not FileKind.STRAY or in_torch_cache:
                return False
            foreign = foreign or not file.name.startswith(".")
    return foreign


def foreign_directory(url: str) -> NoCacheError:
    """Return the error for a directory that holds files of other programs alone."""
    return NoCacheError(
        f"{url} is not a cache: it contains no entry of JAX or torch",
        hint="name a cache with -C",
    )


def nothing_there(url: str) -> NoCacheError:
    """Return the error for a place without entries that was named to be read."""
    from shlex import quote  # which a command that finds its cache does without

    path = "the path in the URL" if "://" in url else "the path"
    return NoCacheError(
        f"cache not found: {url}",
        hint=f"check {path}, or fill it: jaxcache push {quote(url)} -C DIR",
    )


def require_objects(store: Store, entries: Collection[object]) -> None:
    """Refuse a prefix of a bucket below which there is no object: nobody has filled it.

    Raises:
        NoCacheError
    """
    if store.remote and not entries and next(iter(store.list()), None) is None:
        raise nothing_there(store.url)


class EntryFile(NamedTuple):
    """A file that has the name of an entry."""

    info: FileInfo
    key_text: str
    kind: FileKind
    """:attr:`FileKind.ENTRY` or :attr:`FileKind.LEGACY_ENTRY`; STRAY if a person named the file."""

    @property
    def key(self) -> Key:
        """The parts of its key; the name of a file that is only read as an entry."""
        if self.kind is FileKind.STRAY:
            return Key("", self.key_text)
        module, _, digest = self.key_text.rpartition("-")
        return Key(sys.intern(module), digest)  # entries of one module share its name


class OtherFile(NamedTuple):
    """Any other file: locks, temporary files, side caches, our own, strays."""

    info: FileInfo
    kind: StrEnum
    """One of the layout's kinds."""


class UnknownDirectory(NamedTuple):
    """A directory of another program below a cache."""

    name: str
    files: int
    size_bytes: int
    is_cache: bool
    """Whether an entry is in it: then it is a cache of its own."""

    def __str__(self) -> str:
        size = f"{format_size(self.size_bytes)} in {format_count(self.files, 'file')}"
        return f"{size} of another {'cache' if self.is_cache else 'program'}"


class Inventory:
    """Every file of a cache under what it is. Nothing has been opened.

    Attributes:
        atimes: ``-atime`` files by the key they belong to, whether or not its entry exists.
        directories: XLA's autotune directory and our own, where they are.
    """

    def __init__(
        self,
        entries: Iterable[EntryFile] = (),
        atimes: dict[str, FileInfo] | None = None,
        others: Iterable[OtherFile] = (),
    ) -> None:
        self.entries = list(entries)
        self.others = list(others)
        self.atimes = {} if atimes is None else atimes
        self.directories: set[FileKind] = set()

    def files(self) -> Iterator[tuple[StrEnum, FileInfo]]:
        """Yield every file with what it is."""
        yield from ((FileKind.ATIME, info) for info in self.atimes.values())
        yield from ((e.kind, e.info) for e in self.entries)
        yield from ((o.kind, o.info) for o in self.others)

    def orphan_atimes(self) -> Iterator[tuple[str, FileInfo]]:
        """Yield the ``-atime`` files (key, file) whose entry is gone."""
        present = {entry.key_text for entry in self.entries if entry.kind is FileKind.ENTRY}
        return ((key, info) for key, info in self.atimes.items() if key not in present)

    def trusted(self) -> Iterator[tuple[FileInfo, str | None]]:
        """Yield the files that JAX loads, with their keys."""
        yield from ((e.info, e.key_text) for e in self.entries)
        yield from ((info, key) for key, info in self.atimes.items())

    def problems(self) -> Iterator[Problem]:
        """Yield what the names alone show to be wrong."""
        for key, info in self.orphan_atimes():
            yield Problem(info.name, "orphan-atime", "its entry is gone", key)
        for other in self.others:
            if other.kind is FileKind.TEMP:
                detail = f"{other.info.name} was left by a broken write"
                yield Problem(other.info.name, "temp-file", detail)
            elif other.kind is FileKind.STRAY:
                yield Problem(other.info.name, "stray-file", _why_stray(other.info))
        for directory in self.unknown_directories():
            detail = f"{directory}; jaxcache neither carries nor removes it"
            if directory.is_cache:
                detail = f"{directory}; to read that one, add /{directory.name} to -C"
            yield Problem(directory.name, "unknown-directory", detail)

    def unknown_directories(self) -> Iterator[UnknownDirectory]:
        """Yield the directories that belong to none of JAX, XLA, jaxcache and torch."""
        sizes: dict[str, list[int]] = {}
        caches: set[str] = set()
        for other in self.others:
            if other.kind is FileKind.UNKNOWN:
                name, _, inner = other.info.name.partition("/")
                of_one = sizes.setdefault(name, [])
                if other.info.type == "file":
                    of_one.append(other.info.size_bytes)
                if key_of(inner):
                    caches.add(name)
        if {*TORCH_GRAPHS, TORCH_LOCKS} & sizes.keys():
            sizes = {n: each for n, each in sizes.items() if not re.fullmatch(_IN_TORCH_CACHE, n)}
        return (
            UnknownDirectory(name, len(each), sum(each), name in caches)
            for name, each in sizes.items()
        )


def take_inventory(store: Store, *, deep: bool = False, start: str = "") -> Inventory:
    """List a cache directory and sort its files by kind.

    Args:
        deep: also walk XLA's autotune directory and our own, whose files count towards the size
            of the cache but are not entries.
        start: look only at names that begin like this.

    Raises:
        NoCacheError: the directory cannot be listed.
    """
    inventory = Inventory()
    for info in store.list(start=start):
        kind, key = split_name(info.name)
        # JAX follows a link with an entry's name, so it is listed; nobody here reads through it.
        if key is not None and info.type in ("file", "symlink"):
            if kind is FileKind.ATIME:
                inventory.atimes[key] = info
            else:
                inventory.entries.append(EntryFile(info, key, kind))
        elif info.type == "dir" and kind in (FileKind.AUTOTUNE, FileKind.OWN):
            inventory.directories.add(kind)
            if deep:
                directory = AUTOTUNE_DIR if kind is FileKind.AUTOTUNE else OWN_DIR
                for inner in store.walk(directory):
                    ours = kind is FileKind.OWN
                    what = FileKind(own_kind(inner.name)) if ours else kind
                    inventory.others.append(OtherFile(inner, what))
        elif info.type == "dir" and kind is FileKind.STRAY:
            files = list(islice(store.walk(info.name), _MAX_UNKNOWN_FILES)) or [info]
            inventory.others += (OtherFile(file, FileKind.UNKNOWN) for file in files)
        elif info.type == "file" and key is None:
            inventory.others.append(OtherFile(info, kind))
        else:
            inventory.others.append(OtherFile(info, FileKind.STRAY))
    return inventory


#: Files of jaxcache that a limit of the size does not count.
RECORD_KINDS = (FileKind.LEDGER, FileKind.OWN)
#: Kinds of files that no limit counts, because ``prune`` removes none of them; most are torch's.
UNCOUNTED_KINDS = {
    *(*RECORD_KINDS, FileKind.UNKNOWN, "compiler-files", "compiler-probe", "lock"),
    *("profile", "system", "triton", "unread"),
}


def counted_bytes(files: Iterable[tuple[StrEnum, FileInfo]]) -> int:
    """Sum up what a limit of the size counts: all files but jaxcache's own records."""
    return count_bytes(files)[0]


def count_bytes(files: Iterable[tuple[StrEnum, FileInfo]]) -> tuple[int, int]:
    """Sum up what a limit of the size counts, and jaxcache's own records, which are small.

    The ledger limits its size itself. What nothing here removes, such as files in a directory of
    another program, counts nowhere.
    """
    counted = records = 0
    for kind, info in files:
        if kind in RECORD_KINDS:
            records += info.size_bytes
        elif info.type == "file" and kind not in UNCOUNTED_KINDS:
            counted += info.size_bytes
    return counted, records


def _why_stray(info: FileInfo) -> str:
    if info.type == "symlink":
        return "a symbolic link, which is not followed"
    if info.type == "dir":
        return "a directory has its name"
    if info.type == "other":
        return "not a regular file"
    if info.name.startswith("._"):
        return "attributes of a file, which macOS keeps beside it"
    return "not a name that JAX or XLA gives"


def find_caches(path: str) -> tuple[str, ...]:
    """Return the paths of the caches below a directory, sorted; empty if it is a cache itself.

    Looks at names only, and no further into a directory than to its first entry. Links are not
    followed.
    """
    if is_remote(path) or not os.path.isdir(path):
        return ()
    budget = [_MAX_NAMES]
    is_cache, below = _look(path, budget)
    return () if is_cache else tuple(sorted(_search(below, 1, budget)))


def _search(directories: Sequence[str], depth: int, budget: list[int]) -> Iterator[str]:
    for directory in directories:
        is_cache, below = _look(directory, budget)
        if is_cache or os.path.isdir(os.path.join(directory, OWN_DIR, "ledger")):
            yield directory
        elif depth < _MAX_DEPTH:
            yield from _search(below, depth + 1, budget)


def _look(path: str, budget: list[int]) -> tuple[bool, list[str]]:
    """Return whether a directory has an entry, and if not, the directories in it."""
    directories = []
    try:
        with os.scandir(path) as names:
            for name in names:
                budget[0] -= 1
                if key_of(name.name) or name.name in TORCH_GRAPHS:
                    return True, []
                if budget[0] < 0:
                    break
                if name.name != OWN_DIR and name.is_dir(follow_symlinks=False):
                    directories.append(name.path)
    except OSError:  # it cannot be read
        pass
    return False, directories


_Item = TypeVar("_Item")

LOCK_TIMEOUT_SECONDS = 10.0
#: After this long the lock is let go, at the next file. Half of what the lock rules allow,
#: because unlinking one large file can take milliseconds.
HOLD_SECONDS = 0.025
#: How long others get. filelock polls every 50 ms, so this lets one process in ten in at once.
PAUSE_SECONDS = 0.003


def run_under_lock(
    store: Store,
    work: Callable[[_Item], None],
    items: Sequence[_Item],
    *,
    file_lock: "FileLock | None" = None,
) -> float:
    """Do short work on each item in order, beside the compiler that uses the cache.

    Args:
        file_lock: the locks of single files, which ``work`` takes; None where JAX's lock is for
            all: then it is held, and released every :data:`HOLD_SECONDS`.

    Returns:
        The longest that JAX's lock was held at a stretch, in seconds.

    Raises:
        LockedError: the lock was not obtained; the items until then are done.
    """
    done = 0
    longest = 0.0
    while done < len(items):
        if file_lock is not None:
            work(items[done])
            done += 1
        else:
            if done:
                time.sleep(PAUSE_SECONDS)
            with store.lock(timeout_seconds=LOCK_TIMEOUT_SECONDS):
                started = time.perf_counter()
                while done < len(items) and time.perf_counter() - started < HOLD_SECONDS:
                    work(items[done])
                    done += 1
                longest = max(longest, time.perf_counter() - started)
        report_progress(done, len(items))
    return longest


def hold_file_lock(
    store: Store, name: str, file_lock: "FileLock | None"
) -> AbstractContextManager[bool]:
    """Hold the lock of one file, if it has one; False if another process holds it."""
    return file_lock(store, name) if file_lock else nullcontext(True)


#: Nanoseconds since the epoch, little-endian.
ATIME_BYTES = 8
_LAST_NS = 2**63 - 1


def atime_name(file: str) -> str | None:
    """The ``-atime`` file of an entry; None for a file that has none."""
    return file.removesuffix(CACHE_SUFFIX) + ATIME_SUFFIX if file.endswith(CACHE_SUFFIX) else None


def parse_atime(data: bytes) -> int | None:
    """Read what an ``-atime`` file holds; None if it is damaged."""
    stamp_ns = int.from_bytes(data, "little")
    return stamp_ns if len(data) == ATIME_BYTES and stamp_ns <= _LAST_NS else None


def new_atime(file: str, used_ns: int, *, mtime_ns: int | None = None) -> NewFile | None:
    """The date of an entry as a file to write; None for an entry without suffix, which has none."""
    name = atime_name(file)
    stamp = min(max(used_ns, 0), _LAST_NS).to_bytes(ATIME_BYTES, "little")
    return NewFile(name, [stamp], mtime_ns) if name else None


def write_atime(store: Store, file: str, used_ns: int, *, replace: bool = False) -> None:
    """Date an entry that is there, or about to be written.

    Args:
        file: the entry; one without suffix has no date.
        replace: overwrite the date that is there.

    Raises:
        StoreError
    """
    if new := new_atime(file, used_ns):
        with contextlib.suppress(ExistsError):
            store.write(new.name, new.chunks, replace=replace)


def remove_entry(store: Store, entry: FileInfo) -> bool:
    """Delete an entry and then its date; False if it has been replaced or is gone.

    Raises:
        StoreError
    """
    if not store.delete(entry.name, expected=entry):
        return False
    if stamp := atime_name(entry.name):
        store.delete(stamp)
    return True


def move_entry_out(store: Store, file: str, directory: str) -> None:
    """Move an entry into a directory below the cache, and then its date.

    Raises:
        StoreError
    """
    store.rename(file, f"{directory}/{file}")
    if (stamp := atime_name(file)) and find(store, stamp):
        store.rename(stamp, f"{directory}/{stamp}")


def move_entry_in(
    store: Store, source: str, file: str, atime: FileInfo | None, *, used_ns: int | None = None
) -> None:
    """Move the date of an entry into the cache, and then the entry.

    Args:
        source: the current path of the entry.
        atime: its date there.
        used_ns: the date to write if it has none; None writes no date.

    Raises:
        ExistsError: the cache has such an entry.
        StoreError
    """
    if atime is not None:
        try:
            store.rename(atime.name, atime.name.rpartition("/")[2])
        except ExistsError:
            store.delete(atime.name)
    elif used_ns is not None:
        write_atime(store, file, used_ns)
    store.rename(source, file)


def find(store: Store, name: str) -> FileInfo | None:
    """Look up a name; None if it does not exist.

    Raises:
        StoreError
    """
    try:
        return store.info(name)
    except MissingError:
        return None


#: More than passes between making a directory and locking it.
_UNLOCKED_SECONDS = 60
_INCOMING_DIR = f"{OWN_DIR}/incoming"


@contextlib.contextmanager
def staging(store: Store) -> Iterator[str]:
    """Reserve a prefix for the names of temporary files while the context lasts.

    Raises:
        StoreError
    """
    token = os.urandom(8).hex()
    with store.hold(f"{_INCOMING_DIR}/{TEMP_PREFIX}{token}"):
        yield f"{_INCOMING_DIR}/{token}"


@contextlib.contextmanager
def scratch_directory(purpose: str) -> Iterator[str]:
    """A directory among the system's temporary files, for as long as the context lasts.

    Directories that killed commands left, whose lock no process holds, are removed first.

    Raises:
        JaxcacheError: ``io-error``: it cannot be made.
    """
    import tempfile  # which a listing does without

    top = "the directories for temporary files"
    prefix = f"{TEMP_PREFIX}{purpose}-"
    try:
        top = tempfile.gettempdir()
        _delete_scratch(top)
        directory = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    except OSError as error:
        raise JaxcacheError(
            f"cannot create a directory in {top}: {(error.strerror or str(error)).lower()}",
            code="io-error",
            hint="set TMPDIR to another directory for temporary files",
        ) from error
    with directory as path, open_directory(path) as opened:
        wait_for_flock(opened, shared=True)
        yield path


def _delete_scratch(top: str) -> None:
    import shutil

    with contextlib.suppress(OSError), os.scandir(top) as names:
        for item in names:
            if not item.name.startswith(TEMP_PREFIX):
                continue
            with contextlib.suppress(OSError), open_directory(item.path, follow=False) as directory:
                status = os.fstat(directory)
                old = time.time() - status.st_mtime > _UNLOCKED_SECONDS
                if old and status.st_uid == os.geteuid():
                    require_flock(directory)
                    shutil.rmtree(item.path, ignore_errors=True)


def find_leftovers(store: Store) -> Iterator[FileInfo]:
    """Yield temporary files below the root, whether or not they are in use."""
    for directory in (OWN_DIR, AUTOTUNE_DIR):
        yield from (info for info in store.walk(directory) if is_temporary(info.name))


def is_temporary(name: str) -> bool:
    """Whether it is a name that only unfinished work has."""
    return is_staged(name) or name.rpartition("/")[2].startswith(TEMP_PREFIX)


def is_staged(name: str) -> bool:
    """Whether it is one of the files of a :func:`staging`."""
    return name.startswith(f"{_INCOMING_DIR}/")


def remove_leftover(store: Store, name: str) -> bool:
    """Remove an abandoned temporary file; False if it is in use, or may be.

    Raises:
        StoreError
    """
    directory, _, base = name.rpartition("/")
    if not is_staged(name) or base.startswith(TEMP_PREFIX):
        return store.delete_abandoned(name)
    alive = f"{directory}/{TEMP_PREFIX}{base.partition('-')[0]}"
    with contextlib.suppress(MissingError):
        store.info(alive)
        if not store.delete_abandoned(alive):
            return False
    return store.delete(name)


def remove_leftovers(store: Store) -> None:
    """Remove all abandoned temporary files."""
    if store.remote:  # an object store keeps no temporary files
        return
    with contextlib.suppress(StoreError):
        names = [i.name for i in store.list() if i.name.startswith(TEMP_PREFIX)]
        names += [i.name for i in find_leftovers(store)]
        for name in names:
            with contextlib.suppress(StoreError):
                remove_leftover(store, name)
