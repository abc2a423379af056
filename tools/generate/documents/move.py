"""Documents of the commands under *Move*, but for those of CI."""

from typing import Annotated, TypedDict

from jaxcache.cache.bundle.compat import Host
from jaxcache.cache.move.plan import Step
from jaxcache.cache.prune.removable import Removal
from jaxcache.model import Problem


class ForecastCounts(TypedDict):
    looked_at: int
    hit: int
    miss: int
    unknown: int
    message: str | None


class ExportDocument(TypedDict):
    files: list[str]
    size_bytes: int
    entries: int
    side_files: int
    payload_bytes: int
    source_bytes: int
    compile_seconds: float
    manifest_sha256: str
    signatures: int
    forecast: ForecastCounts | None
    left_out: list[Problem]


class ImportedFile(TypedDict):
    key: str | None
    file: str
    action: str
    detail: str | None
    payload_bytes: int | None
    compile_seconds: float | None
    payload_differs: bool
    outlook: str | None
    reason: str | None
    restore_to: str | None


class ImportSums(TypedDict):
    write: int
    heal: int
    replace: int
    same: int
    present: int
    keep: int
    blocked: int
    left: int
    damaged: int
    untrusted: int
    no_room: int
    written: int
    conflicts: int


class Outlook(TypedDict):
    hit: int
    miss: int
    unknown: int


class FailedFile(TypedDict):
    file: str
    detail: str


class ImportDocument(TypedDict):
    bundle: str
    manifest_sha256: str | None
    dry_run: bool
    rolled_back: bool
    signed_by: list[str]
    signature_warning: str | None
    entries: list[ImportedFile]
    summary: ImportSums
    outlook: Outlook
    forecast: ForecastCounts | None
    host: Host | None
    failed: list[FailedFile]
    left_out: list[Problem]


class Detailed(TypedDict):
    detail: str


class SyncDocument(TypedDict):
    source: str
    dry_run: bool
    carried: list[Step]
    carried_bytes: int
    present: int
    no_room: list[Step]
    gone: list[Step]
    unfinished: list[Step]
    untrusted: list[Step]
    left_out: list[Problem]
    failed: list[Annotated[Step, Detailed]]
    removed: list[Removal]
    max_size_unmet: bool
    ledger_segments: int
    forecast: ForecastCounts | None
