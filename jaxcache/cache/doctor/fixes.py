"""The repairs that ``doctor --fix`` makes by itself: nothing is lost, no result changes."""

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from jaxcache.cache.doctor.inputs import Facts, FixKind
from jaxcache.cache.entry_files import write_atime
from jaxcache.cache.under_lock import run_under_lock
from jaxcache.store.base import Store, StoreError
from jaxcache.store.local import LocalStore
from jaxcache.units import format_count


@dataclass(frozen=True, slots=True)
class Fix:
    """One repair of some files."""

    kind: FixKind
    files: tuple[str, ...]

    def __str__(self) -> str:
        if self.kind == "write-atime":
            return f"{format_count(len(self.files), '-atime file')} written"
        return f"write permission of others taken from {format_count(len(self.files), 'file')}"


def apply_fixes(store: Store, facts: Facts, repairs: Sequence[Fix]) -> tuple[str, ...]:
    """Make repairs; a file that cannot be mended is left, and the next examination says so.

    Returns:
        What was done, one sentence each.

    Raises:
        LockedError: JAX's lock was not obtained.
    """
    done = []
    for repair in repairs:
        mended: list[str] = []
        if repair.kind == "write-atime":
            mended = _write_atimes(store, facts, repair.files)
        elif isinstance(store, LocalStore):
            mended = [file for file in repair.files if _drop_permissions(store, file)]
        if mended:
            done.append(str(Fix(repair.kind, tuple(mended))))
    return tuple(done)


def _write_atimes(store: Store, facts: Facts, files: Sequence[str]) -> list[str]:
    """Date each entry to its last use, as JAX does: 8 bytes, little-endian nanoseconds."""
    used = {e.file: e.last_used_ns for e in facts.cache.entries}
    written: list[str] = []

    def date(file: str) -> None:
        with contextlib.suppress(StoreError):
            store.info(file)  # an entry that was pruned meanwhile needs none
            if write_atime(store, file, used[file]):
                written.append(file)

    run_under_lock(store, date, [file for file in files if file in used])
    return written


def _drop_permissions(store: LocalStore, file: str) -> bool:
    """Take write permission from group and others; no link inside the cache is followed."""
    directory, _, name = file.rpartition("/")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with store.directory(directory) as opened:
            fd = os.open(name, flags, dir_fd=opened)
        try:
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            os.fchmod(fd, mode & ~(stat.S_IWGRP | stat.S_IWOTH))
        finally:
            os.close(fd)
    except OSError:
        return False
    return True
