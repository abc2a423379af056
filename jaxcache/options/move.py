"""Options of what moves entries: push, pull, copy, export and import."""

from typing import Any, Literal

from jaxcache.options import (
    COUNT,
    DURATION,
    FILTERS,
    LAYOUT,
    PLATFORM,
    PYTHON,
    SIZE,
    SWITCH,
    TEXTS,
    EntryChoice,
    Options,
    PruneOptions,
    choice,
    flag,
    option,
)

ConflictRule = Literal["keep", "replace", "fail"]
#: ``true``: if there is something new; ``always``: in any case; ``false``: in no case.
SaveIf = Literal["true", "always", "false"]


SIGN = option("--sign KEY", "Sign with a private key file or name; repeatable.", TEXTS)


def _level(text: str) -> Any:
    """Declare the level of zstd."""
    return option("--level 1..22", text, COUNT, min=1, max=22)


LEVEL = _level("zstd level (default: 12, or 19 if 12 makes it larger than the files).")
ALLOW_LARGE = flag("--allow-large", "Allow entries that inflate more than executables do.")
REQUIRE_SIGNED = flag(
    "--require-signed", "Accept only entries signed by a trusted key (see jaxcache trust)."
)
JOBS = option("--jobs -j", "Number of parallel requests (default: 32).", COUNT, min=1, max=256)
ON_CONFLICT = option(
    "--on-conflict",
    "Which entry to keep if a different, undamaged one has the same key.",
    choice("conflict-rule", "keep", "replace", "fail"),
    default="keep",
)
ATOMIC = flag("--atomic", "All entries, or none.")


class SyncOptions(Options):
    """The entries that another cache gets, and how: of push, pull and copy."""

    include: tuple[str, ...] = option(
        "--include GLOB",
        "Include only these modules or keys; repeatable.",
        TEXTS,
        panel="Selection",
    )
    exclude: tuple[str, ...] = option(
        "--exclude GLOB", "Exclude these modules or keys; repeatable.", TEXTS, panel="Selection"
    )
    filters: tuple[str, ...] = FILTERS
    max_size_bytes: int | None = option(
        "--max-size",
        "Limit the size of the target; the least valuable entries are not sent.",
        SIZE,
        panel="Selection",
    )
    make_room: bool = False
    sign: tuple[str, ...] = SIGN
    require_signed: bool = REQUIRE_SIGNED
    side_caches: bool = flag(
        "--side-caches/--no-side-caches", "Include XLA's autotuning results.", default=True
    )
    ledger: bool = flag(
        "--ledger/--no-ledger",
        "Include the ledger, the record of uses and compile times.",
        default=True,
    )
    jobs: int | None = JOBS
    allow_large: bool = ALLOW_LARGE
    layout: str | None = None
    on_conflict: ConflictRule = "keep"
    atomic: bool = False
    level: int | None = None


class PushOptions(SyncOptions):
    """The entries to push, and whether others make room for them."""

    make_room: bool = flag(
        "--prune-remote",
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
        "--since REF", "Only entries that this bundle or cache does not have.", panel="Selection"
    )
    sign: tuple[str, ...] = SIGN
    side_caches: bool | None = option(
        "--side-caches/--no-side-caches",
        "Include XLA's own caches (default: if all entries are exported).",
        SWITCH,
    )


class ImportOptions(Options):
    """Options to import a bundle."""

    on_conflict: ConflictRule = ON_CONFLICT
    atomic: bool = ATOMIC
    require_signed: bool = REQUIRE_SIGNED
    side_caches: bool = flag(
        "--side-caches/--no-side-caches", "Include XLA's own caches.", default=True
    )
    level: int | None = _level("zstd level of the entries (default: as small as they were).")
    jobs: int | None = JOBS
    allow_large: bool = ALLOW_LARGE


class CompatibilityOptions(Options):
    """The conditions for entries of a bundle, and the Python that will use them."""

    require_compatible: bool = flag(
        "--require-compatible", "Refuse a bundle with entries that will not hit here."
    )
    python: str | None = option(
        "--python PYTHON", "Python whose jax will use the cache (default: as for jaxcache warm)."
    )


class SaveOptions(Options):
    """The entries that ``ci save`` keeps, and its conditions."""

    save_if: SaveIf = option(
        "--save-if",
        "When to save: true (if the job compiled anything new), always or false.",
        choice("save-if", "true", "always", "false"),
        default="true",
    )
    max_size_bytes: int | None = option(
        "--max-size", "Limit the size; keep the entries with the most compile time.", SIZE
    )
    unused_for_seconds: float | None = option(
        "--unused-for",
        "Keep entries that any job used within this time. Default: a bundle keeps only those "
        "that this job used, a shared directory keeps all.",
        DURATION,
    )
    job_status: str = option(
        "--job-status STATUS",
        "The CI system's status of the job, or an exit status; after a failure a bundle also "
        "keeps the entries that the job did not use.",
        default="success",
    )
    key: str | None = option(
        "--key KEY", "Output a cache key: this one with a digest of the contents."
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

    lookup_only: bool = flag("--lookup-only", "Report the matching entries, and restore nothing.")
    fail_on_cache_miss: bool = flag("--fail-on-cache-miss", "Exit 1 if nothing there fits.")
    everything: bool = flag(
        "--everything", "Restore entries that cannot hit here, too; needs no jax."
    )
    require_signed: bool = REQUIRE_SIGNED
    jobs: int | None = JOBS
    allow_large: bool = ALLOW_LARGE
    python: str | None = PYTHON
    platform: str | None = PLATFORM
