"""Which tests run which line, for :mod:`mutation`: one run of the tests under coverage tells.

Code runs in the process of pytest and in ``jaxcache`` processes that tests start. Both are
recorded: in the first, this module as a plugin of pytest names the test to coverage; the others
take what pytest keeps in ``PYTEST_CURRENT_TEST``. (Coverage's own ``test_function`` goes on with
one test's name for the rest of the run where a test forks or is left by other ways than a return.)
"""

import ast
import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData
from coverage.exceptions import CoverageException

#: ``0.12s call     tests/cli/test_ls.py::test_one[name]``, as pytest's ``--durations`` prints.
_DURATION = re.compile(r"^\s*([\d.]+)s (?:setup|call|teardown)\s+(\S.*)$", re.MULTILINE)
_SETTINGS = """[run]
parallel = true
data_file = {data}
source = {source}
context = ${{PYTEST_CURRENT_TEST-}}
"""


def recording(copy: Path, data: Path) -> dict[str, str]:
    """The environment in which every Python process records what it runs of a copy."""
    settings = data.with_suffix(".rc")
    settings.write_text(_SETTINGS.format(data=data, source=copy / "jaxcache"))
    path = os.pathsep.join(map(str, (copy, copy / "tools")))
    plugin = {"PYTEST_PLUGINS": Path(__file__).stem, "PYTHONPATH": path}
    return {"COVERAGE_PROCESS_START": str(settings), **plugin}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record under the id of the test that runs."""
    if recorder := Coverage.current():
        recorder.switch_context(item.nodeid)
    return (yield)


def durations(printed: str) -> dict[str, float]:
    """Seconds of each test, by its id."""
    found: defaultdict[str, float] = defaultdict(float)
    for seconds, test in _DURATION.findall(printed):
        found[test] += float(seconds)
    return dict(found)


@dataclass(frozen=True, slots=True)
class Covering:
    """What one recording found."""

    copy: Path
    seconds: dict[str, float]
    lines: dict[str, dict[int, frozenset[str]]]
    """By file and line the ids of the tests that run it."""

    @classmethod
    def read(cls, copy: Path, data: Path, seconds: dict[str, float]) -> "Covering":
        """Put the recordings of all processes together."""
        found: defaultdict[str, defaultdict[int, set[str]]]
        found = defaultdict(lambda: defaultdict(set))
        for path in data.parent.glob(f"{data.name}.*"):
            if path.suffix == ".rc":
                continue
            with contextlib.suppress(CoverageException):  # of a process that a test killed
                recorded = CoverageData(str(path))
                recorded.read()
                for file in recorded.measured_files():
                    for line, contexts in recorded.contexts_by_lineno(file).items():
                        found[file][line].update(map(_test_of, contexts))
        lines = {f: {n: frozenset(t) for n, t in rows.items()} for f, rows in found.items()}
        return cls(copy, seconds, lines)

    def tests(self, file: str, source: str, line: int, among: Iterable[str]) -> list[str]:
        """The tests of some files that may notice a change of a line, the quickest first.

        All of them where the line runs at import, or outside of every test.

        Args:
            among: the beginnings of their ids.
        """
        some = [t for t in self.seconds if t.startswith(tuple(f"{f}::" for f in among))]
        span = _statement(source, line)
        if span is not None:
            rows = self.lines.get(str(self.copy / file), {})
            running = frozenset().union(*(rows.get(n, frozenset()) for n in span))
            some = [t for t in some if t in running] or some
        return sorted(some, key=lambda t: (self.seconds[t], t))


def _test_of(context: str) -> str:
    """The test of a context: ``ID`` in pytest's own process, ``ID (call)`` in another."""
    return re.sub(r" \((setup|call|teardown)\)$", "", context)


def _statement(source: str, line: int) -> range | None:
    """The lines of the statement in a function that a line belongs to; None where it is in none."""
    found: range | None = None
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in (n for statement in function.body for n in ast.walk(statement)):
            if not isinstance(node, ast.stmt):
                continue
            inner = getattr(node, "body", None)
            last = inner[0].lineno - 1 if inner else node.end_lineno or node.lineno
            span = range(node.lineno, max(last, node.lineno) + 1)
            if line in span and (found is None or len(span) <= len(found)):
                found = span
    return found
