"""Run the tests of one mutant, which ``git diff`` shows: ``choose_tests.py SECONDS``.

These are the tests that ran the changed statement in whatever process, and of a statement that runs
when its module is imported, those that ran any function of the module. First come the tests whose
file is named after the module or one of its directories, then the others, the quickest first, as
far as ``SECONDS`` go. A change that they do not notice may be noticed by one that was left out.
"""

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from coverage import CoverageData

_Functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def _header(statement: ast.stmt) -> range:
    """The lines of a statement without those of the statements in it."""
    inner = [node for node in ast.walk(statement) if isinstance(node, ast.stmt)][1:]
    last = min((node.lineno - 1 for node in inner), default=statement.end_lineno)
    return range(statement.lineno, max(last, statement.lineno) + 1)


def _in_functions(tree: ast.AST, inside: bool = False) -> Iterator[ast.stmt]:
    """The statements that a call runs, and not an import."""
    for node in ast.iter_child_nodes(tree):
        if inside and isinstance(node, ast.stmt):
            yield node
        yield from _in_functions(node, inside or isinstance(node, _Functions))


def _lines_to_run(source: str, changed: int) -> set[int]:
    headers = [_header(statement) for statement in _in_functions(ast.parse(source))]
    around = [header for header in headers if changed in header]
    if around:
        return set(min(around, key=len))
    return {line for header in headers for line in header}


def _seconds(durations: Path) -> dict[str, float]:
    """How long each test took that passed."""
    total: dict[str, float] = defaultdict(float)
    failed = set()
    for line in durations.read_text(encoding="utf-8").splitlines():
        test, outcome, seconds = json.loads(line)
        total[test] += seconds
        if outcome != "passed":
            failed.add(test)
    return {test: seconds for test, seconds in total.items() if test not in failed}


def _is_named_after(test: str, module: Path) -> bool:
    words = set(re.split(r"[/_.]", test.partition("::")[0]))
    names = {module.stem, *module.parent.parts[1:]} - {"__init__", "cache", "cli", "core"}
    return any(set(name.split("_")) <= words for name in names)


def choose(module: Path, changed: int, directory: Path, limit: float) -> list[str]:
    """The tests of the line ``changed`` (counted from 1) of ``module``, below ``directory``'s record."""
    data = CoverageData(str(directory / "coverage" / "data"))
    data.read()
    recorded = str((directory / "tree-1").resolve() / module)
    source = subprocess.run(
        ["git", "show", f"HEAD:{module}"], capture_output=True, text=True, check=True
    ).stdout
    lines = _lines_to_run(source, changed)
    seconds = _seconds(directory / "durations")
    ran = set()
    for line, contexts in data.contexts_by_lineno(recorded).items():
        if line in lines:
            # "TEST (call)" of a process that the test started, "TEST" of its own, or both with "|".
            parts = (part for context in contexts for part in context.split("|"))
            ran |= {part.rsplit(" (", 1)[0] for part in parts}
    tests = sorted(
        ran & seconds.keys(), key=lambda test: (not _is_named_after(test, module), seconds[test])
    )
    chosen = []
    for test in tests:
        if seconds[test] <= limit:
            limit -= seconds[test]
            chosen.append(test)
    print(f"{len(chosen)} of {len(tests)} tests that ran it", flush=True)
    return chosen


def main(limit: float) -> int:
    """Exit status of pytest; 0 where no test ran the statement."""
    diff = subprocess.run(
        ["git", "diff", "--unified=0", "jaxcache"], capture_output=True, text=True, check=True
    ).stdout
    module = re.search(r"^--- a/(.*)$", diff, re.MULTILINE)
    changed = re.search(r"^@@ -(\d+)", diff, re.MULTILINE)
    if module is None or changed is None:
        return 2
    tests = choose(Path(module[1]), int(changed[1]), Path(".."), limit)
    if not tests:
        return 0
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    return subprocess.run([sys.executable, *command, *tests], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
