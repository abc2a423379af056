"""The values that an inert machine makes of a pickle: names, records, containers; nothing runs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


class PickleError(Exception):
    """These bytes are no pickle, or exceed a bound.

    Args:
        detail: for people.
        truncated: the bytes end before the pickle does.
    """

    def __init__(self, detail: str, *, truncated: bool = False) -> None:
        super().__init__(detail)
        self.detail = detail
        self.truncated = truncated


@dataclass(frozen=True, slots=True)
class Global:
    """The name of something that unpickling would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Record:
    """The object that unpickling would have made by calling ``callee``."""

    callee: Any
    """A :class:`Global` in any honest pickle."""
    arguments: Any
    state: Any = None
    items: list[Any] = field(default_factory=list)
    """The items that would have been appended, set or added to it."""

    def get(self, name: str) -> Any:
        """The attribute of that name in its state; None if there is none."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2:  # (__dict__, __slots__)
            state = next((s for s in state if isinstance(s, Table)), None)
        return state.get(name) if isinstance(state, Table) else None


@dataclass(slots=True, eq=False)
class Table:
    """A dictionary; a list of pairs, because inert keys need not be hashable."""

    pairs: list[tuple[Any, Any]] = field(default_factory=list)

    def get(self, name: str) -> Any:
        """The value that was set last under a text; None if there is none."""
        for key, value in reversed(self.pairs):
            if type(key) is str and key == name:
                return value
        return None


@dataclass(slots=True, eq=False)
class Bag:
    """A set or frozenset."""

    members: list[Any] = field(default_factory=list)


def walk(root: Any) -> Iterator[Any]:
    """Yield a value and everything in it, containers and records once each, outermost first."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        value = waiting.pop()
        inside = _inside(value)
        if inside is not None:
            if id(value) in seen:
                continue
            seen.add(id(value))
            waiting.extend(reversed(inside))
        yield value


def _inside(value: Any) -> list[Any] | None:
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, Table):
        return [part for pair in value.pairs for part in pair]
    if isinstance(value, Bag):
        return value.members
    if isinstance(value, Record):
        return [value.callee, value.arguments, value.state, *value.items]
    return None
