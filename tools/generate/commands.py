"""The commands as their help shows them."""

import re
from dataclasses import dataclass
from typing import Any

from jaxcache.cli.app import load_command
from jaxcache.cli.commands import COMMANDS
from jaxcache.cli.panels import in_panels

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
    """Read a command from its Typer parser."""
    parser = load_command(name)
    row = COMMANDS[name]
    example = f"jaxcache {name} {row.example}".rstrip()
    arguments = [
        (p.metavar or p.name.upper(), _help(p))
        for p in parser.params
        if p.param_type_name == "argument"
    ]
    options_of_parser = (p for p in parser.params if p.param_type_name == "option")
    panels = in_panels(options_of_parser, parser.most_used)
    options = [
        Option(_option_names(p), _metavar(p), _help(p)) for some in panels.values() for p in some
    ]
    options.append(Option(("-h", "--help"), "", "Show this message and exit."))
    summary = " ".join((parser.help or "").split("\f")[0].split())
    return Command(name, summary, tuple(arguments), tuple(options), example, row.exit_codes)


def _help(parameter: Any) -> str:
    return " ".join((getattr(parameter, "help", None) or "").split())


def _option_names(parameter: Any) -> tuple[str, ...]:
    return tuple(sorted([*parameter.opts, *parameter.secondary_opts], key=lambda o: (len(o), o)))


def _metavar(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return ""
    choices = [
        str(getattr(c, "value", c))
        for c in getattr(getattr(parameter, "type", None), "choices", ())
    ]
    return str(parameter.metavar or "|".join(choices) or parameter.type.name.upper())


def first_words(commands: list[Command]) -> list[str]:
    """What may follow ``jaxcache``."""
    return list(dict.fromkeys(c.name.split()[0] for c in commands))


def second_words(commands: list[Command], group: str) -> list[str]:
    """What may follow ``jaxcache GROUP``."""
    return [c.name.split()[1] for c in commands if c.name.startswith(f"{group} ")]
