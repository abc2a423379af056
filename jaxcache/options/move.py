"""Options of what moves entries: push, pull, copy, export and import."""

from typing import Literal

from jaxcache.options import (
    COUNT,
    DURATION,
    FILTERS,
    FLAG,
    LAYOUT,
    PLATFORM,
    PYTHON,
    SIZE,
    SWITCH,
    TEXT,
    TEXTS,
    Options,
    PruneOptions,
    Selected,
    choice,
    option,
)

ConflictRule = Literal["keep", "replace", "fail"]


SIGN = option("--sign", TEXTS, "Sign with a private key file or name; repeatable.", metavar="KEY")
LEVEL = option(
    "--level",
    COUNT,
    "zstd level; default: 12, or 19 where that takes more room than the files.",
    metavar="1..22",
    min=1,
    max=22,
)
ALLOW_LARGE = option(
    "--allow-large", FLAG, "Let in what inflates further than executables do, too."
)


class SyncOptions(Options):
    """Which entries another cache gets, and how."""

    include: tuple[str, ...] = option(
        "--include",
        TEXTS,
        "Only these modules or keys; repeatable.",
        metavar="GLOB",
        panel="Selection",
    )
    exclude: tuple[str, ...] = option(
        "--exclude",
        TEXTS,
        "Not these modules or keys; repeatable.",
        metavar="GLOB",
        panel="Selection",
    )
    filters: tuple[str, ...] = FILTERS
    max_size_bytes: int | None = option(
        "--max-size",
        SIZE,
        "What the target may hold; the least valuable stay behind.",
        panel="Selection",
    )
    make_room: bool = False
    sign: tuple[str, ...] = ()
    require_signed: bool = False
    side_caches: bool = option(
        "--side-caches/--no-side-caches", FLAG, "XLA's autotuning results too.", default=True
    )
    ledger: bool = option(
        "--ledger/--no-ledger", FLAG, "What is known of the entries too.", default=True
    )
    jobs: int | None = option("--jobs -j", COUNT, "Requests at once; default: 32.", min=1, max=256)
    allow_large: bool = False


class PushOptions(SyncOptions):
    """Which entries to push, and who vouches for them."""

    make_room: bool = option(
        "--prune-remote",
        FLAG,
        "With --max-size: entries there may go to let better ones in.",
        keyword="make_room",
    )
    sign: tuple[str, ...] = SIGN


class PullOptions(SyncOptions):
    """Which entries to pull, and what they must be like."""

    require_signed: bool = option(
        "--require-signed", FLAG, "Only what a trusted key has signed; see jaxcache trust."
    )
    allow_large: bool = ALLOW_LARGE


class ExportOptions(Selected):
    """Which entries a bundle gets, and how it is written."""

    level: int | None = LEVEL
    since: str | None = option(
        "--since", TEXT, "Only what this bundle or cache has not.", metavar="REF", panel="Selection"
    )
    sign: tuple[str, ...] = SIGN
    side_caches: bool | None = option(
        "--side-caches/--no-side-caches",
        SWITCH,
        "XLA's own caches; by default if nothing is selected.",
    )


class ArrivalOptions(Options):
    """How entries come into a cache."""

    on_conflict: ConflictRule = option(
        "--on-conflict",
        choice("conflict-rule", "keep", "replace", "fail"),
        "Where another sound entry is there under the same key.",
        default="keep",
    )
    atomic: bool = option("--atomic", FLAG, "All entries, or none.")
    side_caches: bool = True
    level: int | None = None
    allow_large: bool = ALLOW_LARGE


class CopyOptions(ArrivalOptions):
    """Which entries to copy, and how."""

    layout: str | None = LAYOUT
    filters: tuple[str, ...] = FILTERS


class ImportOptions(ArrivalOptions):
    """How the entries of a bundle come into a cache."""

    side_caches: bool = option(
        "--side-caches/--no-side-caches", FLAG, "XLA's own caches too.", default=True
    )
    level: int | None = option(
        "--level",
        COUNT,
        "zstd level of the entries; default: what makes them as small as they were.",
        metavar="1..22",
        min=1,
        max=22,
    )


class Compatibility(Options):
    """What the entries of a bundle must be like, and for which Python."""

    require_compatible: bool = option(
        "--require-compatible", FLAG, "Refuse what will not hit here."
    )
    python: str | None = option(
        "--python",
        TEXT,
        "The Python whose jax is to use the cache; ours if it has.",
        metavar="PYTHON",
    )


class SaveOptions(Options):
    """What ``ci save`` keeps, and under what conditions."""

    save_if: str = option(
        "--save-if",
        TEXT,
        "true: if the job compiled anything new; takes what a CI expression gives.",
        default="true",
        metavar="true|always|false",
    )
    max_size_bytes: int | None = option(
        "--max-size", SIZE, "Keep the most compile time in so many bytes."
    )
    unused_for_seconds: float | None = option(
        "--unused-for",
        DURATION,
        "Keep what other jobs used within this time; a bundle by default holds only what "
        "this job used, a shared directory everything.",
    )
    job_status: str = option(
        "--job-status",
        TEXT,
        "How the CI system says that the job ended, or an exit status; unless well, "
        "a bundle keeps what the job did not use, too.",
        default="success",
        metavar="STATUS",
    )
    key: str | None = option(
        "--key", TEXT, "Make an output 'key': this one and a content digest.", metavar="KEY"
    )
    level: int | None = LEVEL
    sign: tuple[str, ...] = SIGN

    @property
    def pruning(self) -> PruneOptions | None:
        """The bounds of a shared cache; None where nothing binds it."""
        bounds = (self.max_size_bytes, self.unused_for_seconds)
        if bounds == (None, None):
            return None
        return PruneOptions(max_size_bytes=bounds[0], unused_for_seconds=bounds[1])


class RestoreOptions(Options):
    """What ``ci restore`` restores, and for which Python."""

    lookup_only: bool = option("--lookup-only", FLAG, "Say what fits, and restore nothing.")
    fail_on_cache_miss: bool = option(
        "--fail-on-cache-miss", FLAG, "Exit 1 where nothing there fits."
    )
    everything: bool = option(
        "--everything",
        FLAG,
        "Restore what cannot hit here, too; no jax is asked without --python.",
    )
    allow_large: bool = ALLOW_LARGE
    python: str | None = PYTHON
    platform: str | None = PLATFORM
