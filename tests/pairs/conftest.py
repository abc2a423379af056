"""A program, its caches, and plain JAX as the judge of what two features make together."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import WorldInProcess
from conftest import MakeOnce, find_jax_pythons, jax_version

from tools.oracle.world import MODULES, SPELLINGS, Counts, World

#: Every compile request of the program is a hit, or none is.
ALL_HITS = Counts(MODULES, 0)
ALL_MISSES = Counts(0, MODULES)


class Pair:
    """A world whose keys leave the cache directory out, and whose cache can be exchanged."""

    def __init__(self, world: World, make_once: MakeOnce) -> None:
        self.world = world
        self._make_once = make_once
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

    def fill(self) -> None:
        """Put into the cache what plain JAX wrote for the program, once for all tests."""

        def run(directory: Path) -> None:
            assert self.plain(JAX_COMPILATION_CACHE_DIR=str(directory)) == ALL_MISSES

        shutil.copytree(self._once("plain", run), self.cache)

    def record(self, name: str = "x.recipe") -> None:
        """Put a recipe of the program beside it, recorded once for all tests."""

        def collect(directory: Path) -> None:
            recipe = directory / "x.recipe"
            self.run("warm", *self.python, "--collect-only", "--record", recipe, "program.py")

        shutil.copy(self._once("recipe", collect) / "x.recipe", self.directory / name)

    def _once(self, name: str, fill: Callable[[Path], None]) -> Path:
        return self._make_once(
            f"pair-{name}-jax{find_jax_pythons().index(self.world.python)}", fill
        )

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
def make_pair(tmp_path: Path, make_once: MakeOnce) -> MakePair:
    """Make a pair with a Python."""

    def make(python: str) -> Pair:
        if jax_version(python) < (0, 5):
            pytest.skip("recipes and portable keys need JAX 0.5")
        world = WorldInProcess(tmp_path / "world", python, SPELLINGS["absolute"])
        return Pair(world, make_once)

    return make


@pytest.fixture
def pair(make_pair: MakePair, each_jax_python: str) -> Pair:
    """A pair with each Python of the matrix."""
    return make_pair(each_jax_python)
