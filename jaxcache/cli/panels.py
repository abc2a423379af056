"""The parsers of commands, as Typer makes them, with their options under headings.

Options of ``run`` and ``warm`` can stand alone: ``--fail-on-miss`` means ``--fail-on-miss=0``.
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from jaxcache.cli.commands import REQUIRED, Parameter, expand_options
from jaxcache.cli.plain import ALONE, LIMIT
from jaxcache.options import PANELS, TEXTS

#: How similar a misspelled option is, as :mod:`difflib` measures it.
_NEAR = 0.85


class PanelCommand(TyperCommand):
    """A command whose help lists its options under headings."""

    #: The options that its help lists first, in this order.
    most_used: tuple[str, ...] = ()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments as they are declared; versions of Typer add to them differently."""
        return ["[OPTIONS]", *(argument.metavar for argument in self._arguments(ctx))]

    def _arguments(self, ctx: Any) -> list[Any]:
        return [p for p in self.get_params(ctx) if p.param_type_name == "argument"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each panel of options."""
        options = (p for p in self.get_params(ctx) if p.param_type_name == "option")
        panels = {
            heading: [record for p in some if (record := p.get_help_record(ctx))]
            for heading, some in in_panels(options, self.most_used).items()
        }
        arguments = [(a.metavar, a.get_help_record(ctx)[1]) for a in self._arguments(ctx)]
        for heading, records in {"Arguments": arguments, **panels}.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def in_panels(parameters: Iterable[Any], most_used: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Sort a command's options into the panels of its help."""
    panels: defaultdict[str, list[Any]] = defaultdict(list)
    for parameter in parameters:
        panel = "Output" if "--help" in parameter.opts else "Options"
        panel = getattr(parameter, "rich_help_panel", None) or panel
        panels["Most used" if parameter.opts[0] in most_used else panel].append(parameter)
    panels["Most used"].sort(key=lambda parameter: most_used.index(parameter.opts[0]))
    return {name: panels[name] for name in sorted(panels, key=PANELS.index) if panels[name]}


def for_typer(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with its options as Typer reads them from a signature."""
    call, parameters = expand_options(command)
    signature = inspect.Signature([_as_typer(p) for p in parameters])
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return call


def _as_typer(parameter: Parameter) -> inspect.Parameter:
    annotation = parameter.type
    if declared := parameter.declared:
        settings: dict[str, Any] = {"metavar": declared.metavar, "help": declared.help}
        settings |= declared.settings
        if declared.kind is TEXTS:
            settings["show_default"] = False
        if parameter.is_argument:
            annotation = Annotated[annotation, typer.Argument(**settings)]
        else:
            annotation = Annotated[annotation, typer.Option(*declared.names, **settings)]
    default = inspect.Parameter.empty if parameter.default is REQUIRED else parameter.default
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(parameter.name, keyword, default=default, annotation=annotation)


class OptionalValueCommand(PanelCommand):
    """A command some of whose options take a number, a duration, or nothing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give an option that stands alone its value; what follows the program is not ours."""
        with_value = {
            name
            for p in self.params
            if p.param_type_name == "option" and not getattr(p, "is_flag", False)
            for name in p.opts
        }
        position = 0
        while position < len(args) and args[position] != "--":
            option = args[position]
            following = args[position + 1] if position + 1 < len(args) else ""
            if not option.startswith("-") or option == "-":  # a program on standard input
                if not self.takes_options_after(option):
                    if following == "--" and any(p.name == "script" for p in self.params):
                        del args[position + 1]
                    elif not ctx.resilient_parsing:
                        own = args[position + 1 :]
                        self._note_lost_options(option, [] if following == "--" else own)
                    if following != "--" and ctx.allow_interspersed_args:
                        args.insert(position + 1, "--")
                    break
                ctx.allow_interspersed_args = True
                position += 1
            elif option == "-m" and following:
                args.insert(position + 2, "--")  # the rest is the module's own, as for python -m
                if not ctx.resilient_parsing:
                    self._note_lost_options(following, args[position + 3 :])
                break
            elif option in ALONE and not re.fullmatch(LIMIT, following):
                args[position] = f"{option}={ALONE[option]}"
                position += 1
            else:
                position += 2 if option in with_value else 1
        return super().parse_args(ctx, args)

    def _note_lost_options(self, program: str, arguments: list[str]) -> None:
        """Name the options of the program that are spelled as ours are, once.

        A near miss of an assertion counts, too: without it, a run that should fail passes.
        """
        options = [p for p in self.params if p.param_type_name == "option"]
        ours = {name for p in options for name in p.opts} - {"--help"}
        assertions = [
            n for p in options if getattr(p, "rich_help_panel", "") == "Assertions" for n in p.opts
        ]
        names = [a.partition("=")[0] for a in arguments if a.startswith("-")]
        lost = [n for n in names if n in ours or get_close_matches(n, assertions, 1, _NEAR)]
        if lost:
            from jaxcache.cli.output import note

            was = "was" if len(lost) == 1 else "were"
            text = ", ".join(dict.fromkeys(lost))
            note(f"note: {text} {was} passed to {program}; options for jaxcache go before it")

    def takes_options_after(self, program: str) -> bool:  # noqa: ARG002
        """Whether what follows the program is ours, too."""
        return False


class WarmCommand(OptionalValueCommand):
    """``warm``: what follows a script is the script's own, what follows a function is ours."""

    def takes_options_after(self, program: str) -> bool:
        """A function has arguments of its own only as options of ours."""
        from jaxcache.warm.programs import is_function

        return is_function(program)
