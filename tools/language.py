"""Count habits of language that readers stumble over, and fail above the limits of :data:`LIMITS`.

``python tools/language.py`` prints one row for each habit: its count, its limit, and examples with
``--examples N``. Limits only ever go down.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTICIPLES = frozenset(
    ("found", "known", "seen", "there", "given", "asked", "made", "left", "about", "how")
)
#: What each habit may reach. Those of names and assignments are per 1,000 lines of Python.
LIMITS = {
    "participles as names, per 1,000 lines": 0.5,
    "parallel assignments, per 1,000 lines": 0.5,
    '"is no" in messages': 0,
    '"is no" in documents': 0,
    "where for if, in documents": 4,
    '"that of" in documents': 19,
    "sentences over 30 words in documents": 47,
    "manual pages whose NAME line is cut": 0,
}
_MOST_WORDS = 30
#: ``where`` after these is a place or a question.
_WHERE = re.compile(
    r"(?<!know)(?<!see)(?<!say)(?<!says)(?<!from)(?<!place)(?<!page)(?<!is)(?<!of) where\b(?! to\b)",
    re.I,
)
_THAT_OF = re.compile(r"\b(?:that|those) of\b")
_IS_NO = re.compile(r"\b(?:is|are|was) (?:no|none)\b(?! longer| more)")


@dataclass(frozen=True, slots=True)
class Habit:
    """One row of the table."""

    name: str
    #: Where the habit occurs: ``FILE:LINE: text``.
    places: list[str]
    #: What the count is divided by.
    per: float = 1

    @property
    def count(self) -> float:
        """The value that is compared with the limit."""
        return len(self.places) / self.per


def measure(root: Path) -> list[Habit]:
    """Return the habits in the order of :data:`LIMITS`."""
    sources = {path: path.read_text("utf-8") for path in sorted((root / "jaxcache").rglob("*.py"))}
    trees = {path.relative_to(root): ast.parse(text) for path, text in sources.items()}
    thousands = sum(text.count("\n") for text in sources.values()) / 1000
    participles: list[str] = []
    parallel: list[str] = []
    messages: list[str] = []
    for path, tree in trees.items():
        participles += [f"{path}:{line}: {name}" for line, name in _bound_names(tree)]
        parallel += [f"{path}:{line}" for line in _parallel_assignments(tree)]
        messages += [f"{path}:{line}: {text}" for line, text in _texts(tree) if _IS_NO.search(text)]
    for table in sorted((root / "jaxcache").rglob("findings.toml")):
        for line, text in enumerate(table.read_text("utf-8").splitlines(), 1):
            if _IS_NO.search(text):
                messages.append(f"{table.relative_to(root)}:{line}: {text}")
    names = list(LIMITS)
    sentences = list(_sentences(root))
    return [
        Habit(names[0], participles, thousands),
        Habit(names[1], parallel, thousands),
        Habit(names[2], messages),
        Habit(names[3], list(_document_lines(root))),
        Habit(names[4], [text for text in sentences if _WHERE.search(text)]),
        Habit(names[5], [text for text in sentences if _THAT_OF.search(text)]),
        Habit(names[6], [text for text in sentences if len(text.split()) > _MOST_WORDS + 1]),
        Habit(names[7], list(_cut_pages(root))),
    ]


def _bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each participle that is a parameter or a local name; no ``left`` beside a ``right``."""
    names = [(node.lineno, node.arg) for node in ast.walk(tree) if isinstance(node, ast.arg)]
    names += [
        (node.lineno, node.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    has_sides = "right" in {name for _, name in names}
    for line, name in names:
        if name in PARTICIPLES and not (name == "left" and has_sides):
            yield line, name


def _parallel_assignments(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that assign several values to several names at once."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            yield from (node.lineno for t in node.targets if isinstance(t, ast.Tuple))


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module that are not docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield from [(node.lineno, node.value)] if isinstance(node.value, str) else []


def _pages(root: Path) -> list[Path]:
    pages = [root / "README.md", root / "CONTRIBUTING.md", root / "SECURITY.md"]
    return [*pages, *sorted((root / "docs").rglob("*.md"))]


def _sentences(root: Path) -> Iterator[str]:
    """Yield the sentences of the documents, with their page first: no code, headings, tables."""
    for path in _pages(root):
        text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
        for block in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )", text):
            if block.lstrip().startswith(("#", "|")):
                continue
            words = re.sub(r"\]\([^)]*\)", "]", " ".join(block.split()))
            for sentence in re.split(r"(?<=[.:;?!]) +(?=[A-Z`*\[])", words):
                yield f"{path.relative_to(root)}: {sentence}"


def _document_lines(root: Path) -> Iterator[str]:
    for path in _pages(root):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if _IS_NO.search(line):
                yield f"{path.relative_to(root)}:{number}: {line.strip()}"


def _cut_pages(root: Path) -> Iterator[str]:
    """Yield the manual pages whose one-line summary ends in the middle of a sentence."""
    for path in sorted((root / "man").glob("*.1")):
        summary = path.read_text("utf-8").partition(".SH NAME\n")[2].partition("\n")[0]
        if summary.endswith("...") or ". " in summary:
            yield f"{path.relative_to(root)}: {summary}"


def main() -> int:
    """Print the table; return 1 where a count is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--examples", type=int, default=0, metavar="N")
    examples = parser.parse_args().examples
    exceeded = 0
    print(f"{'HABIT':<40} {'COUNT':>6} {'LIMIT':>6}")
    for habit in measure(ROOT):
        limit = LIMITS[habit.name]
        is_above = round(habit.count, 1) > limit
        exceeded += is_above
        mark = "  above its limit" if is_above else ""
        print(f"{habit.name:<40} {habit.count:>6.1f} {limit:>6.1f}{mark}")
        for place in habit.places[: examples or (10 if is_above else 0)]:
            print(f"  {place}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
