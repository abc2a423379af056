"""The lines of the source that were edited between two runs, by the digests of their text."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jaxcache.cache.explain.sides import file_name
from jaxcache.core.sketch import Sketch, SketchedLine

_DIGITS = 8
_MAX_CHARACTERS = 4 << 20
_NUMBER = re.compile(r"(?<![\w.])\d+\.?\d*(?:[eE][+-]?\d+)?(?![\w.])")
#: Lines around those of a function that hold operations: its head, its decorators, its end.
_AROUND = 3
_SHOWN = 3
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
                if n <= len(lines) and value in map(_plain, _NUMBER.findall(lines[n - 1]))
            ]
        return matches[0] if len(matches) == 1 else None

    def nearest(self, line: SketchedLine) -> list[str]:
        """Return the edited lines that are nearest to one, as ``main.py:6``; of its file if any."""
        own = self.of_file(line.file)
        if own:
            near = sorted(sorted(own, key=lambda n: abs(n - line.line))[:_SHOWN])
            return [file_name(f"{line.file}:{n}") for n in near]
        others = [(file, n) for file, lines in self.lines.items() for n in sorted(lines)]
        return [file_name(f"{file}:{n}") for file, n in others[:_SHOWN]]


def find_edits(old: Mapping[str, str], new: Mapping[str, str]) -> Edits:
    """Compare the digests of the lines of both runs, file by file.

    A file that only one side has is compared with that of its name; one that is new is no edit.
    """
    matches: dict[str, frozenset[int]] = {}
    for file, text in new.items():
        before = old.get(file)
        if before is None:
            alike = [n for n in old if n not in new and file_name(n) == file_name(file)]
            before = old[alike[0]] if len(alike) == 1 else None
        if before is None or before == text:
            continue
        lefts = _split(before)
        rights = _split(text)
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


def _plain(number: str) -> str:
    """Return a number as sketches show it."""
    return f"{float(number):.9g}"


def _split(text: str) -> list[str]:
    return [text[n : n + _DIGITS] for n in range(0, len(text), _DIGITS)]


def _count_alike(lefts: list[str], rights: list[str]) -> int:
    pairs = enumerate(zip(lefts, rights, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(lefts), len(rights)))
