"""Options, each declared once: name, parser, help text and default.

An operation takes a class of options. The command line (:mod:`jaxcache.cli.commands`), the Python
interface and the configuration file are built from what the class declares; manual, completions and
reference are built from the command line.
"""

import sys
from typing import Any, Literal

from jaxcache.core.eviction import POLICIES
from jaxcache.errors import UsageError
from jaxcache.options.declare import (
    COUNT,
    DURATION,
    SIZE,
    TEXTS,
    TIME,
    Options,
    choice,
    flag,
    option,
)

Level = Literal["quick", "full", "load"]
_KEYS = "Full key, unique prefix of key or hash, module, or glob."

FILTERS = option(
    "--filter EXPR",
    "Only entries that match, such as 'size>1MB', 'unused>7d', 'platform=gpu'; repeatable.",
    TEXTS,
    panel="Selection",
    keyword="filters",
)
LAYOUT = option(
    "--layout jax|torch",
    "The compiler whose cache it is (default: detected from its files; jax for a bucket, and "
    "where a program is run).",
)
PYTHON = option(
    "--python PYTHON",
    "The Python that has jax (default: the first that has it of the active environment's, "
    "jaxcache's own, that of .venv beside the program or above, and python on PATH).",
)
JOBS = option("--jobs -j", "Number of workers (default: one per core).", COUNT, min=1)
PLATFORM = option("--platform NAME", "Sets JAX_PLATFORMS, such as cpu or cuda.")


def _cache_dir(fallback: str = "") -> Any:
    """Declare ``-C``, with the end of its default."""
    text = f"The cache (default: JAX_COMPILATION_CACHE_DIR, else the configuration{fallback})."
    return option("--cache-dir -C PATH|URL", text)


class CacheDir(Options, panel="Cache"):
    """The place of the cache."""

    cache_dir: str | None = _cache_dir(", else ~/.cache/jax")


class LayoutChoice(Options, panel="Cache"):
    """The layout of a cache."""

    layout: str | None = LAYOUT


class CacheLocation(CacheDir, panel="Cache"):
    """The place of the cache, and its layout."""

    layout: str | None = LAYOUT


class RunLocation(CacheLocation, panel="Cache"):
    """The place of the cache of a program that is run."""

    cache_dir: str | None = _cache_dir()


class DryRun(Options):
    """Whether to change anything."""

    dry_run: bool = flag("--dry-run -n", "Show the plan, and change nothing.")


class ConfirmOptions(DryRun):
    """Whether to change anything, and whether to ask first."""

    yes: bool = flag("--yes -y", "Do not ask for confirmation.")

    def check(self) -> None:
        """Refuse to ask without a terminal.

        Raises:
            UsageError: ``needs-yes``.
        """
        if not (self.dry_run or self.yes or (sys.stdin.isatty() and sys.stderr.isatty())):
            raise UsageError(
                "confirmation needs a terminal",
                code="needs-yes",
                hint="add --yes to remove, or --dry-run to see the plan",
            )


class KeyArguments(Options):
    """The entries that a command is about."""

    keys: tuple[str, ...] = option("keys [KEY]...", _KEYS, TEXTS)


class EntryChoice(KeyArguments):
    """The entries that a command is about, by key and by what they are."""

    filters: tuple[str, ...] = FILTERS


class RemovalOptions(EntryChoice):
    """The entries to remove: at least one KEY or filter."""

    keys: tuple[str, ...] = option(
        "keys [KEY]...",
        "Full key, unique prefix of key or hash (at least 4 characters), module, or glob.",
        TEXTS,
    )


#: The fields that ``ls`` sorts by.
SORT_FIELDS = ("used", "key", "size", "payload", "compile", "created", "platform")
#: The fields that ``ls`` groups by.
GROUP_FIELDS = ("module", "function", "platform", "target", "codec")


class ListOptions(EntryChoice):
    """The entries to list, their order, and how much of each to show."""

    sort: str = option(
        f"--sort {'|'.join(SORT_FIELDS)}",
        "Sort by this field (used: most recent first); add :asc or :desc for the direction.",
        default="used",
    )
    limit: int | None = option("--limit", "List at most N entries, or groups.", COUNT, min=0)
    long: bool = flag(
        "--long -l",
        "Also show platform, target, signature and source (of torch, the function, too).",
        keyword="details",
    )


class VerifyOptions(EntryChoice):
    """The entries to verify, and how thoroughly."""

    level: Level = option(
        "--level",
        "quick: check names, dates and frames. full: also all contents. load: also load each "
        "entry with JAX, in child processes.",
        choice("level", "quick", "full", "load"),
        default="full",
    )
    decode: bool = flag(
        "--payload/--no-payload",
        "With --level full: also decode the executables.",
        default=True,
        keyword="decode",
    )
    atimes: bool = flag(
        "--atimes", "Report entries without an -atime file, which JAX needs once it has a size cap."
    )
    grace_seconds: float = option(
        "--grace",
        "Do not repair truncated files younger than this; JAX may still be writing them.",
        DURATION,
        default="60s",
    )
    jobs: int | None = JOBS
    python: str | None = option("--python PYTHON", "With --level load: the Python that has jax.")


class SealOptions(EntryChoice):
    """The entries to seal, and whether to compress them again."""

    recompress: int | None = option(
        "--recompress LEVEL",
        "Recompress at LEVEL (zstd: 1-22, zlib: 1-9) if the result is smaller.",
        COUNT,
        min=1,
        max=22,
    )
    jobs: int | None = JOBS


class PruneOptions(Options, panel="Limits"):
    """The entries to remove. Bounds that are None do not bind."""

    max_size_bytes: int | None = option(
        "--max-size",
        "Limit the cache size, such as 10GB (see jaxcache stats); removes quarantined files first.",
        SIZE,
    )
    max_entries: int | None = option("--max-entries", "Keep at most N entries.", COUNT, min=0)
    unused_for_seconds: float | None = option(
        "--unused-for", "Remove entries unused for this long, such as 30d.", DURATION
    )
    older_than_seconds: float | None = option(
        "--older-than", "Remove entries written longer ago than this.", DURATION
    )
    used_since_ns: int | None = option(
        "--used-since", "Keep only entries used since a time, or since FILE was modified.", TIME
    )
    keep_last: int | None = option(
        "--keep-last", "Keep the N entries of each module that were used last.", COUNT, min=1
    )
    policy: str = option(
        "--policy",
        "Which entries to remove first: lru (least recently used) or cost (unused for two "
        "weeks, then for two days; of the rest, what saves the least compile time per byte).",
        choice("policy", *POLICIES),
        default="cost",
    )
    filters: tuple[str, ...] = FILTERS
    keep: tuple[str, ...] = option("--keep KEY", "Never remove these entries; repeatable.", TEXTS)
    orphans: bool = flag(
        "--orphans",
        "Remove -atime files without an entry, temporary files of interrupted writes, and code "
        "that no graph of torch needs.",
        panel="Leftovers",
    )
    legacy: bool = flag(
        "--legacy", "Remove entries that only JAX up to 0.4.30 reads.", panel="Leftovers"
    )
    untuned: bool = flag(
        "--untuned",
        "Remove entries that warm --target compiled without their GPU.",
        panel="Leftovers",
    )
    side_caches: bool = flag(
        "--side-caches",
        "Apply --max-size and the age limits to XLA's own caches too.",
        panel="Leftovers",
    )
    quarantine: bool = flag(
        "--quarantine",
        "Remove quarantined entries: those past the age limits, or all without one.",
        panel="Leftovers",
    )
    grace_seconds: float = option(
        "--grace",
        "Keep files younger than this; another process may still be writing them.",
        DURATION,
        default="60s",
    )

    @property
    def takes_quarantine(self) -> bool:
        """Whether quarantined entries may go: on request, or first of all to meet a size."""
        return self.quarantine or self.max_size_bytes is not None

    @property
    def other_kinds(self) -> str:
        """The options that let files other than entries go, and that are not given."""
        by_option = {"--side-caches": self.side_caches, "--orphans": self.orphans}
        return " or ".join(name for name, value in by_option.items() if not value)

    @property
    def by_age(self) -> bool:
        """Whether a rule about age or use is given."""
        rules = (self.unused_for_seconds, self.older_than_seconds, self.used_since_ns)
        return any(rule is not None for rule in rules)

    def check(self) -> None:
        """Refuse options that name nothing to remove.

        Raises:
            UsageError: ``no-bound``.
        """
        bounds = (self.max_size_bytes, self.max_entries, self.keep_last)
        if self.by_age or bounds != (None, None, None):
            return
        if self.side_caches:
            raise UsageError(
                "--side-caches needs a limit",
                code="no-bound",
                hint="add --unused-for, --older-than, --used-since or --max-size",
            )
        if not (self.orphans or self.legacy or self.untuned or self.quarantine):
            raise UsageError(
                "no limit is given",
                code="no-bound",
                hint="give one, such as --max-size 10GB or --unused-for 30d; in Python: "
                "max_size='10GB' or unused_for='30d'",
            )
