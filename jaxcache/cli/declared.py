"""Commands whose parameters are classes of options become commands that click can parse.

What the help shows of a parameter is written here, because click words it differently in each
release.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, get_args

import click

from jaxcache.options.declare import PANELS, TEXTS, Options


class Declaration(NamedTuple):
    """An option as a command's signature declares it; an argument where it has no names."""

    names: tuple[str, ...]
    settings: dict[str, Any]


def declare_argument(metavar: str, text: str, **settings: Any) -> Declaration:
    """Declare an argument of a command, with what the help says; further settings are click's."""
    return Declaration((), {"metavar": metavar, "help": text, **settings})


def declare_option(*names: str, text: str, **settings: Any) -> Declaration:
    """Declare an option of a command; further settings are click's, and ``panel``."""
    return Declaration(names, {"help": text, **settings})


class HelpedOption(click.Option):
    """An option whose help ends with its default and its range."""

    def __init__(self, names: Sequence[str], *, panel: str = "Options", **settings: Any) -> None:
        settings.setdefault("default", False if settings.get("is_flag") else None)
        super().__init__(names, **settings)
        self.panel = panel

    @property
    def shown_metavar(self) -> str:
        """What stands for the value; empty for a flag."""
        return "" if self.is_flag else self.metavar or self.type.name.upper()

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:  # noqa: ARG002
        """Return the names, and the text."""
        names = [
            ", ".join(sorted(some, key=lambda name: name.startswith("--")))
            for some in (self.opts, self.secondary_opts)
            if some
        ]
        default = self.default
        if self.is_flag and default is not None:
            chosen = self.opts if default else self.secondary_opts
            default = chosen[0].lstrip("-") if self.secondary_opts else None
        limits = [_describe_range(self.type)] if isinstance(self.type, click.IntRange) else []
        text = _with_extra(self.help or "", default, limits)
        return f"{' / '.join(names)} {self.shown_metavar}".rstrip(), text


def _with_extra(text: str, default: Any, others: Sequence[str]) -> str:
    """Return a text with the default value, if there is one, and more in brackets behind it."""
    extra = [*([] if default is None else [f"default: {default}"]), *others]
    return f"{text}  [{'; '.join(extra)}]" if extra else text


def _describe_range(limits: click.IntRange) -> str:
    if limits.max is None:
        return f"x>={limits.min}"
    return f"{limits.min}<=x<={limits.max}"


class HelpedArgument(click.Argument):
    """An argument that the help describes."""

    def __init__(self, name: str, *, help: str, **settings: Any) -> None:  # noqa: A002
        super().__init__([name], **settings)
        self.help: str = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:  # noqa: ARG002
        """Return the name, and the text."""
        default = None if self.required else self.default
        required = ["required"] if self.required else []
        return self.metavar or "", _with_extra(self.help, default, required)

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return what the usage line shows."""
        metavar = self.metavar or ""
        return [metavar if metavar.startswith("[") else f"{{{metavar}}}"]


class PanelCommand(click.Command):
    """A command whose help lists its options under headings."""

    #: The options that its help lists first, in this order.
    most_used: tuple[str, ...] = ()

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, text, arguments, each panel of options, and the end."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        parameters = self.get_params(ctx)
        arguments = [p for p in parameters if isinstance(p, click.Argument)]
        options = in_panels((p for p in parameters if isinstance(p, click.Option)), self.most_used)
        for heading, some in {"Arguments": arguments, **options}.items():
            if records := [record for p in some if (record := p.get_help_record(ctx))]:
                with formatter.section(heading):
                    formatter.write_dl(records)
        self.format_epilog(ctx, formatter)


def in_panels(
    parameters: Iterable[click.Option], most_used: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """Sort a command's options into the panels of its help."""
    panels: defaultdict[str, list[Any]] = defaultdict(list)
    for parameter in parameters:
        panel = getattr(parameter, "panel", "Output")  # --help is click's own
        panels["Most used" if parameter.opts[0] in most_used else panel].append(parameter)
    panels["Most used"].sort(key=lambda parameter: most_used.index(parameter.opts[0]))
    return {name: panels[name] for name in sorted(panels, key=PANELS.index) if panels[name]}


def make_command(
    function: Callable[..., Any], *, cls: type[click.Command] = PanelCommand, **settings: Any
) -> Any:
    """Make the command that calls ``function`` with what the command line says.

    A parameter of ``function`` that is a class of options becomes the options that it declares, and
    one annotated with a :class:`Declaration` becomes that one; ``click.Context`` is passed as it
    is.
    """
    parameters: list[click.Parameter] = []
    classes: dict[str, type[Options]] = {}
    context = ""
    for name, parameter in inspect.signature(function).parameters.items():
        kind = parameter.annotation
        if kind is click.Context:
            context = name
        elif isinstance(kind, type) and issubclass(kind, Options):
            classes[name] = kind
            parameters += _declared_parameters(kind)
        else:
            kind, declaration = get_args(kind)
            parameters.append(_make_parameter(name, kind, parameter.default, declaration))

    def call(**values: Any) -> Any:
        values = {name: [*v] if isinstance(v, tuple) else v for name, v in values.items()}
        for name, options in classes.items():
            declared = options.DECLARED.items()
            values[name] = options(**{field: o.read(values.pop(field)) for field, o in declared})
        if context:
            values[context] = click.get_current_context()
        return function(**values)

    settings.setdefault("help", inspect.getdoc(function))
    return cls(callback=call, params=parameters, **settings)


def _declared_parameters(options: type[Options]) -> Iterable[click.Parameter]:
    for field, declared in options.DECLARED.items():
        settings = {"metavar": declared.metavar, "help": declared.help, **declared.settings}
        names = declared.names if declared.names[0].startswith("-") else ()
        default = None if declared.kind is TEXTS else declared.default
        yield _make_parameter(field, declared.kind.type, default, Declaration(names, settings))


def _make_parameter(
    field: str, kind: Any, default: Any, declaration: Declaration
) -> click.Parameter:
    """Make a parameter for values of a type; an argument without a default is required."""
    settings = dict(declaration.settings)
    is_list = str(kind).startswith("list")
    value_type, *_ = get_args(kind) or (kind,)  # str, of str | None and of list[str]
    limits = [settings.pop(name, None) for name in ("min", "max")]
    if limits != [None, None]:
        value_type = click.IntRange(*limits)
    settings.setdefault("type", str if is_list else value_type)
    if default is inspect.Parameter.empty:
        settings["required"] = True
    else:
        settings["default"] = default
    if declaration.names:
        if value_type is bool:
            settings["is_flag"] = True
        return HelpedOption([field, *declaration.names], multiple=is_list, **settings)
    settings.setdefault("required", False)
    return HelpedArgument(field, nargs=-1 if is_list else 1, **settings)
