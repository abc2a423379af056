"""Read a pickle without unpickling it: an inert machine over ``pickletools.genops``.

Python's unpickler is a stack machine whose opcodes name functions and call them. This one has the
same stack, memo and marks, and calls nothing: a global becomes a :class:`Global`, a name; a call
becomes a :class:`PickledRecord` of what would have been called with what. Nothing is imported.

Every bound holds before memory is taken: the bytes, the operations, the nesting. Memory is linear
in the operations, because a memo reference adds a reference and no copy; what walks the result
must therefore remember where it was (:func:`walk` does), or a few hundred bytes that refer to each
other make 2^100 leaves.

Source of the operations: ``pickletools.py`` of CPython 3.11, protocols 0 to 5.
"""

import io
import pickletools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

#: Torch's entries are some 100 kB; one with embedded constants may be larger.
MAX_BYTES = 64 << 20
#: An entry has about 5,000. A million take 3 s.
MAX_OPERATIONS = 1_000_000
#: Containers within containers; an entry has about 12.
MAX_DEPTH = 200
#: Words of pickletools' errors about bytes that end too early.
_ENDED = ("exhausted", "remain", "no newline", "not enough data")


class PickleError(Exception):
    """These bytes are not a pickle, or exceed a bound.

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
class PickledRecord:
    """The object that unpickling would have made by calling ``callee``."""

    callee: Any
    """A :class:`Global` in any honest pickle."""
    arguments: Any
    state: Any = None
    items: list[Any] = field(default_factory=list)
    """The items that would have been appended, set or added to it."""

    def get(self, name: str) -> Any:
        """Return the attribute of that name in its state; None if it has none."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2:  # (__dict__, __slots__)
            state = next((s for s in state if isinstance(s, PickledTable)), None)
        return state.get(name) if isinstance(state, PickledTable) else None


@dataclass(slots=True, eq=False)
class PickledTable:
    """A dictionary; a list of pairs, because inert keys need not be hashable."""

    items: list[tuple[Any, Any]] = field(default_factory=list)

    def get(self, name: str) -> Any:
        """Return the value that was set last under a text; None if none was set."""
        for key, value in reversed(self.items):
            if type(key) is str and key == name:
                return value
        return None


@dataclass(slots=True, eq=False)
class PickledSet:
    """A set or frozenset."""

    items: list[Any] = field(default_factory=list)


def walk(root: Any) -> Iterator[Any]:
    """Yield a value and everything in it, containers and records once each, outermost first."""
    visited: set[int] = set()
    waiting = [root]
    while waiting:
        value = waiting.pop()
        inside = _inside(value)
        if inside is not None:
            if id(value) in visited:
                continue
            visited.add(id(value))
            waiting.extend(reversed(inside))
        yield value


def _inside(value: Any) -> list[Any] | None:
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, PickledTable):
        return [part for pair in value.items for part in pair]
    if isinstance(value, PickledSet):
        return value.items
    if isinstance(value, PickledRecord):
        return [value.callee, value.arguments, value.state, *value.items]
    return None


_MARK = object()


class PickleInterpreter:
    """Stack, memo and marks."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._marks = 0
        self._depths: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no id is given twice
        self.globals: list[Global] = []
        self.result: Any = None

    def run(self, name: str, argument: Any) -> None:
        """Carry out one operation."""
        if name in _LITERALS:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif (handler := _HANDLERS.get(name)) is not None:
            handler(self, argument)
        else:
            raise PickleError(f"{name} is not an operation of a self-contained pickle")

    def _pop(self) -> Any:
        value = self._top()
        del self._stack[-1]
        return value

    def _pop_last(self, count: int) -> list[Any]:
        return [self._pop() for _ in range(count)][::-1]

    def _top(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise PickleError("pickle stack underflow")
        return self._stack[-1]

    def _pop_to_mark(self) -> list[Any]:
        stack = self._stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                items = stack[at + 1 :]
                del stack[at:]
                self._marks -= 1
                return items
        raise PickleError("MARK missing")

    def _push(self, value: Any, inside: Iterable[Any] = ()) -> None:
        self._alive.append(value)
        self._stack.append(value)
        self._deepen(value, inside)

    def _deepen(self, value: Any, inside: Iterable[Any]) -> None:
        depths = self._depths
        depth = 1 + max((depths.get(id(i), 0) for i in inside), default=0)
        if depth > MAX_DEPTH:
            raise PickleError(f"nested deeper than {MAX_DEPTH}")
        if depth > depths.get(id(value), 0):
            depths[id(value)] = depth

    def _mark(self, _: Any) -> None:
        self._marks += 1
        if self._marks > MAX_DEPTH:
            raise PickleError(f"nested deeper than {MAX_DEPTH}")
        self._stack.append(_MARK)

    def _stop(self, _: Any) -> None:
        self.result = self._pop()
        if self._stack:
            raise PickleError("leaves something on its stack")

    def _discard(self, _: Any) -> None:
        if self._stack and self._stack[-1] is _MARK:
            self._pop_to_mark()
        else:
            self._pop()

    def _put(self, number: Any) -> None:
        self._memo[int(number)] = self._top()

    def _get(self, number: Any) -> None:
        if int(number) not in self._memo:
            raise PickleError("unknown memo index")
        self._stack.append(self._memo[int(number)])

    def _list(self, _: Any) -> None:
        items = self._pop_to_mark()
        self._push(items, items)

    def _push_tuple(self, items: list[Any]) -> None:
        self._push(tuple(items), items)

    def _table(self, _: Any) -> None:
        flat = self._pop_to_mark()
        self._push(PickledTable(_pairs(flat)), flat)

    def _bag(self, _: Any) -> None:
        items = self._pop_to_mark()
        self._push(PickledSet(items), items)

    def _fill(self, values: list[Any], kind: type[Any]) -> None:
        """Put values into the top of the stack, which is of that kind, or an object."""
        target = self._top()
        if not isinstance(target, kind | PickledRecord):
            raise PickleError("APPEND or SETITEM on an object that does not support it")
        held: list[Any] = target if isinstance(target, list) else target.items
        held.extend(_pairs(values) if kind is PickledTable else values)
        self._deepen(target, values)

    def _global(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        self._push_global(module, name)

    def _stack_global(self, _: Any) -> None:
        module, name = self._pop_last(2)
        if not isinstance(name, str) or not isinstance(module, str):
            raise PickleError("STACK_GLOBAL with a name that is not a string")
        self._push_global(module, name)

    def _push_global(self, module: str, name: str) -> None:
        reference = Global(module, name)
        self.globals.append(reference)
        self._push(reference)

    def _new_object_with_names(self, _: Any) -> None:
        callee, *arguments = self._pop_last(3)
        self._call(callee, tuple(arguments))

    def _object(self, _: Any) -> None:
        items = self._pop_to_mark()
        if not items:
            raise PickleError("makes an object of nothing")
        self._call(items[0], tuple(items[1:]))

    def _instance(self, argument: Any) -> None:
        arguments = tuple(self._pop_to_mark())
        self._global(argument)
        self._call(self._pop(), arguments)

    def _call(self, callee: Any, arguments: Any) -> None:
        """Keep the function and its arguments without calling it."""
        self._push(PickledRecord(callee, arguments), (callee, arguments))

    def _build(self, _: Any) -> None:
        state = self._pop()
        target = self._top()
        if isinstance(target, PickledRecord):
            target.state = state
            self._deepen(target, (state,))
        elif not isinstance(target, Global):
            raise PickleError("BUILD on an object without a state")


def _pairs(flat: list[Any]) -> list[tuple[Any, Any]]:
    if len(flat) % 2:
        raise PickleError("a key without a value")
    return list(zip(flat[::2], flat[1::2], strict=True))


_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
#: Operations that push their argument.
_LITERALS = frozenset(
    re.findall(
        r"\w+",
        "INT BININT BININT1 BININT2 LONG LONG1 LONG4 STRING BINSTRING SHORT_BINSTRING BINBYTES "
        "SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 FLOAT "
        "BINFLOAT",
    )
)
_Handler = Callable[[PickleInterpreter, Any], object]
#: Operations that only differ in how their argument is written, by what they do.
_SHARED: dict[_Handler, str] = {
    lambda *_: None: "PROTO FRAME",  # a version or a length, which do not matter here
    PickleInterpreter._put: "PUT BINPUT LONG_BINPUT",
    PickleInterpreter._get: "GET BINGET LONG_BINGET",
    lambda machine, number: machine._push_global("copyreg extension", str(number)): (
        "EXT1 EXT2 EXT4"
    ),
    lambda machine, _: machine._call(*machine._pop_last(2)): "REDUCE NEWOBJ",
}
_HANDLERS: dict[str, _Handler] = {
    **{name: handler for handler, names in _SHARED.items() for name in names.split()},
    "MARK": PickleInterpreter._mark,
    "STOP": PickleInterpreter._stop,
    "POP": PickleInterpreter._discard,
    "POP_MARK": lambda machine, _: machine._pop_to_mark(),
    "DUP": lambda machine, _: machine._stack.append(machine._top()),
    "MEMOIZE": lambda machine, _: machine._put(len(machine._memo)),
    "LIST": PickleInterpreter._list,
    "EMPTY_LIST": lambda machine, _: machine._push([]),
    "TUPLE": lambda machine, _: machine._push_tuple(machine._pop_to_mark()),
    "EMPTY_TUPLE": lambda machine, _: machine._push_tuple([]),
    "TUPLE1": lambda machine, _: machine._push_tuple(machine._pop_last(1)),
    "TUPLE2": lambda machine, _: machine._push_tuple(machine._pop_last(2)),
    "TUPLE3": lambda machine, _: machine._push_tuple(machine._pop_last(3)),
    "DICT": PickleInterpreter._table,
    "EMPTY_DICT": lambda machine, _: machine._push(PickledTable()),
    "FROZENSET": PickleInterpreter._bag,
    "EMPTY_SET": lambda machine, _: machine._push(PickledSet()),
    "APPEND": lambda machine, _: machine._fill(machine._pop_last(1), list),
    "APPENDS": lambda machine, _: machine._fill(machine._pop_to_mark(), list),
    "SETITEM": lambda machine, _: machine._fill(machine._pop_last(2), PickledTable),
    "SETITEMS": lambda machine, _: machine._fill(machine._pop_to_mark(), PickledTable),
    "ADDITEMS": lambda machine, _: machine._fill(machine._pop_to_mark(), PickledSet),
    "GLOBAL": PickleInterpreter._global,
    "STACK_GLOBAL": PickleInterpreter._stack_global,
    "NEWOBJ_EX": PickleInterpreter._new_object_with_names,
    "OBJ": PickleInterpreter._object,
    "INST": PickleInterpreter._instance,
    "PERSID": lambda machine, name: machine._call(None, (name,)),
    "BINPERSID": lambda machine, _: machine._call(None, (machine._pop(),)),
    "BUILD": PickleInterpreter._build,
}


@dataclass(frozen=True, slots=True)
class Pickle:
    """The objects that a pickle would build, and the names it would import."""

    root: Any
    globals: tuple[str, ...]
    """Dotted names, each once, in order of appearance."""
    operations: int


def read_pickle(data: bytes, *, max_operations: int = MAX_OPERATIONS) -> Pickle:
    """Read one pickle that fills ``data``.

    Raises:
        PickleError: for any bytes that are not one whole pickle within the bounds.
    """
    if len(data) > MAX_BYTES:
        raise PickleError(f"{len(data)} bytes, more than the {MAX_BYTES} that are read")
    stream = io.BytesIO(data)
    machine = PickleInterpreter()
    count = 0
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            count += 1
            if count > max_operations:
                raise PickleError(f"more than {max_operations} operations")
            machine.run(opcode.name, argument)
    except (ValueError, OverflowError, MemoryError) as error:
        text = str(error)
        ended = any(sign in text for sign in _ENDED)
        raise PickleError(text[:200], truncated=ended) from error
    if unread := len(data) - stream.tell():
        raise PickleError(f"{unread} bytes after its end")
    return Pickle(machine.result, tuple(dict.fromkeys(map(str, machine.globals))), count)
