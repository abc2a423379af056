"""Compare two sketches line by line: which lines of the source compute something else.

Lines are aligned by what they compute, because an edit shifts their numbers.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxcache.cache.explain.edits import Edits
from jaxcache.cache.explain.sides import SourceLocation, file_name
from jaxcache.core.call_site import is_library
from jaxcache.core.sketch import Sketch, SketchedLine
from jaxcache.units import join_some

_DIGEST = re.compile(r"~[0-9a-f]+")
_CONSTANTS = re.compile(r"^([^( ]+(?: [^( ]+)?)\((.*?)\)(?= |$)")
_TYPES = re.compile(r" \S*\[[^ ]*\].*$")
_SHOWN = 6
_SHOWN_CHARACTERS = 160
#: Operations that bring values to their places, by their names in a sketch.
_MOVING = {
    *("broadcast_in_dim", "concatenate", "pad", "reshape", "slice", "transpose"),
    *("dynamic_index_in_dim", "dynamic_slice"),
    *("dynamic_update_index_in_dim", "dynamic_update_slice"),
}
_NO_LINE = SketchedLine("", 0, "", {})


@dataclass(frozen=True, slots=True)
class LineChange:
    """One line that computes something else."""

    old: SketchedLine | None
    new: SketchedLine | None

    @property
    def line(self) -> SketchedLine:
        """The line as it is now, else as it was."""
        return self.new or self.old or _NO_LINE

    @property
    def place(self) -> SourceLocation:
        """Where it is."""
        line = self.line
        return SourceLocation(line.file, line.line, line.function.replace(".<locals>", ""))

    @property
    def is_in_library(self) -> bool:
        """Whether no function of the user's is on the stack of the operations.

        ``<string>`` is a program of ``python -c``, where no file is on the stack.
        """
        return is_library(self.line.file) and not self.line.file.startswith("<")

    @property
    def removed(self) -> Counter[str]:
        """The operations that only the old program has."""
        return _counts(self.old) - _counts(self.new)

    @property
    def added(self) -> Counter[str]:
        """The operations that only the new program has."""
        return _counts(self.new) - _counts(self.old)

    @property
    def operations(self) -> tuple[Counter[str], Counter[str]]:
        """Those that went and those that came; with types where nothing else differs."""
        removed = _without_types(self.removed)
        added = _without_types(self.added)
        if removed == added:  # the same operations, on other types or with other attributes
            return self.removed, self.added
        return removed - added, added - removed

    @property
    def shown(self) -> tuple[str | None, str | None]:
        """Both sides as text; None where they show no difference."""
        old, new = map(_listed, self.operations)
        return (None, None) if old == new else (old or None, new or None)

    @property
    def constants(self) -> tuple[str, str] | None:
        """The first constant that is another, where all else is the same."""
        plain = [
            Counter(_CONSTANTS.sub(r"\1()", text) for text in side.elements())
            for side in (self.removed, self.added)
        ]
        if not plain[0] or plain[0] != plain[1]:
            return None
        old, new = (
            [
                constant
                for text in side
                if (match := _CONSTANTS.match(text))
                for constant in _split(match[2])
            ]
            for side in (self.removed, self.added)
        )
        gone = [c for c in old if c not in new]
        come = [c for c in new if c not in old]
        return (gone[0], come[0]) if gone and come else None

    @property
    def brief(self) -> str:
        """One operation of each side: ``multiply, … → silu``; empty if both begin alike."""
        removed, added = self.operations
        if not (removed and added):
            counts = removed or added
            verb = "was" if len(counts) == 1 else "were"
            word = "removed" if removed else "added"
            return f"{_first(counts)} {verb} {word}" if counts else ""
        old, new = map(_first, (removed, added))
        return f"{old} → {new}" if old != new else ""

    @property
    def moves_data(self) -> bool:
        """Whether it differs in operations alone that compute nothing, which another line needs."""
        removed, added = self.operations
        return {*_names(removed + added)} <= _MOVING and self.constants is None


def changed_lines(old: Sketch, new: Sketch, edits: Edits | None = None) -> list[LineChange]:
    """Return the lines that compute something else, the most informative first.

    Args:
        edits: lines that were edited, which come first.
    """

    def rank(change: LineChange) -> tuple[object, ...]:
        line = change.line
        removed, added = change.operations
        is_of_types = _without_types(removed) == _without_types(added)
        return (
            change.is_in_library,
            not (edits and change.new and edits.touch(line.file, line.line)),
            not (edits and edits.touch_function(new, line)),
            change.new is None,
            line.is_callback_site,
            is_of_types,
            change.moves_data and not is_of_types,
            -(removed + added).total(),
        )

    return sorted(_changed(old.lines, new.lines), key=rank)


def differing_wirings(old: Sketch, new: Sketch) -> list[SourceLocation]:
    """Return the lines of the same operations that take other values, or come in another order."""
    wirings = Counter((file_name(x.file), x.function, x.wiring) for x in old.lines)
    apart = [x for x in new.lines if not wirings[file_name(x.file), x.function, x.wiring]]
    return [LineChange(None, x).place for x in apart]


def _changed(old: Sequence[SketchedLine], new: Sequence[SketchedLine]) -> Iterator[LineChange]:
    old_names, new_names = (dict.fromkeys(file_name(x.file) for x in lines) for lines in (old, new))
    gone = [name for name in old_names if name not in new_names]
    come = [name for name in new_names if name not in old_names]
    # One file of each side alone is taken for one that was renamed or copied.
    renamed = dict(zip(gone, come, strict=True)) if len(gone) == len(come) == 1 else {}
    for name in dict.fromkeys([*new_names, *(renamed.get(name, name) for name in old_names)]):
        lefts = _lines_of(name, old, renamed)
        rights = _lines_of(name, new, {})
        matcher = difflib.SequenceMatcher(
            None, [_token(x) for x in lefts], [_token(x) for x in rights], autojunk=False
        )
        for tag, i, j, k, m in matcher.get_opcodes():
            if tag != "equal":
                yield from _match_lines(lefts[i:j], rights[k:m])


def _lines_of(
    name: str, lines: Sequence[SketchedLine], renamed: Mapping[str, str]
) -> list[SketchedLine]:
    named = ((renamed.get(file_name(x.file), file_name(x.file)), x) for x in lines)
    return sorted((x for own, x in named if own == name), key=lambda x: x.line)


def _token(line: SketchedLine) -> tuple[object, ...]:
    return line.function, frozenset(line.operations.items())


def _match_lines(lefts: list[SketchedLine], rights: list[SketchedLine]) -> Iterator[LineChange]:
    """Pair the lines of one block that are most alike; others came or went."""
    free = list(lefts)
    for line in rights:
        alike = [(_shared(x, line), -number) for number, x in enumerate(free)]
        share, number = max(alike, default=(0, 0))
        if share or (len(lefts) == len(rights) and free):
            yield LineChange(free.pop(-number), line)
        else:
            yield LineChange(None, line)
    for line in free:
        yield LineChange(line, None)


def _shared(left: SketchedLine, right: SketchedLine) -> int:
    if left.function != right.function:
        return 0
    both = Counter(_names(left.operations)) & Counter(_names(right.operations))
    return both.total()


def _names(operations: Iterable[str]) -> list[str]:
    bare = (text.removeprefix("call ") for text in operations)
    return [re.split(r"[( ]", text, maxsplit=1)[0] for text in bare]


def _counts(line: SketchedLine | None) -> Counter[str]:
    return Counter(line.operations) if line else Counter()


def _without_types(counts: Counter[str]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for text, count in counts.items():
        counted[_TYPES.sub("", _DIGEST.sub("", text))] += count
    return counted


def _split(text: str) -> Iterator[str]:
    """Yield constants that commas separate; those in brackets belong to one array."""
    depth = 0
    start = 0
    for at, letter in enumerate(f"{text},"):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            yield text[start:at].strip()
            start = at + 1


def _listed(counts: Counter[str]) -> str:
    shown = []
    for text, count in counts.items():
        name = _DIGEST.sub("", text).removeprefix("call ")
        shown.append((f"{count} × " if count > 1 else "") + name)
    return join_some([name for name in shown if name], _SHOWN)[:_SHOWN_CHARACTERS]


def _first(counts: Counter[str]) -> str:
    """Return the operation that tells most, a call or else one that computes; ``…`` for others."""
    first = min(counts, key=lambda x: (not x.startswith("call "), _names([x])[0] in _MOVING))
    name = _listed(Counter({first: 1}))
    return f"{name}, …" if len(counts) > 1 else name
