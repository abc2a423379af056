"""Removals with their reasons, as ``prune`` and ``rm`` plan and report them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jaxcache.model import FileInfo, result_repr, short_repr
from jaxcache.units import format_compiling, format_count, format_size

#: Why something goes; part of the JSON contract (``prune``: ``removed[].reason``).
RemovalReason = Literal[
    "max-size", "max-entries", "unused-for", "older-than", "used-since", "keep-last",
    "legacy", "untuned", "orphan-atime", "temp-file", "quarantine", "requested", "duplicate",
    "unreferenced",
]  # fmt: skip
#: What goes: an entry, or one file of another kind.
RemovalKind = Literal[
    "entry", "side-cache", "orphan-atime", "temp-file", "quarantine", "generated-code",
]  # fmt: skip
#: Why something stays that a rule or bound names.
Hold = Literal["young", "pinned", "kept"]


class Removal(NamedTuple):
    """One thing that goes. A NamedTuple because a plan holds one per entry of a large cache."""

    kind: RemovalKind
    file: FileInfo
    """As it was when the plan was made: anything else under the name is left alone."""
    atime: FileInfo | None
    """The entry's ``-atime`` file, which goes right after it."""
    key: str | None
    """The key of an entry; None for any other file."""
    module: str
    reason: RemovalReason
    last_used_ns: int
    compile_seconds: float | None

    def __repr__(self) -> str:
        key = self.key or self.file.name
        digest = key.removeprefix(f"{self.module}-") if self.key else ""
        size = f"{self.size_bytes:,} bytes"
        return short_repr(type(self).__name__, key, digest, size, self.reason)

    @property
    def size_bytes(self) -> int:
        """The bytes that it frees, its ``-atime`` file included."""
        return self.file.size_bytes + (self.atime.size_bytes if self.atime else 0)


@dataclass(frozen=True, slots=True)
class SkippedRemoval:
    """One thing that a plan names and that is still there, or that another process removed."""

    removal: Removal
    why: Literal["changed", "used", "gone", "failed"]
    detail: str
    """For people: the system's reason where it failed."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The outcome of a plan."""

    __repr__ = result_repr

    removed: tuple[Removal, ...]
    spared: tuple[SkippedRemoval, ...]
    longest_hold_seconds: float
    """The longest that JAX's lock was held at a stretch."""

    @property
    def failed(self) -> bool:
        """Whether something could not be removed that should have been."""
        return any(s.why == "failed" for s in self.spared)

    def __str__(self) -> str:
        return describe(self.removed, "removed") if self.removed else "nothing was removed"


def freed_bytes(removals: Iterable[Removal]) -> int:
    """Sum up what removals free."""
    return sum(r.size_bytes for r in removals)


def lost_compile_seconds(removals: Iterable[Removal]) -> float:
    """Sum up the compile seconds that removals give up, as far as they are known."""
    return math.fsum(r.compile_seconds or 0.0 for r in removals)


def count_entries(removals: Iterable[Removal]) -> int:
    """Count the entries among what is removed."""
    return sum(r.kind == "entry" for r in removals)


def format_counts(entries: int, files: Sequence[Removal]) -> str:
    """Return a number of entries, and of the files of other kinds."""
    parts = [format_count(entries, "entry")] if entries or not files else []
    quarantined = sum(r.kind == "quarantine" for r in files)
    if quarantined:
        parts.append(format_count(quarantined, "quarantined file"))
    if others := len(files) - quarantined:
        parts.append(format_count(others, "other file"))
    return " and ".join(parts)


def describe(removed: Sequence[Removal], verb: str) -> str:
    """Return what is removed, its size and its compile time, without a full stop."""
    entries = count_entries(removed)
    counts = format_counts(entries, [r for r in removed if r.kind != "entry"])
    seconds = [r.compile_seconds for r in removed if r.compile_seconds is not None]
    each = " each" if entries > 1 else ""
    lost = format_compiling(sum(seconds), entries) if seconds else f"unknown compile time{each}"
    freed = format_size(freed_bytes(removed))
    cost = f", {lost}" if entries else ""
    return f"{verb} {counts} ({freed}{cost})"
