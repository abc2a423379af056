"""Options, each declared once: name, parser, help text and default.

An operation takes a class of options. The command line (:mod:`jaxcache.cli.declared`), the Python
interface and the configuration file are built from what the class declares; manual, completions and
reference are built from the command line.
"""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, NamedTuple, Self

from jaxcache.errors import UsageError
from jaxcache.units import NS_PER_SECOND, parse_duration_seconds, parse_size_bytes

#: Headings of the options in a command's help, in their order.
PANELS = (
    "Limits",
    "Leftovers",
    "Selection",
    "Options",
    "Cache",
    "Assertions",
    "MODULE:FUNCTION",
    "Recipe",
    "Another host",
    "Live layer",
    "Output",
)
PolicyName = Literal["lru", "cost"]
Level = Literal["quick", "full", "load"]


class Kind(NamedTuple):
    """A kind of value: its type on the command line, and how it is read."""

    type: Any
    metavar: str | None = None
    parse: Callable[[Any], Any] | None = None
    """From text; other values from Python are taken as they are."""


def read_time_ns(value: str | datetime) -> int:
    """Read a time: a duration before now, RFC 3339 (UTC unless it says otherwise), or a file.

    Raises:
        UsageError: ``bad-time``.
    """
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
    return int(value.timestamp()) * NS_PER_SECOND + value.microsecond * 1000


def choice(name: str, *values: str) -> Kind:
    """Make a kind of option that takes one of some words; errors are called ``bad-NAME``."""

    def parse(text: str) -> str:
        if text not in values:
            raise UsageError(
                f"{text!r} is not a {name}",
                code=f"bad-{name}",
                hint=f"write {' or '.join(values)}",
            )
        return text

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

_KEYS = "Full key, unique prefix of key or hash, module, or glob."
_JOBS = "Workers; default: one per core."


class Option:
    """One declared option, or argument where its name has no dashes."""

    __slots__ = ("default", "help", "keyword", "kind", "metavar", "names", "settings")

    def __init__(
        self,
        kind: Kind,
        names: tuple[str, ...],
        help_: str,
        default: Any,
        metavar: str | None,
        settings: dict[str, Any],
    ) -> None:
        self.kind, self.names, self.help, self.default = kind, names, help_, default
        self.metavar, self.settings = metavar or kind.metavar, settings
        long = next((n for n in names if n.startswith("--")), names[0])
        self.keyword = settings.pop("keyword", None) or long.partition("/")[0].strip("-").replace(
            "-", "_"
        )

    def read(self, value: Any) -> Any:
        """Make the value of the field from what a person wrote or a program passed."""
        if self.kind is TEXTS:
            return tuple(map(os.fspath, value or ()))
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        readable = isinstance(value, str | datetime)
        return self.kind.parse(value) if self.kind.parse and readable else value


def option(
    names: str,
    kind: Kind,
    text: str,
    *,
    default: Any = None,
    metavar: str | None = None,
    panel: str | None = None,
    **settings: Any,
) -> Any:
    """Declare a field of :class:`Options`.

    Args:
        names: ``--cache-dir -C``; a name without dashes is an argument.
        text: what the help says.
        default: as a person would write it; of a flag, False.
        panel: the heading in the help; default: that of the class.
        settings: further settings of Typer, such as ``min``.
    """
    default = False if kind is FLAG and default is None else default
    if panel:
        settings["rich_help_panel"] = panel
    return Option(kind, tuple(names.split()), text, default, metavar, settings)


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

    def __init__(self, **values: Any) -> None:
        for name, value in self._FIELDS.items():
            declared = value.read(value.default) if isinstance(value, Option) else value
            object.__setattr__(self, name, values.pop(name, declared))
        if values:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(values)}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    def replace(self, **values: Any) -> Self:
        """Copy with some fields changed."""
        return type(self)(**{**vars(self), **values})

    @classmethod
    def read(cls, /, **given: Any) -> Self:
        """Make options from the keywords of the Python interface: ``max_size="10GB"``.

        Raises:
            TypeError: there is no option of that name.
            UsageError: a value that cannot be read.
        """
        fields = {o.keyword: (name, o) for name, o in cls.DECLARED.items()}
        if unknown := sorted(given.keys() - fields.keys()):
            raise TypeError(f"no option {', '.join(unknown)}; there are {', '.join(fields)}")
        return cls(**{fields[k][0]: fields[k][1].read(value) for k, value in given.items()})


FILTERS = option(
    "--filter",
    TEXTS,
    "Only entries that fit, such as 'size>1MB', 'unused>7d', 'platform=gpu'; repeatable.",
    metavar="EXPR",
    keyword="filters",
)
LAYOUT = option("--layout", TEXT, "Cache layout (default: detected).", metavar="jax|torch")
PYTHON = option("--python", TEXT, "The Python that has jax; default: our own.", metavar="PYTHON")
PLATFORM = option("--platform", TEXT, "Sets JAX_PLATFORMS, such as cpu or cuda.", metavar="NAME")


class CacheDir(Options, panel="Cache"):
    """Where the cache is."""

    cache_dir: str | None = option(
        "--cache-dir -C",
        TEXT,
        "The cache; default: JAX_COMPILATION_CACHE_DIR, the configuration, ~/.cache/jax.",
        metavar="PATH|URL",
    )


class LayoutChoice(Options, panel="Cache"):
    """The layout of a cache."""

    layout: str | None = LAYOUT


class Place(CacheDir, panel="Cache"):
    """Where the cache is, and its layout."""

    layout: str | None = LAYOUT


class DryRun(Options):
    """Whether to change anything."""

    dry_run: bool = option("--dry-run -n", FLAG, "Show the plan, change nothing.")


class Consent(DryRun):
    """Whether to change anything, and whether to ask first."""

    yes: bool = option("--yes -y", FLAG, "Do not ask.")


class Chosen(Options):
    """The entries that a command is about."""

    keys: tuple[str, ...] = option("keys", TEXTS, _KEYS, metavar="[KEY]...")


class Selected(Chosen):
    """The entries that a command is about, by key and by what they are."""

    filters: tuple[str, ...] = FILTERS


class RemovalOptions(Selected):
    """The entries to remove: at least one KEY or filter."""

    keys: tuple[str, ...] = option(
        "keys",
        TEXTS,
        "Full key, unique prefix of key or hash (at least 4 characters), or module.",
        metavar="[KEY]...",
    )


class ListOptions(Selected):
    """Which entries to list, in what order, and how much of them."""

    sort: str = option(
        "--sort",
        TEXT,
        "used (the latest first), key, size, payload, compile, created or platform.",
        default="used",
        metavar="FIELD[:asc|desc]",
    )
    limit: int | None = option("--limit", COUNT, "Print at most N.", min=0)
    long: bool = option(
        "--long -l", FLAG, "Also platform, target, signature and source.", keyword="details"
    )


class VerifyOptions(Selected):
    """The entries to verify, and how thoroughly."""

    level: Level = option(
        "--level",
        choice("level", "quick", "full", "load"),
        "quick: names, dates and frames. full: everything inside. load: also have JAX "
        "load each entry, in processes that may die of it.",
        default="full",
    )
    decode: bool = option(
        "--payload/--no-payload",
        FLAG,
        "Decode what full has decompressed.",
        default=True,
        keyword="decode",
    )
    atimes: bool = option(
        "--atimes", FLAG, "Every entry needs its -atime file, as before a size cap is set."
    )
    grace_seconds: float = option(
        "--grace", DURATION, "Leave younger files as they are.", default="60s"
    )
    jobs: int | None = option("--jobs -j", COUNT, _JOBS, min=1)
    python: str | None = option(
        "--python", TEXT, "With --level load: the Python that has your jax.", metavar="PYTHON"
    )


class SealOptions(Selected):
    """Which entries to seal, and how well to compress them."""

    level: int = option(
        "--level", NUMBER, "Compression level; zlib takes up to 9.", default=19, min=1, max=22
    )
    again: bool = option("--again", FLAG, "Compress sealed entries anew, too.")
    jobs: int | None = option("--jobs -j", COUNT, _JOBS, min=1)


class PruneOptions(Options, panel="Limits"):
    """The entries to remove. Bounds that are None do not bind."""

    max_size_bytes: int | None = option(
        "--max-size", SIZE, "Bound the whole directory, such as 10GB."
    )
    max_entries: int | None = option("--max-entries", COUNT, "Keep at most N entries.", min=0)
    unused_for_seconds: float | None = option(
        "--unused-for", DURATION, "Remove entries unused for this long, such as 30d."
    )
    older_than_seconds: float | None = option(
        "--older-than", DURATION, "Remove entries written longer ago than this."
    )
    used_since_ns: int | None = option(
        "--used-since", TIME, "Keep only entries used since a time, or since FILE was modified."
    )
    keep_last: int | None = option(
        "--keep-last", COUNT, "Keep the N entries of each module that were used last.", min=1
    )
    policy: PolicyName = option(
        "--policy",
        choice("policy", "lru", "cost"),
        "Remove first, under a bound: what was used longest ago, or saves least per byte.",
        default="cost",
    )
    filters: tuple[str, ...] = FILTERS
    keep: tuple[str, ...] = option(
        "--keep", TEXTS, "Never remove these entries; repeatable.", metavar="KEY"
    )
    orphans: bool = option(
        "--orphans",
        FLAG,
        "Remove -atime files without an entry, and temporary files of interrupted writes.",
        panel="Leftovers",
    )
    legacy: bool = option(
        "--legacy", FLAG, "Remove entries that only JAX up to 0.4.30 reads.", panel="Leftovers"
    )
    untuned: bool = option(
        "--untuned",
        FLAG,
        "Remove entries that warm --target compiled without their GPU.",
        panel="Leftovers",
    )
    side_caches: bool = option(
        "--side-caches",
        FLAG,
        "Apply --max-size and the age limits to XLA's own caches too.",
        panel="Leftovers",
    )
    quarantine: bool = option(
        "--quarantine",
        FLAG,
        "Remove quarantined entries: those past the age limits, or all without one.",
        panel="Leftovers",
    )
    grace_seconds: float = option(
        "--grace",
        DURATION,
        "Leave younger files alone: they may still be being written.",
        default="60s",
    )

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
                "--side-caches needs to know which of them",
                code="no-bound",
                hint="add --unused-for, --older-than, --used-since or --max-size",
            )
        if not (self.orphans or self.legacy or self.untuned or self.quarantine):
            raise UsageError(
                "no limit given",
                code="no-bound",
                hint="give one, such as --max-size 10GB or --unused-for 30d",
            )
