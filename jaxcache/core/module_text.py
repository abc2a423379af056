"""Read a StableHLO module in MLIR's generic form: operations by source line.

The functions that JAX itself jits, such as ``relu`` or ``clip``, are traced once and keep the line
of their first caller. Their bodies therefore count as a part of each call, and not as operations of
that line.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from .call_site import is_library
from .layers import OperationGraph, Statement
from .names import unescape_mlir

#: Sketches of another version have other digests, and are not compared.
SKETCH_VERSION = 4
_MAX_CONSTANT_CHARACTERS = 48
_MAX_TEXT = 160

_OPERATION = re.compile(r'\s*(?:%(\w+)(?::\d+)? = )?"([\w.$-]+)"\(([^)]*)\)(.*)$')
_SYMBOL = re.compile(r'sym_name = "([^"]*)"')
_CALLEE = re.compile(r'callee = @("[^"]*"|[\w.$-]+)')
_ARGUMENT = re.compile(r'%(\w+): ([^%]*?) loc\((?:"((?:[^"\\]|\\.)*)"\)|[^%]*)')
_ALIAS = re.compile(r"#(loc\d*) = loc\((.*)\)$")
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+)(?::\d+)?')
_NAMED = re.compile(r'"((?:[^"\\]|\\.)*)"\((.*)\)$')
_VALUE = re.compile(r"value = (dense<.*?>|dense_resource<[^>]*>|[^:]*?) :")
_SHARDING = re.compile(r'(?:mhlo|sdy)\.sharding = ("[^"]*"|#sdy\.sharding<[^>]*>)')
_NUMBERED = re.compile(r"_\d+$")
_TYPE = re.compile(r"tensor<((?:\d+x|\?x)*)([^<>x,]+(?:<[^<>]*>)?)[^<>]*>")
#: Names of private functions that always hold code of the user's.
_BODIES = frozenset({"closed_call", "checkpoint", "core_call", "remat", "None", "shmap_body"})
_RETURNS = frozenset({"stablehlo.return", "func.return", "sdy.return"})

SourcePlace = tuple[str, int, str]
"""File, line and function."""
_NOWHERE: SourcePlace = ("", 0, "")


@dataclass(frozen=True)
class _Stack:
    """A summary of the frames of a location; they are ordered from the operation outwards."""

    place: SourcePlace = _NOWHERE
    """The innermost frame of the user's own, else the innermost."""
    is_own: bool = False
    """Whether :attr:`place` is the user's own."""
    is_library_inside: bool = False
    """Whether a frame of a library is inside of all of the user's."""
    is_library_outside: bool = False
    """Whether a frame of a library is outside of all of the user's."""
    own_functions: "tuple[tuple[str, str], ...]" = ()
    """File and name of each function of the user's, from the innermost outwards."""


def _digest(parts: Iterable[str], size: int = 4) -> str:
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        digest.update(part.encode("utf-8", "replace"))
        digest.update(b"\0")
    return digest.hexdigest()


@dataclass
class _Operation:
    location: str
    text: str
    callee: str
    wiring: str


class ModuleText:
    """The operations of a module, function by function."""

    def __init__(self, text: str) -> None:
        self._functions: dict[str, list[_Operation]] = {}
        self._locations: dict[str, str] = {}
        self._stacks: dict[str, _Stack] = {}
        self._callback_sites: set[SourcePlace] = set()
        self._open: list[Statement] = []
        self._function: list[_Operation] = []
        self._constants: dict[str, str] = {}
        self._producers: dict[str, str] = {}
        self._arguments: list[tuple[str, str, str, int]] = []
        self._attributes: list[str] = []
        self._results = ""
        self._is_main = False
        self._graph = OperationGraph()
        for line in text.splitlines():
            self._read(line)
        self._digests: dict[str, str] = {}

    # Reading ----------------------------------------------------------------------------------

    def _read(self, line: str) -> None:
        if line.startswith("#"):
            if match := _ALIAS.match(line):
                self._locations[match[1]] = match[2]
            return
        if match := _OPERATION.match(line):
            self._read_operation(*match.groups(default=""))
            return
        start = line.lstrip()
        if start.startswith("}) ") and self._open:
            begun = self._open.pop()
            self._graph.end(start[3 : start.rfind(" loc(")])
            if begun.name not in ("func.func", "builtin.module"):
                self._add(begun, start)
        elif start.startswith("^bb0("):
            self._graph.read_block_arguments(start)
            if self._is_main and not self._arguments:
                self._read_arguments(start)
        elif start.startswith("}, {"):
            self._graph.next_region()

    def _read_operation(self, result: str, name: str, operands: str, tail: str) -> None:
        if tail.endswith("({"):
            begun = Statement(result, name, _values(operands), tail[:-2])
            self._open.append(begun)
            function = ""
            if name == "func.func":
                symbol = _SYMBOL.search(tail)
                function = unescape_mlir(symbol[1]) if symbol else ""
                self._function = self._functions.setdefault(function, [])
                self._is_main = function == "main"
                if self._is_main:
                    self._attributes = list(_argument_attributes(tail))
            self._graph.begin(begun, function)
            return
        at = tail.rfind(" : (")
        statement = Statement(result, name, _values(operands), tail[:at] if at >= 0 else "")
        if name in ("stablehlo.constant", "mhlo.constant"):
            value = _VALUE.search(tail)
            self._constants[result] = _constant(value[1] if value else "")
            types = tail[at : tail.rfind(" loc(")]
            self._graph.add(statement._replace(types=types))
            return
        self._graph.add(self._add(statement, tail))

    def _add(self, statement: Statement, end: str) -> Statement:
        """Add one operation, whose types and location are at the end of a line; return it whole."""
        result, name, taken, attributes, *_ = statement
        at = end.rfind(" loc(")
        types = end[end.rfind(" -> ", 0, at) + 4 : at]
        constants = [c for x in taken if (c := self._constants.get(x)) is not None]
        symbol = _CALLEE.search(attributes) if name.endswith("call") else None
        callee = unescape_mlir(symbol[1].strip('"')) if symbol else ""
        whole = statement._replace(types=types, callee=callee)
        if name in _RETURNS:
            if name == "func.return" and self._is_main:
                self._results = end[end.rfind(" : (") + 4 : end.rfind(") -> ")]
            return whole
        short = f"call {_NUMBERED.sub('', callee)}" if callee else name.rpartition(".")[2]
        kind = f"~{_digest([attributes], 3)}" if attributes.strip() and not callee else ""
        constants_text = f"({','.join(constants)})" if constants else ""
        shown = f"{short}{constants_text} {short_types(types)}{kind}"
        # Not by the names of constants, which are numbers that shift with the rest of the module.
        wiring = " ".join(
            self._producers.get(x.partition("#")[0], self._constants.get(x, x)) for x in taken
        )
        self._function.append(_Operation(end[at + 5 : -1], shown, callee, wiring))
        if result:
            self._producers[result] = short
        return whole

    def _read_arguments(self, line: str) -> None:
        for number, match in enumerate(_ARGUMENT.finditer(line)):
            attributes = self._attributes[number] if number < len(self._attributes) else ""
            sharding = _SHARDING.search(attributes)
            donated = "tf.aliasing_output" in attributes or "jax.buffer_donor" in attributes
            self._producers[match[1]] = f"argument {number}"
            self._arguments.append(
                (
                    unescape_mlir(match[3] or "")[:_MAX_TEXT],
                    short_types(match[2]),
                    sharding[1][:_MAX_TEXT] if sharding else "",
                    int(donated),
                )
            )

    # Locations --------------------------------------------------------------------------------

    def _stack(self, location: str) -> _Stack:
        if location not in self._stacks:
            self._stacks[location] = _Stack()  # a circle ends here
            self._stacks[location] = self._resolve(location)
        return self._stacks[location]

    def _resolve(self, location: str) -> _Stack:
        if location.startswith("#"):
            return self._stack(self._locations.get(location[1:], ""))
        if location.startswith("callsite(") and " at " in location:
            inner, _, outer = location[len("callsite(") : -1].rpartition(" at ")
            return self._join(self._stack(inner), self._stack(outer))
        if match := _FILE.match(location):
            return self._frame(match[1], int(match[2]), "")
        if match := _NAMED.match(location):
            inner = match[2]
            raw = self._locations.get(inner[1:], "") if inner.startswith("#") else inner
            if file := _FILE.match(raw):
                return self._frame(file[1], int(file[2]), match[1])
            return self._stack(inner)
        return _Stack()

    def _frame(self, file: str, line: int, function: str) -> _Stack:
        file = unescape_mlir(file)
        function = unescape_mlir(function)
        place = file, line, function
        if is_library(file):
            return _Stack(place, False, True, True)
        return _Stack(place, True, own_functions=((file, function),))

    def _join(self, inner: _Stack, outer: _Stack) -> _Stack:
        """Return the summary of a stack whose outer frames called the inner ones."""
        functions = inner.own_functions + outer.own_functions
        if inner.is_own and outer.is_own:
            # A function that JAX traced once and calls again has the stack of its first call inside
            # the stack of this one: a function that occurs in both is not a callback.
            is_callback = inner.own_functions[-1] not in outer.own_functions
            if is_callback and (inner.is_library_outside or outer.is_library_inside):
                self._callback_sites.add(outer.place)
            is_outside = outer.is_library_outside
            return replace(inner, is_library_outside=is_outside, own_functions=functions)
        is_library_between = inner.is_library_inside or outer.is_library_inside
        if inner.is_own:
            return replace(inner, is_library_outside=inner.is_library_outside or is_library_between)
        if outer.is_own:
            return replace(outer, is_library_inside=is_library_between)
        place = outer.place if inner.place == _NOWHERE else inner.place
        return _Stack(place, False, is_library_between, is_library_between)

    # The table --------------------------------------------------------------------------------

    def _is_part_of_its_calls(self, name: str) -> bool:
        """Return whether a private function is JAX's own, whose lines mean nothing to users."""
        base = _NUMBERED.sub("", name)
        if base in _BODIES or name not in self._functions:
            return False
        places = {self._stack(o.location).place for o in self._functions[name]} - {_NOWHERE}
        return len(places) < 2 and all(p[2].rpartition(".")[2] != base for p in places)

    def _text(self, operation: _Operation) -> str:
        """Return an operation; with the digest of its body where it calls one of JAX's own."""
        callee = operation.callee
        if not callee or not self._is_part_of_its_calls(callee):
            return operation.text
        if callee not in self._digests:
            self._digests[callee] = ""  # a recursive one
            body = self._functions[callee]
            self._digests[callee] = _digest(f"{self._text(o)} {o.wiring}" for o in body)
        return f"{operation.text}~{self._digests[callee]}"

    def _operations(self) -> Iterator[tuple[_Stack, str, str]]:
        for name, operations in self._functions.items():
            if name == "main" or not self._is_part_of_its_calls(name):
                for operation in operations:
                    stack = self._stack(operation.location)
                    yield stack, self._text(operation), operation.wiring

    def document(self, *, is_short: bool) -> dict[str, Any]:
        """Return the sketch as JSON holds it.

        Args:
            is_short: keep a digest of the operations of each line.
        """
        counts: dict[SourcePlace, Counter[str]] = {}
        wirings: dict[SourcePlace, list[str]] = {}
        order = hashlib.blake2b(digest_size=8)
        from_libraries: set[SourcePlace] = set()
        for stack, text, wiring in self._operations():
            place = stack.place
            if stack.is_library_inside:
                from_libraries.add(place)
            counts.setdefault(place, Counter())[text] += 1
            wirings.setdefault(place, []).append(f"{text} {wiring}")
            order.update(f"{place} {text} {wiring}\n".encode("utf-8", "replace"))
        if is_short:
            counts = {
                place: Counter({f"~{_digest(f'{t} {n}' for t, n in sorted(counted.items()))}": 1})
                for place, counted in counts.items()
            }
        operations = {
            text: n for n, text in enumerate(dict.fromkeys(t for c in counts.values() for t in c))
        }
        files = {file: n for n, file in enumerate(dict.fromkeys(p[0] for p in counts))}
        return {
            "version": SKETCH_VERSION,
            "arguments": self._arguments,
            "results": [t for t in short_types(self._results).split(", ") if t],
            "operations": list(operations),
            "files": list(files),
            "lines": [
                [
                    files[place[0]],
                    place[1],
                    place[2][:_MAX_TEXT],
                    _digest(sorted(wirings[place])),
                    [n for text, count in counted.items() for n in (operations[text], count)],
                ]
                for place, counted in counts.items()
            ],
            "callback_sites": [
                index
                for index, place in enumerate(counts)
                if place in from_libraries and place in self._callback_sites
            ],
            "order": order.hexdigest(),
            "layers": self._graph.digests([(name, type_) for name, type_, *_ in self._arguments]),
        }


def _values(operands: str) -> list[str]:
    """Return the names of the values that an operation takes."""
    return [x.strip().lstrip("%") for x in operands.split(",") if x.strip()]


def _argument_attributes(header: str) -> Iterator[str]:
    """Yield the attributes of each argument of a function."""
    start = header.find("arg_attrs = [")
    depth = 0
    begin = 0
    for at in range(start + len("arg_attrs = ["), len(header) if start >= 0 else 0):
        letter = header[at]
        if letter == "{":
            depth += 1
            begin = at if depth == 1 else begin
        elif letter == "}":
            depth -= 1
            if depth == 0:
                yield header[begin : at + 1]
        elif letter == "]" and depth == 0:
            return


def short_types(text: str) -> str:
    """Return MLIR's types as HLO spells them: ``f32[8,16]``."""
    return _TYPE.sub(
        lambda m: f"{_element(m[2])}[{m[1].rstrip('x').replace('x', ',')}]", text
    ).strip("() ")


def _element(text: str) -> str:
    if text == "i1":
        return "bool"
    if text.startswith("ui"):
        return f"u{text[2:]}"
    return f"s{text[1:]}" if re.fullmatch(r"i\d+", text) else text


def _constant(text: str) -> str:
    """Return a small constant as Python spells it; a large one as its kind alone."""
    text = text.removeprefix("dense<").removesuffix(">")
    if len(text) > _MAX_CONSTANT_CHARACTERS or "elided" in text:
        return "…"
    return re.sub(r"-?\d\.\d+e[+-]\d+", lambda m: f"{float(m[0]):.9g}", text)
