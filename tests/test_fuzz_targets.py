"""What is fuzzed runs, and what fuzzing once broke stays whole; ``make fuzz`` looks for more."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

_FOLDER = Path(__file__).parents[1] / "tools" / "fuzz"
_BROKEN = Path(__file__).parent / "data" / "fuzz"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, _FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TARGETS = _load("targets").TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_do_not_break_their_target(name: str) -> None:
    seeds = list(TARGETS[name].seeds())
    assert seeds
    for seed in seeds:
        TARGETS[name].run(seed)
        TARGETS[name].run(seed[: len(seed) // 2])


@pytest.mark.parametrize(
    "path", sorted(_BROKEN.glob("*/*")), ids=lambda p: f"{p.parent.name}-{p.name}"
)
def test_what_once_broke(path: Path) -> None:
    TARGETS[path.parent.name].run(path.read_bytes())
