"""The keywords of the Python interface as types, from the classes of options."""

from collections.abc import Iterator

from jaxcache import options
from jaxcache.options import Option, Options, move, run

#: The classes whose fields are keywords of methods of :class:`jaxcache.Cache`.
_CLASSES: tuple[type[Options], ...] = (
    options.ListOptions,
    options.VerifyOptions,
    options.SealOptions,
    options.PruneOptions,
    options.RemovalOptions,
    move.ExportOptions,
    move.ImportOptions,
    move.PushOptions,
    run.RunOptions,
    run.WarmOptions,
    run.CompileOptions,
    run.DoctorOptions,
)
_PATH = "str | PathLike[str]"
#: What a caller may pass for each kind of value.
_TYPES = {
    id(options.FLAG): "bool",
    id(options.SWITCH): "bool | None",
    id(options.TEXT): f"{_PATH} | None",
    id(options.TEXTS): f"{_PATH} | Sequence[{_PATH}]",
    id(options.COUNT): "int | None",
    id(options.NUMBER): "int",
    id(options.SIZE): "int | str | None",
    id(options.DURATION): "float | str | None",
    id(options.TIME): "int | str | datetime | None",
}
_HEAD = """\
# Written by tools/gen.py from the classes of options; for type checkers alone.
from collections.abc import Sequence
from datetime import datetime
from os import PathLike
from typing import Literal, TypedDict
"""


def keywords() -> str:
    """The stub of :mod:`jaxcache.options.keywords`."""
    return "\n".join([_HEAD, *("\n".join(_typed(kind)) for kind in _CLASSES)])


def _typed(kind: type[Options]) -> Iterator[str]:
    yield f"class {kind.__name__.removesuffix('Options')}Keywords(TypedDict, total=False):"
    for declared in kind.DECLARED.values():
        if declared.names[0].startswith("-"):
            yield f"    {declared.keyword}: {_type(declared)}"
    yield ""


def _type(declared: Option) -> str:
    if known := _TYPES.get(id(declared.kind)):
        return known
    if declared.kind.metavar and declared.kind.type is str:  # a choice
        words = declared.kind.metavar.split("|")
        return f"Literal[{', '.join(repr(w).replace(chr(39), chr(34)) for w in words)}]"
    return "int | None" if declared.kind.type == int | None else f"{_PATH} | None"
