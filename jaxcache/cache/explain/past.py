"""What has changed since the earlier run that a compile is compared with.

Which lines of the source were edited, by the digests of their text; and which lines compute
something else, aligned by what they compute, because an edit shifts their numbers.
"""

import difflib
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jaxcache.cache.explain import say
from jaxcache.cache.explain.sides import SourceLocation, file_name
from jaxcache.core.call_site import is_library
from jaxcache.core.runs import CompileRow, Run
from jaxcache.core.sketch import Sketch, SketchedLine
from jaxcache.units import join_some

# The lines that were edited ----------------------------------------------------------------------

_DIGITS = 8
_MAX_CHARACTERS = 4 << 20
_NUMBER = re.compile(r"(?<![\w.])\d+\.?\d*(?:[eE][+-]?\d+)?(?![\w.])")
#: Lines around those of a function that hold operations: its head, its decorators, its end.
_AROUND = 3
_SHOWN_EDITS = 3
#: Lines of both sides beyond which frequent ones are not aligned.
_MOST_ALIGNED = 4000


@dataclass(frozen=True)
class Edits:
    """The lines of the program as it is now that it did not have, by file as the records name it.

    A line of a file that lost lines counts where these were.
    """

    lines: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.lines.values()))

    def of_file(self, file: str) -> frozenset[int]:
        """Return the edited lines of a file by its path, as a sketch has it."""
        matches = [n for n in self.lines if file == n or file.endswith(f"/{n}")]
        return self.lines[max(matches, key=len)] if matches else frozenset()

    def touch(self, file: str, line: int) -> bool:
        """Return whether a line was edited."""
        return line in self.of_file(file)

    def touch_function(self, sketch: Sketch, line: SketchedLine) -> bool:
        """Return whether the function of a line was edited, as far as its operations show it."""
        edited = self.of_file(line.file)
        if not edited:
            return False
        alike = (x for x in sketch.lines if (x.file, x.function) == (line.file, line.function))
        own = [x.line for x in alike] or [line.line]
        return any(min(own) - _AROUND <= n <= max(own) + 1 for n in edited)

    def find_literal(self, value: str, files: Iterable[str]) -> tuple[str, int] | None:
        """Return the edited line whose text contains a number, if it is the only one.

        The files are read as they are now.
        """
        matches = []
        for file in files:
            edited = self.of_file(file)
            lines = _read_lines(file) if edited else []
            matches += [
                (file, n)
                for n in sorted(edited)
                if n <= len(lines)
                and value in (f"{float(number):.9g}" for number in _NUMBER.findall(lines[n - 1]))
            ]
        return matches[0] if len(matches) == 1 else None

    def nearest(self, line: SketchedLine) -> list[SourceLocation]:
        """Return the edited lines that are nearest to one, of its file if any."""
        own = self.of_file(line.file)
        if own:
            near = sorted(sorted(own, key=lambda n: abs(n - line.line))[:_SHOWN_EDITS])
            return [SourceLocation(line.file, n, "") for n in near]
        others = [(file, n) for file, lines in self.lines.items() for n in sorted(lines)]
        return [SourceLocation(file, n, "") for file, n in others[:_SHOWN_EDITS]]


def find_edits(old: Mapping[str, str], new: Mapping[str, str]) -> Edits:
    """Compare the digests of the lines of both runs, file by file.

    A file that only one side has is compared with the file of the same name; a new file counts
    as no edit.
    """
    matches: dict[str, frozenset[int]] = {}
    for file, text in new.items():
        before = old.get(file)
        if before is None:
            alike = [n for n in old if n not in new and file_name(n) == file_name(file)]
            before = old[alike[0]] if len(alike) == 1 else None
        if before is None or before == text:
            continue
        lefts = _split_digests(before)
        rights = _split_digests(text)
        same = _count_alike(lefts, rights)
        end_alike = _count_alike(lefts[same:][::-1], rights[same:][::-1])
        lefts = lefts[same : len(lefts) - end_alike]
        rights = rights[same : len(rights) - end_alike]
        is_long = len(lefts) + len(rights) > _MOST_ALIGNED
        matcher = difflib.SequenceMatcher(None, lefts, rights, autojunk=is_long)
        edited: set[int] = set()
        for tag, _, _, start, end in matcher.get_opcodes():
            if tag != "equal":
                edited.update(range(same + start + 1, same + max(end, start + 1) + 1))
        matches[file] = frozenset(edited)
    return Edits(matches)


def _read_lines(file: str) -> list[str]:
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.read(_MAX_CHARACTERS).splitlines()
    except OSError:
        return []


def _split_digests(text: str) -> list[str]:
    return [text[n : n + _DIGITS] for n in range(0, len(text), _DIGITS)]


def _count_alike(lefts: list[str], rights: list[str]) -> int:
    pairs = enumerate(zip(lefts, rights, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(lefts), len(rights)))


# The earlier run ----------------------------------------------------------------------------------

_NUMBERS = ("", "", "two", "three", "four", "five", "six", "seven", "eight")


@dataclass(frozen=True)
class Past:
    """What is known of both runs; nothing where none is recorded."""

    old: Run | None = None
    new: Run | None = None
    row: CompileRow | None = None
    """The earlier compile."""
    age: int = 1
    """1 for the last run, 2 for the one before."""
    signatures: int = 0
    """How many signatures of this call are recorded."""

    @property
    def since(self) -> str:
        """When the earlier run began; empty where none is recorded."""
        return show_time(self.old.at) if self.old else ""

    @property
    def name(self) -> str | None:
        """The earlier run as the reader knows it: ``run of 10:02, two runs ago``."""
        if self.old is None:
            return None
        ago = f", {_NUMBERS[self.age]} runs ago" if 1 < self.age < len(_NUMBERS) else ""
        return f"run of {self.since}{ago}"

    @cached_property
    def edits(self) -> Edits | None:
        """The lines that were edited between both; None where the sources are not recorded."""
        if not (self.old and self.new and self.old.sources and self.new.sources):
            return None
        return find_edits(self.old.sources, self.new.sources)

    def is_unedited(self, file: str) -> bool:
        """Return whether no recorded file was edited, a given one of the user's among them."""
        if self.old is None or self.edits is None or self.edits:
            return False
        return not file or any(file == n or file.endswith(f"/{n}") for n in self.old.sources)

    def outside(self, *, is_reordered: bool) -> str:
        """What else differs: command line, versions, or the hash seed where only an order does."""
        if self.old is None or self.new is None:
            return ""
        old = self.old.versions
        changed = [
            f"{n} {old[n]} → {v}" for n, v in self.new.versions.items() if old.get(n, v) != v
        ]
        seeds = say.hash_seeds(self.old.hash_seed, self.new.hash_seed) if is_reordered else ""
        return say.command_line(self.old.argv, self.new.argv) or say.list_names(changed) or seeds

    def origin_of(self, setting: str) -> str:
        """Return who made a setting that differs: ``environment``, ``code``, or empty."""
        for run in (self.new, self.old):
            if run and setting in run.settings:
                return str(run.settings[setting][1])
        return ""

    def name_library(self, file: str) -> str:
        """Return the package and version of a library's file, as far as they are recorded."""
        package = _package_of(file)
        before, now = (
            (run.versions if run else {}).get(package.lower()) for run in (self.old, self.new)
        )
        if now and before and before != now:
            return f"{package} {before} → {now}"
        return f"{package} {now}" if now else package


def _package_of(file: str) -> str:
    path = file.replace("\\", "/")
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in path:
            return path.rpartition(mark)[2].partition("/")[0].removesuffix(".py")
    return "Python" if "/lib/python3" in path else ""


def show_time(at: float) -> str:
    """Return a time of day, with the date where it is another day."""
    then = time.localtime(at)
    is_today = time.strftime("%F", then) == time.strftime("%F")
    return time.strftime("%H:%M" if is_today else "%b %d %H:%M", then)


# The lines that compute something else ------------------------------------------------------------

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

    def is_edited(self, edits: Edits | None) -> bool:
        """Return whether the line itself was edited."""
        return bool(edits and self.new and edits.touch(self.new.file, self.new.line))

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
            not change.is_edited(edits),
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

    def wiring(line: SketchedLine) -> tuple[object, ...]:
        return file_name(line.file), line.function, line.wiring, *line.operations

    wirings = {wiring(line) for line in old.lines}
    return [LineChange(None, x).place for x in new.lines if wiring(x) not in wirings]


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
