"""Commands whose parameters are classes of options become commands that Typer can read."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from jaxcache.options.declare import PANELS, TEXTS, Option, Options


class PanelCommand(TyperCommand):
    """A command whose help lists its options under headings."""

    #: The options that its help lists first, in this order.
    most_used: tuple[str, ...] = ()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each panel of options."""
        parameters = self.get_params(ctx)
        arguments = [p for p in parameters if p.param_type_name == "argument"]
        options = in_panels(
            (p for p in parameters if p.param_type_name == "option"), self.most_used
        )
        for heading, some in {"Arguments": arguments, **options}.items():
            if records := [record for p in some if (record := p.get_help_record(ctx))]:
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


def expand_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace each parameter of ``command`` that is a class of options by those it declares."""
    parameters: list[inspect.Parameter] = []
    classes: dict[str, type[Options]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if isinstance(parameter.annotation, type) and issubclass(parameter.annotation, Options):
            classes[name] = parameter.annotation
            parameters += map(_parameter, *zip(*parameter.annotation.DECLARED.items(), strict=True))
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    if not classes:
        return command

    @wraps(command)
    def call(**values: Any) -> Any:
        for name, options in classes.items():
            declared = options.DECLARED.items()
            values[name] = options(**{field: o.read(values.pop(field)) for field, o in declared})
        return command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _parameter(field: str, declared: Option) -> inspect.Parameter:
    settings: dict[str, Any] = {"metavar": declared.metavar, "help": declared.help}
    settings |= declared.settings
    default = declared.default
    if declared.kind is TEXTS:
        settings["show_default"], default = False, None
    info = (
        typer.Option(*declared.names, **settings)
        if declared.names[0].startswith("-")
        else typer.Argument(**settings)
    )
    return inspect.Parameter(
        field,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[declared.kind.type, info],
    )
