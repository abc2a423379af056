"""Options of what moves entries: push, pull, copy, export and import."""

from typing import Literal, Self

from jaxcache.options import FILTERS, LAYOUT, PLATFORM, PYTHON, EntryChoice, PruneOptions
from jaxcache.options.declare import (
    COUNT,
    DURATION,
    FLAG,
    SIZE,
    SWITCH,
    TEXT,
    TEXTS,
    Options,
    choice,
    option,
)

ConflictRule = Literal["keep", "replace", "fail"]
#: ``true``: if there is something new; ``always``: in any case; ``false``: in no case.
SaveIf = Literal["true", "always", "false"]


SIGN = option("--sign", TEXTS, "Sign with a private key file or name; repeatable.", metavar="KEY")
LEVEL = option(
    "--level",
    COUNT,
    "zstd level (default: 12, or 19 if 12 makes it larger than the files).",
    metavar="1..22",
    min=1,
    max=22,
)
ALLOW_LARGE = option("--allow-large", FLAG, "Allow entries that inflate more than executables do.")
REQUIRE_SIGNED = option(
    "--require-signed", FLAG, "Accept only entries signed by a trusted key (see jaxcache trust)."
)
JOBS = option("--jobs -j", COUNT, "Number of parallel requests (default: 32).", min=1, max=256)
ON_CONFLICT = option(
    "--on-conflict",
    choice("conflict-rule", "keep", "replace", "fail"),
    "Which entry to keep if a different, undamaged one has the same key.",
    default="keep",
)
ATOMIC = option("--atomic", FLAG, "All entries, or none.")


class SyncOptions(Options):
    """The entries that another cache gets, and how: of push, pull and copy."""

    include: tuple[str, ...] = option(
        "--include",
        TEXTS,
        "Include only these modules or keys; repeatable.",
        metavar="GLOB",
        panel="Selection",
    )
    exclude: tuple[str, ...] = option(
        "--exclude",
        TEXTS,
        "Exclude these modules or keys; repeatable.",
        metavar="GLOB",
        panel="Selection",
    )
    filters: tuple[str, ...] = FILTERS
    max_size_bytes: int | None = option(
        "--max-size",
        SIZE,
        "Limit the size of the target; the least valuable entries are not sent.",
        panel="Selection",
    )
    make_room: bool = False
    sign: tuple[str, ...] = SIGN
    require_signed: bool = REQUIRE_SIGNED
    side_caches: bool = option(
        "--side-caches/--no-side-caches", FLAG, "Include XLA's autotuning results.", default=True
    )
    ledger: bool = option(
        "--ledger/--no-ledger",
        FLAG,
        "Include the ledger, the record of uses and compile times.",
        default=True,
    )
    jobs: int | None = JOBS
    allow_large: bool = ALLOW_LARGE
    layout: str | None = None
    on_conflict: ConflictRule = "keep"
    atomic: bool = False


class PushOptions(SyncOptions):
    """The entries to push, and whether others make room for them."""

    make_room: bool = option(
        "--prune-remote",
        FLAG,
        "With --max-size: remove less valuable entries there to make room.",
        keyword="make_room",
    )


class CopyOptions(SyncOptions):
    """The entries to copy, and what to do about those already there."""

    layout: str | None = LAYOUT
    on_conflict: ConflictRule = ON_CONFLICT
    atomic: bool = ATOMIC


class ExportOptions(EntryChoice):
    """The entries that a bundle gets, and how it is written."""

    level: int | None = LEVEL
    since: str | None = option(
        "--since",
        TEXT,
        "Only entries that this bundle or cache does not have.",
        metavar="REF",
        panel="Selection",
    )
    sign: tuple[str, ...] = SIGN
    side_caches: bool | None = option(
        "--side-caches/--no-side-caches",
        SWITCH,
        "Include XLA's own caches (default: if all entries are exported).",
    )


class ArrivalOptions(Options):
    """Options for entries that arrive in a cache."""

    on_conflict: ConflictRule = ON_CONFLICT
    atomic: bool = ATOMIC
    require_signed: bool = REQUIRE_SIGNED
    side_caches: bool = True
    level: int | None = None
    jobs: int | None = JOBS
    allow_large: bool = ALLOW_LARGE

    @classmethod
    def of(cls, options: SyncOptions) -> Self:
        """Return those options to push, pull or copy that concern arrivals."""
        return cls(**{name: v for name, v in vars(options).items() if name in cls._FIELDS})


class ImportOptions(ArrivalOptions):
    """Options to import a bundle."""

    side_caches: bool = option(
        "--side-caches/--no-side-caches", FLAG, "Include XLA's own caches.", default=True
    )
    level: int | None = option(
        "--level",
        COUNT,
        "zstd level of the entries (default: as small as they were).",
        metavar="1..22",
        min=1,
        max=22,
    )


class CompatibilityOptions(Options):
    """The conditions for entries of a bundle, and the Python that will use them."""

    require_compatible: bool = option(
        "--require-compatible", FLAG, "Refuse a bundle with entries that will not hit here."
    )
    python: str | None = option(
        "--python",
        TEXT,
        "Python whose jax will use the cache (default: as for jaxcache warm).",
        metavar="PYTHON",
    )


class SaveOptions(Options):
    """The entries that ``ci save`` keeps, and its conditions."""

    save_if: SaveIf = option(
        "--save-if",
        choice("save-if", "true", "always", "false"),
        "When to save: true (if the job compiled anything new), always or false.",
        default="true",
    )
    max_size_bytes: int | None = option(
        "--max-size", SIZE, "Limit the size; keep the entries with the most compile time."
    )
    unused_for_seconds: float | None = option(
        "--unused-for",
        DURATION,
        "Keep entries that any job used within this time. Default: a bundle keeps only those that "
        "this job used, a shared directory keeps all.",
    )
    job_status: str = option(
        "--job-status",
        TEXT,
        "The CI system's status of the job, or an exit status; after a failure a bundle also "
        "keeps the entries that the job did not use.",
        default="success",
        metavar="STATUS",
    )
    key: str | None = option(
        "--key", TEXT, "Output a cache key: this one with a digest of the contents.", metavar="KEY"
    )
    level: int | None = LEVEL
    sign: tuple[str, ...] = SIGN
    allow_large: bool = ALLOW_LARGE

    @property
    def pruning(self) -> PruneOptions | None:
        """The bounds of a shared cache; None where nothing binds it."""
        bounds = (self.max_size_bytes, self.unused_for_seconds)
        if bounds == (None, None):
            return None
        return PruneOptions(max_size_bytes=bounds[0], unused_for_seconds=bounds[1])


class RestoreOptions(Options):
    """The conditions of ``ci restore``, and the Python that will use the entries."""

    lookup_only: bool = option(
        "--lookup-only", FLAG, "Report the matching entries, and restore nothing."
    )
    fail_on_cache_miss: bool = option("--fail-on-cache-miss", FLAG, "Exit 1 if nothing there fits.")
    everything: bool = option(
        "--everything", FLAG, "Restore entries that cannot hit here, too; needs no jax."
    )
    require_signed: bool = REQUIRE_SIGNED
    jobs: int | None = JOBS
    allow_large: bool = ALLOW_LARGE
    python: str | None = PYTHON
    platform: str | None = PLATFORM
