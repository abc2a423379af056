# Written by tools/gen.py from the classes of options; for type checkers alone.
from collections.abc import Sequence
from datetime import datetime
from os import PathLike
from typing import Literal, TypedDict

class ListKeywords(TypedDict, total=False):
    filters: str | PathLike[str] | Sequence[str | PathLike[str]]
    sort: str | PathLike[str] | None
    limit: int | None
    details: bool

class VerifyKeywords(TypedDict, total=False):
    filters: str | PathLike[str] | Sequence[str | PathLike[str]]
    level: Literal["quick", "full", "load"]
    decode: bool
    atimes: bool
    grace: float | str | None
    jobs: int | None
    python: str | PathLike[str] | None

class SealKeywords(TypedDict, total=False):
    filters: str | PathLike[str] | Sequence[str | PathLike[str]]
    recompress: int | None
    jobs: int | None

class PruneKeywords(TypedDict, total=False):
    max_size: int | str | None
    max_entries: int | None
    unused_for: float | str | None
    older_than: float | str | None
    used_since: int | str | datetime | None
    keep_last: int | None
    policy: Literal["lru", "cost"]
    filters: str | PathLike[str] | Sequence[str | PathLike[str]]
    keep: str | PathLike[str] | Sequence[str | PathLike[str]]
    orphans: bool
    legacy: bool
    untuned: bool
    side_caches: bool
    quarantine: bool
    grace: float | str | None

class RemovalKeywords(TypedDict, total=False):
    filters: str | PathLike[str] | Sequence[str | PathLike[str]]

class ExportKeywords(TypedDict, total=False):
    filters: str | PathLike[str] | Sequence[str | PathLike[str]]
    level: int | None
    since: str | PathLike[str] | None
    sign: str | PathLike[str] | Sequence[str | PathLike[str]]
    side_caches: bool | None

class ImportKeywords(TypedDict, total=False):
    on_conflict: Literal["keep", "replace", "fail"]
    atomic: bool
    require_signed: bool
    side_caches: bool
    level: int | None
    jobs: int | None
    allow_large: bool

class PushKeywords(TypedDict, total=False):
    include: str | PathLike[str] | Sequence[str | PathLike[str]]
    exclude: str | PathLike[str] | Sequence[str | PathLike[str]]
    filters: str | PathLike[str] | Sequence[str | PathLike[str]]
    max_size: int | str | None
    make_room: bool
    sign: str | PathLike[str] | Sequence[str | PathLike[str]]
    require_signed: bool
    side_caches: bool
    ledger: bool
    jobs: int | None
    allow_large: bool

class RunKeywords(TypedDict, total=False):
    target: str | PathLike[str] | None
    autotune_from: str | PathLike[str] | None
    require_tuned: bool
    processes: int | None
    timeout: float | str | None
    portable: bool
    force_cache_dir: bool
    check: bool
    no_write: bool
    record: str | PathLike[str] | None
    collect: int | None
    patience: float | str | None
    live: bool
    tiers: str | PathLike[str] | Sequence[str | PathLike[str]]
    guard: str | PathLike[str] | None
    components: bool

class WarmKeywords(TypedDict, total=False):
    target: str | PathLike[str] | None
    autotune_from: str | PathLike[str] | None
    require_tuned: bool
    processes: int | None
    timeout: float | str | None
    portable: bool
    force_cache_dir: bool
    check: bool
    no_write: bool
    record: str | PathLike[str] | None
    collect: int | None
    patience: float | str | None
    live: bool
    tiers: str | PathLike[str] | Sequence[str | PathLike[str]]
    guard: str | PathLike[str] | None
    components: bool
    python: str | PathLike[str] | None
    platform: str | PathLike[str] | None
    devices: int | None
    jobs: int

class CompileKeywords(TypedDict, total=False):
    target: str | PathLike[str] | None
    autotune_from: str | PathLike[str] | None
    require_tuned: bool
    jobs: int | None
    check: bool
    shard: str | PathLike[str] | None
    python: str | PathLike[str] | None
    used_at: str | PathLike[str] | None
    portable: bool
    devices: int | None
    max_memory: int | str | None
    dask: str | PathLike[str] | None

class DoctorKeywords(TypedDict, total=False):
    python: str | PathLike[str] | None
    max_decoded: int
