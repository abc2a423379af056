"""The commands as their help shows them."""

import re
from dataclasses import dataclass

from jaxcache import options
from jaxcache.cli.app import load_parser
from jaxcache.cli.commands import COMMANDS, load
from jaxcache.cli.help import in_panels

_CHOICE = re.compile(r"[a-z-]+(\|[a-z-]+)+")
FILE_OPTIONS = ("FILE", "PATH", "PATH|URL", "DIR", "PYTHON", "RECIPE")


@dataclass(frozen=True, slots=True)
class Option:
    """One option as the help shows it."""

    names: tuple[str, ...]
    metavar: str
    """Empty for a flag."""
    help: str

    @property
    def choices(self) -> tuple[str, ...]:
        """Its values, where the help names them all: ``lru|cost``."""
        return tuple(self.metavar.split("|")) if _CHOICE.fullmatch(self.metavar) else ()


@dataclass(frozen=True, slots=True)
class Command:
    """One command as the help shows it."""

    name: str
    summary: str
    arguments: tuple[tuple[str, str], ...]
    """(metavar, help) pairs."""
    options: tuple[Option, ...]
    example: str
    exit_codes: tuple[int, ...]

    @property
    def headline(self) -> str:
        """The first sentence of its summary, without the full stop."""
        return self.summary.partition(". ")[0].rstrip(".")

    @property
    def completes(self) -> str:
        """What its arguments are: ``keys``, ``files`` or nothing."""
        shown = " ".join(metavar for metavar, _ in self.arguments)
        return "keys" if "KEY" in shown else "files" if shown else ""


def read_command(name: str) -> Command:
    """Read a command from its parser."""
    parser, _ = load_parser(name)
    row = COMMANDS[name]
    example = f"jaxcache {name} {row.example}".rstrip()
    declared = parser.declared.values()
    arguments = [(str(o.metavar), o.help) for o in declared if o.is_argument]
    in_order = [o for some in in_panels(declared, row.most_used.split()).values() for o in some]
    in_order.sort(key=lambda option: option.names[0] == "--help")
    shown = [Option(_spellings(o), "" if o.is_flag else str(o.metavar), o.help) for o in in_order]
    summary = " ".join(load(row.place).__doc__.split())
    return Command(name, summary, tuple(arguments), tuple(shown), example, row.exit_codes)


def _spellings(option: options.Option) -> tuple[str, ...]:
    spelled = [name for names in option.names for name in names.split("/")]
    return tuple(sorted(spelled, key=lambda name: (len(name), name)))


def first_words(commands: list[Command]) -> list[str]:
    """What may follow ``jaxcache``."""
    return list(dict.fromkeys(c.name.split()[0] for c in commands))


def second_words(commands: list[Command], group: str) -> list[str]:
    """What may follow ``jaxcache GROUP``."""
    return [c.name.split()[1] for c in commands if c.name.startswith(f"{group} ")]
