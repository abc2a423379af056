"""What is fuzzed runs, and what fuzzing once broke stays whole; ``make fuzz`` looks for more."""

from pathlib import Path

import pytest

from tools.fuzz.targets import TARGETS

BROKEN = sorted(Path(__file__).with_name("data").glob("fuzz/*/*"))


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_do_not_break_their_target(name: str) -> None:
    seeds = list(TARGETS[name].seeds())
    assert seeds
    for seed in seeds:
        TARGETS[name].run(seed)
        TARGETS[name].run(seed[: len(seed) // 2])


@pytest.mark.parametrize("path", BROKEN, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_what_once_broke(path: Path) -> None:
    TARGETS[path.parent.name].run(path.read_bytes())
