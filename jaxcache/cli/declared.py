"""The parameters of a command: those of its classes of options, and its own, as declared options.

Both readers of a command line, :mod:`jaxcache.cli.plain` and the parser of :mod:`jaxcache.cli.app`,
are made from them. Neither ``inspect`` nor the parser is imported: both take longer than the call.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from jaxcache.errors import ExitCode, JaxcacheError
from jaxcache.options.declare import TEXTS, Option, Options

#: The default of a parameter that has none.
REQUIRED = ...


class Parameter(NamedTuple):
    """One parameter of an expanded command."""

    name: str
    type: Any
    declared: Option | None
    """None for the context of the parser."""
    default: Any = REQUIRED

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument, which its position identifies."""
        return self.declared is not None and not self.declared.names[0].startswith("-")


def expand_options(
    command: Callable[..., Any],
) -> tuple[Callable[..., Any], list[Parameter]]:
    """Replace each parameter of ``command`` that is a class of options by those it declares.

    Returns:
        A function that takes the values by keyword, and its parameters.
    """
    code = command.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    positional = names[: code.co_argcount]
    defaults = dict(zip(reversed(positional), reversed(command.__defaults__ or ()), strict=False))
    defaults |= command.__kwdefaults__ or {}
    parameters: list[Parameter] = []
    classes: dict[str, type[Options]] = {}
    for name in names:
        kind = command.__annotations__[name]
        if isinstance(kind, type) and issubclass(kind, Options):
            classes[name] = kind
            for field, option in kind.DECLARED.items():
                default = None if option.kind is TEXTS else option.default
                parameters.append(Parameter(field, option.kind.type, option, default))
            continue
        declared = next(iter(getattr(kind, "__metadata__", ())), None)
        type_ = kind.__origin__ if declared else kind
        parameters.append(Parameter(name, type_, declared, defaults.get(name, REQUIRED)))

    @wraps(command)
    def call(**values: Any) -> Any:
        for name, options in classes.items():
            declared = options.DECLARED.items()
            read = {field: o.read(values.pop(field, None)) for field, o in declared}
            values[name] = options(**read)
        try:
            return command(**values)
        except KeyboardInterrupt as error:  # of which the parser would make an end without a word
            code = ExitCode.INTERRUPTED
            raise JaxcacheError("interrupted", code="interrupted", exit_code=code) from error

    return call, parameters
