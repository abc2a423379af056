"""Documents of ``jaxcache ci``."""

from collections.abc import Mapping
from typing import TypedDict

from jaxcache.cache.ci.save import DropReason, Why
from tools.generate.documents.move import FailedFile


class MissReason(TypedDict):
    reason: str
    entries: int


class CiRestoreDocument(TypedDict):
    source: str
    cache_hit: bool
    lookup_only: bool
    entries: int
    found: int
    present: int
    written: int
    left_out: int
    untrusted: int
    stored_seconds: float
    outlook: Mapping[str, int]
    misses: list[MissReason]
    trouble: str | None
    failed: list[FailedFile]


class DroppedEntry(TypedDict):
    key: str
    reason: DropReason


class CiSaveDocument(TypedDict):
    target: str
    dry_run: bool
    saved: bool
    why: Why
    finished: bool
    key: str | None
    digest: str
    entries: int
    new: list[str]
    used: list[str]
    unused: list[str]
    unknown: list[str]
    witness: str
    dropped: list[DroppedEntry]
    saved_seconds: float
    new_seconds: float
    written: int
    size_bytes: int
    pruned: int
    left_out: list[str]
    failed: list[str]
