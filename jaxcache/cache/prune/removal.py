"""Removals with their reasons, as ``prune`` and ``rm`` plan and report them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from jaxcache.model import FileInfo, result_repr, short_repr
from jaxcache.units import format_compiling, format_count, format_duration, format_size

if TYPE_CHECKING:
    from jaxcache.cache.prune.plan import PrunePlan

#: Why something goes; part of the JSON contract (``prune``: ``removed[].reason``).
RemovalReason = Literal[
    "max-size", "max-entries", "unused-for", "older-than", "used-since", "keep-last",
    "legacy", "untuned", "orphan-atime", "temp-file", "quarantine", "requested", "duplicate",
    "unreferenced",
]  # fmt: skip
#: The share of ``--max-size`` that files other than entries may take without a note.
_NOTABLE = 0.1
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


def describe(removed: Sequence[Removal], verb: str) -> str:
    """Return what is removed, its size and its compile time, without a full stop."""
    entries = count_entries(removed)
    parts = [format_count(entries, "entry")] if entries or len(removed) == entries else []
    if others := len(removed) - entries:
        parts.append(format_count(others, "other file"))
    seconds = [r.compile_seconds for r in removed if r.compile_seconds is not None]
    each = " each" if entries > 1 else ""
    lost = format_compiling(sum(seconds), entries) if seconds else f"unknown compile time{each}"
    freed = format_size(freed_bytes(removed))
    cost = f", {lost}" if entries else ""
    return f"{verb} {' and '.join(parts)} ({freed}{cost})"


def plan_notes(plan: "PrunePlan") -> Iterator[str]:
    """Yield the bounds that cannot be met, and what a rule or bound names but stays, with why."""
    holds = ", ".join(_hold(plan, why, count) for why, count in plan.held.items())
    if not plan.unmet and plan.protected:
        yield f"not removed: {holds or format_count(plan.protected, 'entry')}"
    if plan.used_again and plan.removals:
        again = format_count(plan.used_again, "entry")
        yield f"not removed: {again} written long ago, but used since (jaxcache ls shows when)"
    undated = plan.evidence.get("mtime", 0)
    if undated and not plan.records_reads:
        entries = format_count(sum(plan.evidence.values()), "entry")
        yield f"{undated:,} of {entries} chosen by the date of writing: nothing recorded a use"
    most = (plan.options.max_size_bytes if plan.options else None) or math.inf
    if plan.fixed_bytes > most * _NOTABLE:
        size = format_size(plan.fixed_bytes)
        others = plan.options.other_kinds if plan.options else ""
        remove = f"; {others} removes those that it may remove" if others else ""
        yield f"{size} of {format_size(int(most))} are files other than entries{remove}"
    for reason in plan.unmet:
        bound = "the limit"
        if plan.options and reason == "max-size":
            bound = format_size(plan.options.max_size_bytes or 0)
        elif plan.options:
            bound = format_count(plan.options.max_entries or 0, "entry")
        yield f"cannot reach {bound}: {holds or 'nothing else may be removed'}"


def _hold(plan: "PrunePlan", why: Hold, count: int) -> str:
    entries = f"{format_count(count, 'entry')} {'is' if count == 1 else 'are'}"
    if why == "kept":
        keep, filters = (plan.options.keep, plan.options.filters) if plan.options else ((), ())
        by = {"kept by --keep": keep, "outside --filter": filters}
        return f"{entries} {' or '.join(text for text, applies in by.items() if applies) or 'kept'}"
    if why == "pinned":
        return f"{entries} pinned (jaxcache pin lists them)"
    seconds = plan.options.grace_seconds if plan.options else 0
    grace = f"{seconds:g} s" if seconds < 120 else format_duration(seconds)
    return f"{entries} younger than {grace} (--grace 0s removes them)"
