"""The type of each document of `--json`.

A document that is a class of results is described by the class. Where a renderer joins several, the
fields are declared here; the tests hold every output to them. `Annotated[A, B]` has the fields of
both, and `A | B` is either.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict

from jaxcache.cache.bundle.compat import Host
from jaxcache.cache.ci.restore import CiKey, RestoreResult
from jaxcache.cache.ci.save import SaveResult
from jaxcache.cache.diff import ContentMismatch, DiffEntry
from jaxcache.cache.doctor.inputs import Finding
from jaxcache.cache.doctor.run_checks import BugReport, Diagnosis, Versions
from jaxcache.cache.explain.keys import Churn
from jaxcache.cache.explain.sides import Comparison, Difference
from jaxcache.cache.ledger.segments import Uses
from jaxcache.cache.listing import Group, Listing
from jaxcache.cache.move.plan import Step
from jaxcache.cache.prune.removable import Removal, SkippedRemoval
from jaxcache.cache.recipe import Environment, RecipeRow
from jaxcache.cache.seal import SealResult
from jaxcache.cache.show import EntryDetails
from jaxcache.cache.stats import Stats
from jaxcache.cache.trust import TrustedKey, TrustedProject
from jaxcache.cache.verify.repair import Restoration
from jaxcache.core.signing import TierRefusal
from jaxcache.entry.summary import Entry
from jaxcache.layouts.torch.explain import GraphDetails
from jaxcache.layouts.torch.scan import GraphEntry
from jaxcache.model import Problem
from jaxcache.warm.compiling.worker import CompileResult
from jaxcache.warm.crosshost.target_profile import ProfileDifference, TargetCheck
from jaxcache.warm.report.report import Report
from jaxcache.warm.torch.run import TorchReport
from jaxcache.warm.where import Use

#: A time as RFC 3339 in UTC.
Time = NewType("Time", str)


class Requests(TypedDict):
    requests: Mapping[str, int]
    requests_total: int
    sent_bytes: int
    received_bytes: int
    retries: int
    throttled: int


class Metered(TypedDict):
    """What ``--requests`` adds, of each command that has the option."""

    remote: NotRequired[Requests]


class ErrorDetails(TypedDict):
    code: str
    message: str
    hint: str | None
    exit_code: int


class ErrorDocument(TypedDict):
    error: ErrorDetails


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


class InModules(TypedDict):
    modules: list[str]


class Caused(TypedDict):
    cause: str


class ExplainDocument(TypedDict):
    left: str
    right: str
    same: int
    differences: list[Annotated[Difference, InModules]]
    comparisons: list[Comparison]
    verdict: list[str]
    hits: NotRequired[list[Annotated[Comparison, Caused]]]
    advice: NotRequired[list[Finding]]


class ChurnDocument(TypedDict):
    modules: list[Churn]


class WhereDocument(TypedDict):
    processes: list[Use]


class DiffedSide(TypedDict):
    location: str
    entries: int
    only_size_bytes: int
    only_compile_seconds: float
    damaged: list[Problem]


class DiffDocument(TypedDict):
    left: DiffedSide
    right: DiffedSide
    equal: bool
    same: int
    only_left: list[DiffEntry]
    only_right: list[DiffEntry]
    differing: list[ContentMismatch]


class Placed(TypedDict):
    cache_dir: str | None


class CompileSums(TypedDict):
    requested: int
    written: int
    already_cached: int
    missing: int
    failed: int
    refused: int
    unreached: int
    wall_seconds: float
    compile_seconds: float


class CompileDocument(TypedDict):
    recipe: str
    check: bool
    modules: list[CompileResult]
    summary: CompileSums
    notes: list[str]
    interrupted: bool


class ProfileDocument(TypedDict):
    profile: Mapping[str, Any]
    differences: list[ProfileDifference] | None


class Grouped(TypedDict):
    groups: NotRequired[list[Group]]
    entries: list[Entry | GraphEntry]


class RecipeDetails(TypedDict):
    size_bytes: int
    digest: str
    environments: list[Environment]
    notes: list[str]


class RecipeSums(TypedDict):
    modules: int
    bytecode_bytes: int
    compile_seconds: float


class RecipeDocument(TypedDict):
    recipe: RecipeDetails
    modules: list[RecipeRow]
    summary: RecipeSums


class InList(TypedDict):
    """Only the list itself names the cache."""

    cache_dir: NotRequired[str]


class SeveralEntries(TypedDict):
    entries: list[Annotated[EntryDetails, InList]] | list[Annotated[GraphDetails, InList]]


class NamedSummary(TypedDict):
    name: str
    entries: int
    size_bytes: int
    payload_bytes: int
    compile_seconds: float


class StatsMore(TypedDict):
    by_age: list[NamedSummary]
    problems: Mapping[str, int]
    live: NotRequired[Mapping[str, float]]
    refused: NotRequired[list[TierRefusal]]


class ReportFile(TypedDict):
    file: str
    size_bytes: int
    entries: int


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


class TrustDocument(TypedDict):
    keys: list[TrustedKey]
    projects: list[TrustedProject]


ERROR = ErrorDocument
_RUN = Annotated[Report, Placed] | Annotated[TorchReport, Placed]
#: By command; ``version`` is of ``jaxcache --version --json``.
DOCUMENTS: dict[str, Any] = {
    "ls": Annotated[Listing, Grouped] | RecipeDocument,
    "show": EntryDetails | GraphDetails | SeveralEntries | RecipeDocument,
    "stats": Annotated[Stats, Uses, StatsMore],
    "report": ReportFile,
    "warm": _RUN,
    "run": _RUN,
    "compile": CompileDocument,
    "target check": TargetCheck,
    "target show": ProfileDocument,
    "explain": ExplainDocument | ChurnDocument,
    "doctor": Diagnosis,
    "where": WhereDocument,
    "diff": DiffDocument,
    "bug-report": BugReport,
    "verify": VerifyDocument | Restoration,
    "seal": Annotated[SealResult, Sealing],
    "prune": PruneDocument,
    "rm": PruneDocument,
    "pin": Pinned | Unpinned,
    "export": ExportDocument,
    "import": ImportDocument,
    **dict.fromkeys(("push", "pull", "copy"), ExportDocument | ImportDocument | SyncDocument),
    "ci key": CiKey,
    "ci restore": RestoreResult,
    "ci save": SaveResult,
    **dict.fromkeys(
        ("trust here", "trust keygen", "trust add", "trust list", "trust remove"), TrustDocument
    ),
    "version": Versions,
}
