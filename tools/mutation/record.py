"""A plugin of pytest that records what ``choose_tests.py`` reads: which test runs which line, and for how long.

Coverage's context is the test that runs; ``coverage.ini`` gives it to the processes that a test starts, and
``in_each_process.py`` to those that a server forks.
"""

import json
import os
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    recorder = coverage.Coverage.current()
    if recorder is not None:
        recorder.switch_context(item.nodeid)
    current = Path(os.environ["MUTATION_CURRENT"], os.environ.get("PYTEST_XDIST_WORKER", ""))
    current.write_text(item.nodeid, encoding="utf-8")
    try:
        return (yield)
    finally:
        current.unlink()
        if recorder is not None:
            recorder.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append ``[TEST, OUTCOME, SECONDS]``: of each test its preparation, its call and its end."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # the process that started this one gets the report, too
    with open(os.environ["MUTATION_DURATIONS"], "a", encoding="utf-8") as file:
        file.write(json.dumps([report.nodeid, report.outcome, report.duration]) + "\n")
