"""A program, its caches, and plain JAX as the judge of what two features make together."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import WorldInProcess
from conftest import jax_version

from tools.oracle.world import MODULES, SPELLINGS, Counts, World

#: Every compile request of the program is a hit, or none is.
ALL_HITS = Counts(MODULES, 0)
ALL_MISSES = Counts(0, MODULES)


class Pair:
    """A world whose keys leave the cache directory out, and whose cache can be exchanged."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.directory = world.directory
        self.python = ("--python", world.python)
        world.extra["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"
        self.use("cache")

    def use(self, name: str) -> Path:
        """Make a directory below the program's the cache of all that follows."""
        self.cache = self.directory / name
        self.world.extra["JAX_COMPILATION_CACHE_DIR"] = str(self.cache)
        return self.cache

    def start(self, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        """Run ``jaxcache ARG…``, whatever its exit code."""
        return self.world.run_jaxcache(*map(str, arguments))

    def run(self, *arguments: str | Path) -> str:
        """Run ``jaxcache ARG…`` and return what it prints; it must succeed."""
        done = self.start(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def run_json(self, *arguments: str | Path) -> Any:
        """Run ``jaxcache ARG… --json`` and return its document; it must succeed."""
        return json.loads(self.run(*arguments, "--json"))

    def plain(self, **environment: str) -> Counts:
        """Run the program without jaxcache, and return what JAX counts."""
        extra = self.world.extra
        self.world.extra = extra | environment
        try:
            return self.world.plain()
        finally:
            self.world.extra = extra

    def change_one_function(self) -> None:
        """Give the program one function that no cache has."""
        program = self.directory / "program.py"
        program.write_text(program.read_text().replace("sin(x) @ x", "sin(x) @ x + 1"))

    def program(self) -> tuple[str, ...]:
        """The command line of the program, for ``run --``."""
        return ("--", self.world.python, "program.py")


def keys(cache: Path, suffix: str = "-cache") -> set[str]:
    """The keys of the entries of a directory, or of their ``-atime`` files."""
    return {path.name.removesuffix(suffix) for path in cache.glob(f"jit_*{suffix}")}


MakePair = Callable[[str], Pair]


@pytest.fixture
def make_pair(tmp_path: Path) -> MakePair:
    """Make a pair with a Python."""

    def make(python: str) -> Pair:
        if jax_version(python) < (0, 5):
            pytest.skip("recipes and portable keys need JAX 0.5")
        return Pair(WorldInProcess(tmp_path / "world", python, SPELLINGS["absolute"]))

    return make


@pytest.fixture
def pair(make_pair: MakePair, each_jax_python: str) -> Pair:
    """A pair with each Python of the matrix."""
    return make_pair(each_jax_python)
