"""Documents of the commands under *Maintain*."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypedDict

from jaxcache.cache.prune.removable import Removal, SkippedRemoval
from jaxcache.model import Problem


class Repaired(TypedDict):
    action: str | None


class Verified(TypedDict):
    level: Literal["quick", "full", "load"]
    checked: int
    ok: int
    proven: int
    not_provable: int


class VerifyDocument(Verified):
    dry_run: bool | None
    problems: list[Annotated[Problem, Repaired]]


class RestoredFile(TypedDict):
    key: str | None
    file: str
    size_bytes: int


class LeftFile(TypedDict):
    key: str | None
    file: str
    reason: str


class RestoreDocument(TypedDict):
    dry_run: bool
    restored: list[RestoredFile]
    left: list[LeftFile]


class SealSums(TypedDict):
    sealed: int
    skipped: int
    size_bytes_before: int | None
    size_bytes_after: int | None
    saved_bytes: int | None


class Sealing(TypedDict):
    dry_run: bool
    level: int | None
    summary: SealSums


class PruneDocument(TypedDict):
    dry_run: bool
    policy: str | None
    removed: list[Removal]
    kept: int
    freed_bytes: int
    size_bytes_before: int
    size_bytes_after: int
    lost_compile_seconds: float
    protected: int
    held: Mapping[str, int]
    evidence: Mapping[str, int]
    unmet: list[str]
    spared: list[SkippedRemoval]
    longest_lock_seconds: float | None


class Pinned(TypedDict):
    pinned: list[str]


class Unpinned(TypedDict):
    unpinned: list[str]
