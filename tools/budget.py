"""Compare the size of the project with ``tools/budget.json``, exactly; the numbers only fall.

``python tools/budget.py --write`` writes what is counted: a commit that makes the project smaller
carries the lower numbers, and a commit that raises one says in its subject what was bought.
"""

import ast
import io
import json
import re
import sys
import tokenize
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tools import sentences

ROOT = Path(__file__).parents[1]
BUDGET = ROOT / "tools" / "budget.json"
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Return how many lines hold code: neither blank, nor a comment, nor a docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            docstrings |= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def measure(root: Path) -> dict[str, int]:
    """Return each number of the budget, by its name."""
    package, tests = (
        [path.read_text("utf-8") for path in sorted((root / name).rglob("*.py"))]
        for name in ("jaxcache", "tests")
    )
    found = sentences.sentences(root)
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    return {
        "lines of code in jaxcache/": sum(map(code_lines, package)),
        "files in jaxcache/": len(package),
        "lines of its tables of sentences (.toml)": sum(
            bool(line.strip()) and not line.startswith("#")
            for path in (root / "jaxcache").rglob("*.toml")
            for line in path.read_text("utf-8").splitlines()
        ),
        "lines of code in tests/": sum(map(code_lines, tests)),
        "sentences that name a command or foretell": len(found),
        "of these, without a test that acts upon them": len(sentences.without_a_test(root, found)),
        "words in README.md and docs/": sum(
            len(re.findall(r"\S+", page.read_text("utf-8"))) for page in pages
        ),
    }


def main() -> int:
    counted = measure(ROOT)
    if "--write" in sys.argv[1:]:
        BUDGET.write_text(json.dumps(counted, indent=2) + "\n")
        return 0
    expected = json.loads(BUDGET.read_text())
    for name, number in counted.items():
        difference = number - expected.get(name, 0)
        print(f"{name:45} {number:7,} {f'{difference:+,}' if difference else ''}".rstrip())
    if counted == expected:
        return 0
    print("tools/budget.json differs: python tools/budget.py --write; what rises is named, with")
    print("what it bought, in the subject of the commit")
    return 1


if __name__ == "__main__":
    sys.exit(main())
