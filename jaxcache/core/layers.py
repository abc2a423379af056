"""Digests of a program's graph, each with another layer left out.

Two programs whose digests are equal without a layer differ in that layer alone: in names, in
constants, in the order of operations. A digest is of values and not of text: an operation counts by
its name, attributes, operands and regions, so that MLIR's numbers do not matter.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

#: What is left out of each digest; the first is of the whole program. Two programs are compared in
#: this order, so the fewest layers come first.
LAYERS = (
    "",
    "names",
    "precision",
    "sharding",
    "donation",
    "constants",
    "order",
    "names+order",
    "names+constants",
    "names+order+arguments",
    "names+order+arguments+constants",
)
#: An array with more elements than the text shows: its values are not in the digests.
ELIDED = "__elided__"

#: By layer: what an attribute of it contains, and the attribute.
_ANNOTATIONS = (
    ("precision", ("precision_config",), re.compile(r"precision_config = \[[^\]]*\]")),
    (
        "sharding",
        ("sharding", "mhlo.num_"),
        re.compile(
            r'[\w.]*shardings? = (?:"[^"]*"|#sdy\.\w+<(?:[^<>]|<[^<>]*>)*>)'
            r"|mhlo\.num_(?:partitions|replicas) = \d+ : i32"
        ),
    ),
    (
        "names",
        ("sym_name", "jax.result_info", "callee"),
        re.compile(r'(?:sym_name|jax\.result_info|callee) = @?(?:"(?:[^"\\]|\\.)*"|[\w.$-]+)'),
    ),
    (
        "donation",
        ("tf.aliasing_output", "jax.buffer_donor"),
        re.compile(r"(?:tf\.aliasing_output|jax\.buffer_donor) = (?:\d+ : i32|\w+)"),
    ),
)
#: What is left between attributes where one was taken out.
_COMMAS = re.compile(r"(?<=[{\[]), |, (?=[}\],])")
_BLOCK_ARGUMENT = re.compile(r"%(\w+): ")


def _digest(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=8).hexdigest()


@dataclass
class _Block:
    arguments: "list[str]" = field(default_factory=list)
    operations: "list[_Node]" = field(default_factory=list)


@dataclass
class _Node:
    """One operation, or one function with its body as a region."""

    result: str = ""
    operands: "list[str]" = field(default_factory=list)
    head: str = ""
    """Its name, types, and the attributes that belong to no layer."""
    constant: str = ""
    callee: str = ""
    notes: "list[tuple[str, str]]" = field(default_factory=list)
    """The attributes that belong to a layer."""
    regions: "list[_Block]" = field(default_factory=list)


class _Pass:
    """The digests of one walk over the graph.

    Args:
        functions: by name.
        has_constants: the values of constants count.
        names: those of the arguments of ``main``, which are used in place of their positions.
    """

    def __init__(
        self, functions: "dict[str, _Node]", *, has_constants: bool, names: "list[str] | None"
    ) -> None:
        self._functions = functions
        self._has_constants = has_constants
        self._names = names
        self._digests: dict[str, str] = {}
        self._log: list[str] = []
        self.notes: list[tuple[str, str, str]] = []
        """Layer, digest of the operation, and its attribute of that layer."""
        self.flow = self._function("main")
        self.order = _digest(self._log)

    def _function(self, name: str) -> str:
        node = self._functions.get(name)
        if node is None:
            return name
        if name not in self._digests:
            self._digests[name] = ""  # a recursive one
            environment: dict[str, str] = {}
            body = [self._block(b, environment, "f", name == "main") for b in node.regions]
            is_by_name = name == "main" and self._names is not None
            self._digests[name] = _digest(["" if is_by_name else node.head, *body])
            self.notes += [(layer, self._digests[name], text) for layer, text in node.notes]
        return self._digests[name]

    def _block(
        self, block: _Block, environment: "dict[str, str]", tag: str, is_main: bool = False
    ) -> str:
        names = self._names if is_main else None
        for number, argument in enumerate(block.arguments):
            named = names[number] if names and number < len(names) else ""
            environment[argument] = named or f"{tag}{number}"
        effects = []
        log = self._log
        last = ""
        for node in block.operations:
            parts = [node.head]
            for operand in node.operands:
                digest = environment.get(operand)
                if digest is None:  # one result of several
                    value, _, number_of_result = operand.partition("#")
                    digest = environment.get(value, value) + number_of_result
                parts.append(digest)
            if node.constant and self._has_constants:
                parts.append(node.constant)
            if node.callee:
                parts.append(self._function(node.callee))
            for number, region in enumerate(node.regions):
                parts.append(self._block(region, environment, f"{tag}{number}/"))
            last = _digest(parts)
            if node.result:
                environment[node.result] = last
            else:
                effects.append(last)
            log.append(last)
            for layer, text in node.notes:
                self.notes.append((layer, last, text))
        return _digest([last, *sorted(effects)])

    def digest(self, without: "set[str]") -> str:
        """Return the digest without some layers of annotations, or without the order."""
        notes = ["\0".join(note) for note in self.notes if note[0] not in without]
        if "order" in without:
            return _digest([self.flow, *sorted(notes)])
        return _digest([self.flow, self.order, *notes])


class Statement(NamedTuple):
    """An operation in MLIR's generic form."""

    result: str
    name: str
    operands: "list[str]"
    attributes: str
    types: str = ""
    callee: str = ""


class OperationGraph:
    """The graph of a module, built while its text is read."""

    def __init__(self) -> None:
        self._functions: dict[str, _Node] = {}
        self._top = _Block()
        self._blocks: list[_Block] = [self._top]
        self._open: list[_Node] = []
        self._is_elided = False
        self._texts: dict[str, tuple[str, list[tuple[str, str]]]] = {}

    def add(self, statement: Statement) -> None:
        """Add an operation to the block that is open."""
        self._blocks[-1].operations.append(self._node(statement))

    def begin(self, statement: Statement, function: str) -> None:
        """Open the first region of an operation, or the body of a function."""
        node = self._node(statement)
        if function:
            self._functions[function] = node
        elif statement.name != "builtin.module":
            self._blocks[-1].operations.append(node)
        self._open.append(node)
        self.next_region()

    def next_region(self) -> None:
        """Open another region of the operation that is open."""
        if len(self._blocks) > len(self._open):
            self._blocks.pop()
        block = self._top if len(self._open) == 1 else _Block()
        self._open[-1].regions.append(block)
        self._blocks.append(block)

    def read_block_arguments(self, line: str) -> None:
        """Name the arguments of the region that is open."""
        self._blocks[-1].arguments = _BLOCK_ARGUMENT.findall(line)

    def end(self, attributes_and_types: str) -> None:
        """Close the operation that is open, whose types are at its end."""
        node = self._open.pop()
        self._blocks.pop()
        node.head += self._split(attributes_and_types, node.notes)
        if not self._open:  # the module
            self._top.operations.append(_Node(head=node.head, notes=node.notes))

    def _node(self, statement: Statement) -> _Node:
        result, name, operands, attributes, types, callee = statement
        node = _Node(result, operands, callee=callee)
        if name in ("stablehlo.constant", "mhlo.constant"):
            node.constant = attributes
            self._is_elided = self._is_elided or ELIDED in attributes
            attributes = ""
        node.head = f"{name} {self._split(attributes, node.notes)} {types}"
        return node

    def _split(self, attributes: str, notes: "list[tuple[str, str]]") -> str:
        """Move the attributes of a layer from a text to the notes; return the others."""
        if "=" not in attributes:
            return attributes
        if attributes not in self._texts:
            own: list[tuple[str, str]] = []
            others = attributes
            for layer, words, pattern in _ANNOTATIONS:
                if any(word in others for word in words):
                    # An attribute counts by its argument too, each of which has braces.
                    own += [
                        (layer, f"{others.count('{', 0, m.start())} {m[0]}")
                        for m in pattern.finditer(others)
                    ]
                    others = _COMMAS.sub("", pattern.sub("", others))
            self._texts[attributes] = (others if len(others) < 128 else _digest([others])), own
        others, own = self._texts[attributes]
        notes += own
        return others

    def digests(self, arguments: "list[tuple[str, str]]") -> "dict[str, str]":
        """Return the digest of the graph without each of :data:`LAYERS`.

        Args:
            arguments: name and type of each argument of ``main``.
        """
        names = [f"{name or number} {type_}" for number, (name, type_) in enumerate(arguments)]
        passes = {
            (is_named, has_constants): _Pass(
                self._functions,
                has_constants=has_constants,
                names=names if is_named else None,
            )
            for is_named in (False, True)
            for has_constants in (True, False)
        }
        digests = {}
        for layers in LAYERS:
            without = {*layers.split("+")}
            walked = passes["arguments" in without, "constants" not in without]
            digests[layers] = _digest([walked.digest(without), *self._top_notes(without)])
        if self._is_elided:
            digests[ELIDED] = "1"
        return digests

    def _top_notes(self, without: "set[str]") -> Iterable[str]:
        """Return what is outside of all functions: meshes and the module's attributes."""
        for node in self._top.operations:
            if node.head.startswith("sdy.mesh"):
                if "sharding" not in without:
                    yield f"{node.head} {node.notes}"
                continue
            yield node.head
            yield from (text for layer, text in node.notes if layer not in without)
