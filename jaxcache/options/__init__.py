"""Options, each declared once: name, parser, help text and default.

An operation takes a class of options. The command line (:mod:`jaxcache.cli.commands`), the Python
interface and the configuration file are built from what the class declares; manual, completions and
reference are built from the command line.
"""

import os
import sys
import time
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Literal, NamedTuple, Self

from jaxcache.errors import UsageError
from jaxcache.units import NS_PER_SECOND, parse_duration_seconds, parse_size_bytes

#: Headings of the options in a command's help, in their order.
PANELS = (
    "Most used",
    "Limits",
    "Leftovers",
    "Selection",
    "Options",
    "Cache",
    "Assertions",
    "MODULE:FUNCTION",
    "Recipe",
    "Live layer",
    "Output",
    "Absent hardware",
)


class Kind(NamedTuple):
    """A kind of value: its type on the command line, and how it is read."""

    type: Any
    metavar: str | None = None
    parse: Callable[[Any], Any] | None = None
    """From text; other values from Python are taken as they are."""


def read_time_ns(value: Any) -> int:
    """Read a time: a duration before now, RFC 3339 (UTC unless it has an offset), or a file.

    Args:
        value: a text or a datetime.

    Raises:
        UsageError: ``bad-time``.
    """
    from datetime import UTC, datetime  # which a command without a time does without

    if isinstance(value, str):
        try:
            return time.time_ns() - int(parse_duration_seconds(value) * NS_PER_SECOND)
        except UsageError:
            pass
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            try:
                return os.stat(value).st_mtime_ns
            except OSError as error:
                raise UsageError(
                    f"{value!r} is neither a time nor a file",
                    code="bad-time",
                    hint="write 2h, 2026-01-31T12:00:00Z, or the path of a marker file",
                ) from error
        value = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(value.timestamp()) * NS_PER_SECOND + int(value.microsecond) * 1000


def choice(name: str, *values: str) -> Kind:
    """Make a kind of option that takes one of some words, in capitals too, as CI systems write.

    Errors are called ``bad-NAME``.
    """

    def parse(text: str) -> str:
        if (word := text.lower()) not in values:
            raise UsageError(
                f"{text!r} is not a {name}", code=f"bad-{name}", hint=f"write {' or '.join(values)}"
            )
        return word

    return Kind(str, "|".join(values), parse)


FLAG = Kind(bool)
TEXT = Kind(str | None)
TEXTS = Kind(list[str] | None)
COUNT = Kind(int | None, "N")
NUMBER = Kind(int, "N")
SWITCH = Kind(bool | None)
TIME = Kind(str | None, "TIME|FILE", read_time_ns)
SIZE = Kind(str | None, "SIZE", parse_size_bytes)
DURATION = Kind(str | None, "DURATION", parse_duration_seconds)


class Option(NamedTuple):
    """One declared option, or argument where its name has no dashes."""

    kind: Kind
    names: tuple[str, ...]
    keyword: str
    """Its name in the Python interface."""
    help: str
    default: Any
    metavar: str | None
    settings: dict[str, Any]

    @property
    def is_required(self) -> bool:
        """Whether it is an argument whose help has no brackets around it."""
        return not (self.names[0].startswith("-") or (self.metavar or "").startswith("["))

    def __repr__(self) -> str:
        return f"<{' '.join(self.names)}>"  # of every option in the help of its class

    def read(self, value: Any) -> Any:
        """Make the value of the field from what a person wrote or a program passed."""
        if self.kind is TEXTS:
            one = isinstance(value, str | os.PathLike)
            return tuple(map(os.fspath, [value] if one else value or ()))
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        readable = isinstance(value, str) or hasattr(value, "timestamp")  # a datetime
        return self.kind.parse(value) if self.kind.parse and readable else value


def option(
    spec: str,
    text: str,
    kind: Kind = TEXT,
    *,
    default: Any = None,
    panel: str | None = None,
    keyword: str = "",
    **settings: Any,
) -> Any:
    """Declare a field of :class:`Options`.

    Args:
        spec: as the help shows it: ``--cache-dir -C PATH|URL``; without dashes, an argument.
        text: the text of the help.
        default: as a person would write it.
        panel: the heading in the help; default: that of the class.
        keyword: its name in the Python interface; default: the first long one.
        settings: further settings of Typer, such as ``min``.
    """
    if panel:
        settings["rich_help_panel"] = panel
    first, *words = spec.split()
    names = [first]
    while first.startswith("-") and words and words[0].startswith("-"):
        names.append(words.pop(0))
    long = next((n for n in names if n.startswith("--")), names[0]).partition("/")[0]
    keyword = keyword or long.strip("-").replace("-", "_")
    metavar = " ".join(words) or kind.metavar
    return Option(kind, tuple(names), keyword, text, default, metavar, settings)


def flag(spec: str, text: str, *, default: bool = False, **settings: Any) -> Any:
    """Declare a field that is true or false; see :func:`option`."""
    return option(spec, text, FLAG, default=default, **settings)


class Options:
    """Base of the classes of options: keyword arguments, frozen; no code is generated for them.

    A field with a plain value is for callers inside the package alone.
    """

    DECLARED: ClassVar[dict[str, Option]] = {}
    _FIELDS: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, panel: str | None = None) -> None:
        own = {name: vars(cls)[name] for name in cls.__annotations__ if name[0] != "_"}
        for value in own.values():
            if panel and isinstance(value, Option):
                value.settings.setdefault("rich_help_panel", panel)
        cls._FIELDS = {**cls._FIELDS, **own}
        cls.DECLARED = {n: v for n, v in cls._FIELDS.items() if isinstance(v, Option)}
        keywords = "".join(f"\n    {o.keyword}: {o.help}" for o in cls.DECLARED.values())
        cls.__doc__ = f"{cls.__doc__}\n\n    As keywords of the Python interface:\n{keywords}\n    "

    def __init__(self, **values: Any) -> None:
        for name, value in self._FIELDS.items():
            declared = value.read(value.default) if isinstance(value, Option) else value
            object.__setattr__(self, name, values.pop(name, declared))
        if values:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(values)}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __repr__(self) -> str:
        plain = vars(type(self)())
        changed = {n: v for n, v in vars(self).items() if v != plain[n]}
        fields = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        return f"{type(self).__name__}({fields})"

    def given(self) -> list[tuple[str, Option]]:
        """Return the declared fields that are not at their default."""
        plain = vars(type(self)())
        return [(n, o) for n, o in self.DECLARED.items() if getattr(self, n) != plain[n]]

    def check_known(
        self, layout: str, allowed: Collection[str] | None, hint: str | None = None
    ) -> None:
        """Refuse options that are for JAX's cache and not for that of another layout.

        Args:
            allowed: fields that the layout knows; None for all.

        Raises:
            UsageError
        """
        if unknown := [o for n, o in self.given() if allowed is not None and n not in allowed]:
            raise UsageError(
                f"{unknown[0].names[0]} is for JAX's cache, not for {layout}'s", hint=hint
            )

    def replace(self, **values: Any) -> Self:
        """Copy with some fields changed."""
        return type(self)(**{**vars(self), **values})

    @classmethod
    def read(cls, /, **values: Any) -> Self:
        """Make options from the keywords of the Python interface: ``max_size="10GB"``.

        Raises:
            TypeError: no option has that name.
            UsageError: a value that cannot be read.
        """
        fields = {o.keyword: (name, o) for name, o in cls.DECLARED.items()}
        if unknown := sorted(values.keys() - fields.keys()):
            raise TypeError(f"no option {', '.join(unknown)}; there are {', '.join(fields)}")
        return cls(**{fields[k][0]: fields[k][1].read(value) for k, value in values.items()})

    @classmethod
    def choose(cls, options: Self | None, /, **values: Any) -> Self:
        """Return options that a caller has as an object, else those that keywords make.

        Raises:
            TypeError: both are there, or no option has that name.
            UsageError: a value that cannot be read.
        """
        if options is None:
            return cls.read(**values)
        if any(values.values()):
            raise TypeError("options= cannot be combined with keywords")
        return options


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
#: Every policy of ``prune``. ``cost`` needs compile seconds, and keeps entries whose removal the
#: limit does not need.
POLICIES = ("lru", "cost")


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
