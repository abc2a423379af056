"""Compare two sketches of one function: which lines compute something else."""

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxcache.cache.explain.sides import Cause, Difference, SourceLocation, file_name
from jaxcache.core.call_site import is_library
from jaxcache.core.sketch import Sketch, SketchedLine
from jaxcache.units import join_some

_DIGEST = re.compile(r"~[0-9a-f]+")
_CONSTANTS = re.compile(r"^([^( ]+(?: [^( ]+)?)\(([^)]*)\)")
_TYPES = re.compile(r" \S*\[[^ ]*\].*$")
_SHOWN = 6
_SHOWN_CHARACTERS = 160
_EDIT = "nothing to do if you edited this line: the next run saves the new program"
_PARAMETERS = "the same operations, with other parameters"
#: Settings under which a key contains the lines of the source.
_LINES_IN_KEY = "jax_compilation_cache_include_metadata_in_key"


#: Operations that bring values to their places, by their names in a sketch.
_MOVING = {
    *("broadcast_in_dim", "concatenate", "pad", "reshape", "slice", "transpose"),
    *("dynamic_index_in_dim", "dynamic_slice"),
    *("dynamic_update_index_in_dim", "dynamic_update_slice"),
}
_NO_LINE = SketchedLine("", 0, "", {})


@dataclass(frozen=True, slots=True)
class _Change:
    """One line that computes something else."""

    old: SketchedLine | None
    new: SketchedLine | None

    @property
    def place(self) -> SourceLocation:
        line = self.new or self.old or _NO_LINE
        return SourceLocation(line.file, line.line, _short(line.function))

    @property
    def removed(self) -> Counter[str]:
        return _counts(self.old) - _counts(self.new)

    @property
    def added(self) -> Counter[str]:
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
    def is_in_library(self) -> bool:
        """Whether no function of the user's is on the stack of the operations.

        ``<string>`` is a program of ``python -c``, where no file is on the stack.
        """
        return is_library(self.place.file) and not self.place.file.startswith("<")

    @property
    def is_placed(self) -> bool:
        """Whether the edit is in this line, or in a value that this line names."""
        line = self.new or self.old or _NO_LINE
        return not (self.is_in_library or line.is_callback_site)

    @property
    def moves_data(self) -> bool:
        """Whether it differs in operations alone that compute nothing.

        The edit of another line may need them: a loop stores what the gradient of its body uses.
        A constant that is broadcast is a value of its own.
        """
        removed, added = self.operations
        return {*_names(removed + added)} <= _MOVING and _constant_change(self) is None

    @property
    def rank(self) -> tuple[bool, bool, bool, bool, int]:
        """Lines of the user's own first, then what computes, moves data, has other types."""
        removed, added = self.operations
        is_of_types = _without_types(removed) == _without_types(added)
        return (
            self.is_in_library,
            not self.is_placed,
            is_of_types,
            self.moves_data and not is_of_types,
            -(removed + added).total(),
        )


def compare_code(old: Sketch, new: Sketch) -> list[Difference]:
    """Return the lines that compute something else, the most informative first."""
    changes = sorted(_changed_lines(old.lines, new.lines), key=lambda c: c.rank)
    if changes and not changes[0].is_placed:
        return [_unplaced(changes[0])]
    if changes:
        first, *others = changes
        following = [_describe(c, follows=c.moves_data) for c in others]
        # What differs in parameters alone can follow from the first.
        return [_describe(first), *(d for d in following if d.right != _PARAMETERS)]
    if old.order == new.order or _counted(old) != _counted(new):
        return []
    return [_reordered(old, new)]


def compare_places(old: Sketch, new: Sketch) -> Difference | None:
    """Return that only lines or files moved, where a key contains them."""
    if not (old.config.get(_LINES_IN_KEY) and new.config.get(_LINES_IN_KEY)):
        return None
    pairs = zip(old.lines, new.lines, strict=False)
    moved = next(((a, b) for a, b in pairs if _place(a) != _place(b)), (None, None))
    return _moved(_place(moved[0]) if moved[0] else None, moved[1])


def find_moved_lines(old: Collection[str], new: Sketch) -> Difference | None:
    """Return that lines moved since an entry was compiled, where the key contains them now.

    Args:
        old: ``file:line`` of what the entry was compiled from.
    """
    places = {_place(line): line for line in new.lines}
    gone = sorted(set(old) - places.keys())
    if not (gone and places and new.config.get(_LINES_IN_KEY)):
        return None
    come = [line for place, line in places.items() if place not in old]
    return _moved(gone[0], come[0] if come else None)


def _place(line: SketchedLine) -> str:
    return f"{line.file}:{line.line}"


def _moved(old: str | None, new: SketchedLine | None) -> Difference:
    return Difference(
        "computation",
        old,
        _place(new) if new else None,
        f"lines of the source moved, and {_LINES_IN_KEY.upper()} puts them into the key",
        f"unset {_LINES_IN_KEY.upper()}, so that the key contains the program alone",
        Cause.SOURCE_LINES,
        (SourceLocation(new.file, new.line, _short(new.function)),) if new else (),
        "lines of the source",
    )


def count_differing_lines(old: Sketch | None, new: Sketch | None) -> int:
    """Return in how many lines two sketches differ; 0 where one is not known."""
    if old is None or new is None:
        return 0
    lefts = Counter((x.function, frozenset(x.operations.items())) for x in old.lines)
    rights = Counter((x.function, frozenset(x.operations.items())) for x in new.lines)
    return ((lefts - rights) + (rights - lefts)).total() + (old.static != new.static)


def _changed_lines(old: Sequence[SketchedLine], new: Sequence[SketchedLine]) -> Iterator[_Change]:
    """Align the lines of each file by what they compute, because an edit shifts their numbers."""
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


def _match_lines(lefts: list[SketchedLine], rights: list[SketchedLine]) -> Iterator[_Change]:
    """Pair the lines of one block that are most alike; others came or went."""
    free = list(lefts)
    for line in rights:
        alike = [(_shared(x, line), -number) for number, x in enumerate(free)]
        share, number = max(alike, default=(0, 0))
        if share or (len(lefts) == len(rights) and free):
            yield _Change(free.pop(-number), line)
        else:
            yield _Change(None, line)
    for line in free:
        yield _Change(line, None)


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


def _counted(sketch: Sketch) -> Counter[tuple[str, int, str]]:
    return Counter(
        {(x.file, x.line, text): n for x in sketch.lines for text, n in x.operations.items()}
    )


def _without_types(counts: Counter[str]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for text, count in counts.items():
        counted[_TYPES.sub("", _DIGEST.sub("", text))] += count
    return counted


def _describe(change: _Change, *, follows: bool = False) -> Difference:
    """Describe one line.

    Args:
        follows: the edit of a line that comes first may be why this one differs.
    """
    place = change.place
    if constants := _constant_change(change):
        return Difference(
            "computation",
            *constants,
            f"a constant at {place}",
            "pass it as an array, so that another value is the same program",
            Cause.CONSTANT,
            (place,),
            f"constant at {place}",
        )
    removed, added = change.operations
    old_operations = _listed(removed)
    new_operations = _listed(added)
    if old_operations == new_operations:
        new_operations = _PARAMETERS
    else:
        old_operations = old_operations or "not there"
        new_operations = new_operations or "removed"
    return Difference(
        "computation",
        old_operations or None,
        new_operations,
        f"{place} also moves data in another way, which the edit of another line can cause"
        if follows
        else f"the code at {place}, or a value that it uses",
        _EDIT,
        Cause.CODE,
        () if follows else (place,),
        f"code at {place}",
        f"{operations} at {place}" if (operations := _brief_operations(change)) else "",
    )


def _unplaced(change: _Change) -> Difference:
    """Describe what a library computes, of values that come from a line that is not known."""
    title = f"what a library computes {'at' if change.is_in_library else 'for'} {change.place}"
    why = "its code or a value that it was given changed"
    if not change.is_in_library:
        why = "that library also calls functions of yours, and a value may come from any of them"
    return replace(
        _describe(change),
        meaning=f"{title}; {why}: the line is not known",
        fix=None,
        cause=Cause.UNKNOWN,
        where=(),
        title=title,
        brief=f"{operations} in {title}" if (operations := _brief_operations(change)) else "",
    )


def _constant_change(change: _Change) -> tuple[str, str] | None:
    """Return the first constant of a line that is another, where all else is the same."""
    lefts = change.removed
    rights = change.added
    plain = [
        Counter({_CONSTANTS.sub(r"\1()", text): 0 for text in side}) for side in (lefts, rights)
    ]
    for side, counts in zip((lefts, rights), plain, strict=True):
        for text, count in side.items():
            counts[_CONSTANTS.sub(r"\1()", text)] += count
    if not lefts or plain[0] != plain[1]:
        return None
    constants = [
        [c for text in side if (match := _CONSTANTS.match(text)) for c in match[2].split(",")]
        for side in (lefts, rights)
    ]
    old = [c for c in constants[0] if c not in constants[1]]
    new = [c for c in constants[1] if c not in constants[0]]
    return (old[0], new[0]) if old and new else None


def _listed(counts: Counter[str]) -> str:
    shown = []
    for text, count in counts.items():
        name = _DIGEST.sub("", text).removeprefix("call ")
        shown.append((f"{count} × " if count > 1 else "") + name)
    return join_some(shown, _SHOWN)[:_SHOWN_CHARACTERS]


def _brief_operations(change: _Change) -> str:
    """Return one operation of each side, ``multiply, … → silu``, or the one removed or added.

    Empty if both sides begin alike.
    """
    removed, added = change.operations
    if not (removed and added):
        counts = removed or added
        if not counts:
            return ""
        verb = "was" if len(counts) == 1 else "were"
        word = "removed" if removed else "added"
        return f"{_first_operation(counts, is_counted=False)} {verb} {word}"
    for is_counted in (False, True):
        old, new = (_first_operation(counts, is_counted) for counts in (removed, added))
        if old != new:
            return f"{old} → {new}"
    return ""


def _first_operation(counts: Counter[str], is_counted: bool) -> str:
    """Return the operation that tells most, a call or else one that computes; ``…`` for others."""
    first = min(counts, key=lambda x: (not x.startswith("call "), _names([x])[0] in _MOVING))
    name = _listed(Counter({first: counts[first] if is_counted else 1}))
    return f"{name}, …" if len(counts) > 1 else name


def _short(function: str) -> str:
    return function.replace(".<locals>", "")


def _reordered(old: Sketch, new: Sketch) -> Difference:
    """Describe two programs of the same operations, which take other values or other turns."""
    wirings = {(x.file, x.line, x.function): x.wiring for x in old.lines}
    apart = [x for x in new.lines if wirings.get((x.file, x.line, x.function)) != x.wiring]
    where = tuple(SourceLocation(x.file, x.line, _short(x.function)) for x in apart)
    seeds = {old.hash_seed, new.hash_seed}
    is_unseeded = "random" in seeds
    if len(seeds) > 1 or (is_unseeded and len(where) != 1):
        return Difference(
            "computation",
            f"PYTHONHASHSEED={old.hash_seed}",
            f"PYTHONHASHSEED={new.hash_seed}",
            "the same operations in another order, as a set of Python orders them by its hash seed",
            "set PYTHONHASHSEED=0 for every run",
            Cause.OPERATION_ORDER,
            (),
            "order of operations",
        )
    place = f"code at {where[0]}" if where else "order of the operations"
    # With random seeds, one line alone is an edit such as of ``a - b`` to ``b - a``, or a set.
    doubt = "; an edit, or the order of a set with another PYTHONHASHSEED" if is_unseeded else ""
    return Difference(
        "computation",
        None,
        None,
        f"the {place}: the same operations, on other values{doubt}",
        None if doubt else _EDIT,
        Cause.UNKNOWN if doubt else Cause.CODE,
        () if doubt else where[:1],
        place,
    )
