"""The words of the rest of the program: files, entries, problems. Frozen, stdlib only."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum, StrEnum
from typing import Any, Literal, NamedTuple, Protocol

Codec = Literal["zstd", "zlib", "unknown"]
Platform = Literal["cpu", "gpu", "tpu", "unknown"]
FileType = Literal["file", "dir", "symlink", "other"]

#: The tuning of an entry that was compiled for a GPU that was not there.
UNTUNED = "untuned"
#: Kinds of problems, worst first within a group; part of the JSON contract (``verify``).
ProblemKind = Literal[
    "empty", "truncated", "bad-codec", "trailing-bytes", "bad-header", "bad-payload",
    "module-mismatch", "digest-mismatch", "checksum-mismatch", "load-failed", "load-crashed",
    "not-loadable-here",
    "missing-atime", "bad-atime", "orphan-atime", "legacy-name", "temp-file", "stray-file",
    "unsafe-permissions", "foreign-owner", "unsealed", "unreadable",
    "changed-since-recorded", "unknown-directory", "unknown-format",
    # of torch's caches:
    "key-mismatch", "wrong-class", "source-mismatch", "dangling-reference", "foreign-globals",
    "missing-source",
]  # fmt: skip
#: Damage that an entry has too while JAX, which writes in place, is writing it.
CUT_SHORT: frozenset[ProblemKind] = frozenset({"empty", "truncated"})
#: An entry that is cut short and younger than this may still be being written.
GRACE_NS = 60 * 10**9


#: Called with (done, total) now and then.
Progress = Callable[[int, int], None]
_progress: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextmanager
def reporting_to(show: Progress | None) -> Iterator[None]:
    """Let a function show what the work inside reports; other threads report nothing."""
    token = _progress.set(show)
    try:
        yield
    finally:
        _progress.reset(token)


def report_progress(done: int, total: int) -> None:
    """Report how much of a piece of work is done, where somebody wants to see it."""
    if show := _progress.get():
        show(done, total)


class Depth(IntEnum):
    """How much of an entry must be read to know a fact; each includes those before."""

    LISTED = 0
    """Its name, size and times, as the directory lists them."""
    DATED = 1
    """Its ``-atime`` file."""
    OPENED = 2
    """The start of the entry itself."""
    AT_HAND = 3
    """All of it, as far as that takes no time to speak of."""
    DECODED = 4
    """All of it."""


class FileInfo(NamedTuple):
    """One name in a store, as a listing shows it, without having been opened.

    A NamedTuple and not a dataclass: a listing makes one per file, 200,000 at a time, and a
    tuple is built three times faster.
    """

    name: str
    """Relative to the store's root, ``/``-separated; odd bytes as surrogate escapes."""
    type: FileType
    size_bytes: int
    mtime_ns: int
    atime_ns: int
    inode: int
    mode: int
    """Permission bits and file type as in ``st_mode``; 0 where a store has none."""
    owner: int
    """Numeric user id; -1 where a store has none."""
    etag: str = ""
    """An object store's name for this version of the bytes; empty on a file system."""
    ctime_ns: int = 0
    """The last change of the file or of its inode; 0 where a store has none."""


def result_repr(result: Any) -> str:
    """Return the repr of a result: what is long is counted, and what is empty is left out."""
    from dataclasses import fields  # which a start of a program does without

    shown = []
    for name in (f.name for f in fields(result)):
        value = getattr(result, name)
        if isinstance(value, tuple | list | dict | frozenset):
            value = f"<{len(value):,}>" if value else None
        elif value is not None:
            text = repr(value)
            value = text if len(text) <= 100 else f"<{type(value).__name__}>"
        shown += [f"{name}={value}"] if value is not None else []
    return f"{type(result).__name__}({', '.join(shown)})"


#: Lines that the text of a plan lists.
_LISTED = 10


def plan_text(total: str, things: Sequence[object]) -> str:
    """Return a plan as text: the total, and below it the first of what it is about."""
    lines = [f"  {thing!r}" for thing in things[:_LISTED]]
    more = len(things) - len(lines)
    return "\n".join([total, *lines, *([f"  and {more:,} more"] if more else [])])


def short_repr(kind: str, key: str, digest: str, *facts: str) -> str:
    """Return the repr of what an entry's key names: with 12 digits of its hash, and escaped."""
    name = repr(key.removesuffix(digest) + digest[:12])[1:-1]
    return f"<{kind} {name}: {', '.join(fact for fact in facts if fact)}>"


class Problem(NamedTuple):
    """Something wrong with one file: a finding, never an exception."""

    file: str
    kind: ProblemKind
    detail: str
    key: str | None = None


class Files(Protocol):
    """Every file of a cache under what it is; nothing has been opened."""

    def files(self) -> Iterator[tuple[StrEnum, FileInfo]]:
        """Yield every file with its kind."""

    def problems(self) -> Iterator[Problem]:
        """Yield what the names alone show to be wrong."""

    def trusted(self) -> Iterator[tuple[FileInfo, str | None]]:
        """Yield the files that whoever can write them could have run, with their keys."""
