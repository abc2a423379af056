"""List the sentences that name a command or foretell, and which of them a test acts upon.

``python tools/sentences.py`` prints each sentence that no test acts upon;
``--all`` prints all, with the tests. A test says ``@acts_on("part of the sentence")``, where ``…``
stands for what is filled in; ``tests/helpers/acting.py`` fails a test that did not act upon what it says.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What stands for a value that is filled in.
HOLE = "…"
_FORETELLS = (
    r"(?:will|should|would|never|cannot|always) (?:hit|miss)|the next run|compiles? (?:it )?again"
)
_SHELL = r"pip install|(?:^|\W)(?:unset|export) [A-Z…]|chmod |mv -n |cp -RL |ln -s "
#: Names of constants, keywords and files that hold the text of ``--help``.
_HELP_NAMES = frozenset(("EXAMPLES", "help", "epilog", "short_help", "_EPILOG", "_HELP"))
#: What names a sentence by a part of it has at least so many characters.
_LEAST_PART = 20
_HELP_FILES = ("cli/app.py", "options/")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One text of the package: where it first stands, and its words with :data:`HOLE`."""

    place: str
    text: str


def sentences(root: Path) -> list[Sentence]:
    """Return every sentence of the package that names a command or foretells, each once."""
    commands = "|".join(
        sorted(page.stem.split("-")[1] for page in (root / "man").glob("jaxcache-*.1"))
    )
    acted_upon = re.compile(rf"(?:^|\W)jaxcache (?:{commands})(?:\W|$)|{_SHELL}|{_FORETELLS}")
    found: dict[str, Sentence] = {}
    for path in sorted((root / "jaxcache").rglob("*.py")):
        place = path.relative_to(root / "jaxcache").as_posix()
        if place.startswith(_HELP_FILES):
            continue
        for line, text, names_command in _texts(ast.parse(path.read_text("utf-8"))):
            if names_command or (acted_upon.search(text) and not text.startswith("<!")):
                found.setdefault(text, Sentence(f"{place}:{line}", text))
    for path in sorted((root / "jaxcache").rglob("*.toml")):
        place = path.relative_to(root / "jaxcache").as_posix()
        for rule, row in tomllib.loads(path.read_text("utf-8")).items():
            for text in filter(lambda value: isinstance(value, str), row.values()):
                words = re.sub(r"\{[^}]*\}", HOLE, text)
                if acted_upon.search(words):
                    found.setdefault(words, Sentence(f"{place} {rule}", words))
    return list(found.values())


def acted(root: Path) -> dict[str, str]:
    """Return the parts of sentences that tests act upon, each with its test."""
    parts = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "acts_on(" in text else ():
            if isinstance(node, ast.Call) and _called(node) == "acts_on":
                for argument in node.args:
                    if isinstance(argument, ast.Constant):
                        parts[str(argument.value)] = f"{path.name}:{node.lineno}"
    return parts


def without_a_test(root: Path, found: list[Sentence]) -> list[Sentence]:
    """Return those of the sentences found that no test acts upon."""
    parts = acted(root)
    return [s for s in found if not any(_stands_in(part, s.text) for part in parts)]


def _stands_in(part: str, text: str) -> bool:
    """A short part, such as ``unset …``, names only the sentence that is nothing else."""
    return part == text or (len(part) >= _LEAST_PART and part in text)


def _texts(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text and whether it makes a command of each string that is no documentation."""
    text = _literal(tree)
    if text is not None:
        made = any(isinstance(n, ast.Call) and _is_command(n) for n in ast.walk(tree))
        yield getattr(tree, "lineno", 0), text, made
        return
    if isinstance(tree, ast.keyword) and tree.arg in _HELP_NAMES:
        return
    if isinstance(tree, ast.Assign | ast.AnnAssign):
        targets = tree.targets if isinstance(tree, ast.Assign) else [tree.target]
        if any(isinstance(t, ast.Name) and t.id in _HELP_NAMES for t in targets):
            return
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, ast.Expr) or not isinstance(child.value, ast.Constant):
            yield from _texts(child)


def _literal(node: ast.AST) -> str | None:
    """Return the words of a string, an f-string or a sum of them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(value) or HOLE for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _literal(node.left), _literal(node.right)
        return None if left is None and right is None else (left or HOLE) + (right or HOLE)
    return None


def _is_command(node: ast.Call) -> bool:
    return _called(node) == "format_command"


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def main() -> int:
    """Print the sentences, one a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="also those that a test acts upon")
    options = parser.parse_args()
    parts = acted(ROOT)
    found = sentences(ROOT)
    missing = 0
    for sentence in found:
        tests = sorted({test for part, test in parts.items() if _stands_in(part, sentence.text)})
        missing += not tests
        if options.all or not tests:
            print(f"{sentence.place}: {sentence.text!r} {' '.join(tests)}".rstrip())
    print(f"{len(found)} sentences name a command or foretell; no test acts upon {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
