"""A sketch of a program before optimization: source location to operations.

A sketch is made of the text of a StableHLO module, in MLIR's generic form with locations. It is a
table of a few kilobytes: for each line of the user's Python the operations that came from it, with
the types of their results and small constants. It contains no source text and no large constant.
Two sketches of one function show which lines compute something else.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .module_text import SKETCH_VERSION, ModuleText

#: A module whose text is longer has no sketch.
_MAX_TEXT_CHARACTERS = 128 << 20
#: A sketch that is larger keeps a digest of each line instead of its operations, or is dropped.
_MAX_BLOB_CHARACTERS = 64 << 10
_MAX_JSON_BYTES = 4 << 20


@dataclass(frozen=True)
class SketchedArgument:
    """One argument of a program that is used in it."""

    name: str
    type: str
    """``f32[8,16]``: the global type, before it is divided among devices."""
    sharding: str = ""
    donated: bool = False


@dataclass(frozen=True)
class PassedArgument:
    """One argument of a call, whether the program uses it or not."""

    name: str
    type: str
    is_weak: bool = False


@dataclass(frozen=True)
class SketchedLine:
    """The operations that came from one line."""

    file: str
    line: int
    function: str
    operations: Mapping[str, int]
    """Counts by ``multiply(0.1) f32[8]~1a2b``: name, constants, types, digest of attributes."""
    wiring: str = ""
    """A digest of the operations with what they take, in any order."""
    is_callback_site: bool = False
    """A library made operations for this line, and called functions of the user's from it.

    The value that such an operation uses may come from a line of those functions.
    """


@dataclass(frozen=True)
class Sketch:
    """What is kept of one program."""

    arguments: tuple[SketchedArgument, ...] = ()
    results: tuple[str, ...] = ()
    lines: tuple[SketchedLine, ...] = ()
    order: str = ""
    """A digest of all operations in their order."""
    passed: "tuple[PassedArgument, ...] | None" = None
    """All arguments of the call; None where they are not known."""
    static: "Mapping[str, str] | None" = None
    """Static arguments by name, those that are small values; None where they are not known."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of JAX that act on keys, those that are not off."""
    hash_seed: str = ""
    """``PYTHONHASHSEED``; ``random`` where Python chose it."""
    layers: Mapping[str, str] = field(default_factory=dict)
    """Digests of the graph, by what each leaves out (:mod:`.layers`); empty where unknown."""


def make_sketch(text: str, facts: Mapping[str, Any] | None = None) -> "str | None":
    """Sketch a module, as a text that :func:`read_sketch` reads; None where it is too large.

    Args:
        text: the module in MLIR's generic form, with locations.
        facts: ``static``, ``config`` and ``hash_seed`` of :class:`Sketch`.
    """
    if len(text) > _MAX_TEXT_CHARACTERS:
        return None
    module = ModuleText(text)
    for is_short in (False, True):
        document = {**module.document(is_short=is_short), **(facts or {})}
        packed = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 6)
        if len(packed) <= _MAX_BLOB_CHARACTERS * 3 // 4:
            return base64.b64encode(packed).decode()
    return None


def read_sketch(blob: object) -> "Sketch | None":
    """Read a sketch that came from outside; None if it is not a sketch, or too large."""
    if not isinstance(blob, str) or not 0 < len(blob) <= _MAX_BLOB_CHARACTERS:
        return None
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(blob, validate=True), _MAX_JSON_BYTES)
        if not unpacker.eof:
            return None
        document = json.loads(data)
        if document["version"] != SKETCH_VERSION:
            return None
        operations = [str(o) for o in document["operations"]]
        files = [str(f) for f in document["files"]]
        callback_sites = frozenset(document.get("callback_sites", ()))
        lines = tuple(
            SketchedLine(
                files[file],
                int(line),
                str(function),
                {operations[o]: int(n) for o, n in zip(counts[::2], counts[1::2], strict=True)},
                str(wiring),
                index in callback_sites,
            )
            for index, (file, line, function, wiring, counts) in enumerate(document["lines"])
        )
        arguments = tuple(
            SketchedArgument(str(name), str(type_), str(sharding), bool(donated))
            for name, type_, sharding, donated in document["arguments"]
        )
        static = document.get("static")
        return Sketch(
            arguments,
            tuple(map(str, document["results"])),
            lines,
            str(document["order"]),
            _read_passed(document.get("passed")),
            None if static is None else {str(n): str(v) for n, v in static.items()},
            dict(document.get("config", {})),
            str(document.get("hash_seed", "")),
            {str(name): str(digest) for name, digest in document.get("layers", {}).items()},
        )
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError, zlib.error):
        return None


def _read_passed(rows: Any) -> "tuple[PassedArgument, ...] | None":
    if rows is None:
        return None
    return tuple(PassedArgument(str(name), str(type_), bool(weak)) for name, type_, weak in rows)
