"""The table of pairs has every cell, and names tests that exist."""

import sys
from itertools import combinations

from conftest import REPOSITORY, clean_environment
from processes import sh

from jaxcache.cli.commands import COMMANDS as EVERY_COMMAND
from tests.pairs.table import (
    COMMANDS,
    NAMED_BY_README,
    PAIRS,
    ROWS,
    VIEWS,
    Feature,
    Held,
    NotYet,
    Senseless,
)


def test_every_pair_has_one_cell() -> None:
    cells = [(left, right) for left, row in ROWS.items() for right in row]
    missing = [
        f"{left.value} x {right.value}" for left, right in PAIRS if (left, right) not in cells
    ]
    assert not missing, "give each pair a cell in tests/pairs/table.py"
    assert len(cells) == len(PAIRS), (
        "a pair has its cell in the row of the feature that comes first"
    )


def test_every_pair_of_features_that_readme_names_was_tried() -> None:
    untried = [
        f"{left.value} x {right.value}"
        for left, right in combinations(NAMED_BY_README, 2)
        if isinstance(ROWS[left][right], NotYet)
    ]
    assert not untried


def test_every_command_belongs_to_a_feature() -> None:
    featured = set().union(*COMMANDS.values())
    assert featured | VIEWS == set(EVERY_COMMAND), "a new command needs a feature and its row"
    assert not featured & VIEWS


def test_every_reason_is_one_sentence() -> None:
    reasons = [
        cell.reason for row in ROWS.values() for cell in row.values() if isinstance(cell, Senseless)
    ]
    assert reasons
    assert not [reason for reason in reasons if len(reason.split()) < 5 or ". " in reason]


def test_every_named_test_exists() -> None:
    named = {
        f"tests/{test}"
        for row in ROWS.values()
        for cell in row.values()
        if isinstance(cell, Held)
        for test in cell.tests
    }
    files = sorted({test.partition("::")[0] for test in named})
    collect = ("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = sh(
        [sys.executable, *collect, *files],
        cwd=REPOSITORY,
        env=clean_environment(REPOSITORY) | {"PYTHONWARNINGS": ""},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    existing = {line.partition("[")[0] for line in done.stdout.splitlines()}
    assert not sorted(named - existing)


def test_every_feature_has_a_row_or_is_the_last() -> None:
    assert list(ROWS) == list(Feature)[:-1]
