"""The declaration of options: kinds of values, one option, and the base of their classes."""

import os
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple, Self

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


def read_time_ns(value: str | datetime) -> int:
    """Read a time: a duration before now, RFC 3339 (UTC unless it has an offset), or a file.

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
        self.kind = kind
        self.names = names
        self.help = help_
        self.default = default
        self.metavar = metavar or kind.metavar
        self.settings = settings
        long = next((n for n in names if n.startswith("--")), names[0])
        self.keyword = settings.pop("keyword", None) or long.partition("/")[0].strip("-").replace(
            "-", "_"
        )

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
        readable = isinstance(value, str | datetime)
        return self.kind.parse(value) if self.kind.parse and readable else value


def option(
    spec: str,
    text: str,
    kind: Kind = TEXT,
    *,
    default: Any = None,
    panel: str | None = None,
    **settings: Any,
) -> Any:
    """Declare a field of :class:`Options`.

    Args:
        spec: as the help shows it: ``--cache-dir -C PATH|URL``; without dashes, an argument.
        text: the text of the help.
        default: as a person would write it.
        panel: the heading in the help; default: that of the class.
        settings: further settings of Typer, such as ``min``.
    """
    if panel:
        settings["rich_help_panel"] = panel
    first, *words = spec.split()
    names = [first]
    while first.startswith("-") and words and words[0].startswith("-"):
        names.append(words.pop(0))
    return Option(kind, tuple(names), text, default, " ".join(words) or None, settings)


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
