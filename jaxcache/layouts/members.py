"""What the class of a layout is made of: its words, and its groups of functions."""

from importlib import import_module
from typing import Generic, NamedTuple, TypeVar, cast

T = TypeVar("T")


class Words(NamedTuple):
    """The words for one compiler on screens that all layouts share."""

    compiler: str
    fill: str
    """How to fill its cache."""
    record: str | None
    """How to record its hits; None where they cannot be recorded."""


class FunctionGroup(Generic[T]):
    """A group of functions: a module, imported on first use.

    ``tests/typed_layouts.py`` has mypy hold each module to the group's protocol.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __get__(self, layout: object, owner: type) -> T:
        return cast("T", import_module(self._module))
