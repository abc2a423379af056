"""Pairs of features that are run together; plain JAX judges what they make."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from string import Template

import pytest
from command_line import WorldInProcess
from conftest import CORPUS, REPOSITORY, MakeOnce, find_jax_pythons, jax_version
from processes import interrupt

from jaxcache.cli.commands import COMMANDS
from tools.oracle.world import MODULES, SPELLINGS, Counts, World

MATRIX = tomllib.loads(Path(__file__).with_name("matrix.toml").read_text("utf-8"))
FEATURES = list(MATRIX["features"])
NAMED_BY_README = FEATURES[: FEATURES.index("cap")]
SCENARIOS = MATRIX["quick"] | MATRIX["slow"]
#: Every compile request of the program is a hit, or none is.
ALL_HITS = Counts(MODULES, 0)
ALL_MISSES = Counts(0, MODULES)
#: With any cap, JAX keeps an ``-atime`` file for each entry; nothing exceeds this one.
CAP = {"JAX_COMPILATION_CACHE_MAX_SIZE": str(10**9)}
PORTABLE = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
#: A real cache of a JAX that is in no key of the matrix.
OTHER_VERSION = CORPUS / "0.4.38-cpu-zstd"
#: A name with spaces, letters beyond ASCII, and what shells and URLs treat specially.
ODD = "my cäche ★ #1 %20 'x'"


def test_every_feature_but_the_last_has_a_table_with_those_that_follow() -> None:
    tables = {name: list(table) for name, table in MATRIX.items()}
    assert list(tables) == ["quick", "slow", "features", "commands", *FEATURES[:-1]]
    for number, feature in enumerate(FEATURES[:-1], 1):
        assert tables[feature] == FEATURES[number:]


def test_every_command_belongs_to_one_feature_or_is_a_view() -> None:
    listed = [command for commands in MATRIX["commands"].values() for command in commands]
    assert sorted(listed) == sorted(COMMANDS)


def test_every_cell_names_tests_or_why_there_is_none() -> None:
    texts = "".join(file.read_text("utf-8") for file in (REPOSITORY / "tests").rglob("test_*.py"))
    existing = {*re.findall(r"^def (test_\w+)", texts, re.M), *SCENARIOS}
    for pair in combinations(FEATURES, 2):
        cell = MATRIX[pair[0]][pair[1]]
        names = [cell] if isinstance(cell, str) else cell
        kind, _, reason = names[0].partition(": ")
        if kind == "senseless":
            assert len(reason.split()) >= 5 and ". " not in reason, pair
        elif kind == "not yet":
            assert not set(pair) <= set(NAMED_BY_README), f"{pair}: README names both"
        else:
            assert set(names) <= existing, pair


# A program, its caches, and plain JAX as the judge.


class Pair:
    """A world whose keys leave the cache directory out, and whose cache can be exchanged."""

    def __init__(self, world: World, make_once: MakeOnce) -> None:
        self.world = world
        self._make_once = make_once
        self.directory = world.directory
        self.python = ("--python", world.python)
        world.extra |= PORTABLE
        self.use("cache")

    def use(self, name: str) -> None:
        """Make a directory below the program's the cache of all that follows."""
        self.cache = self.directory / name
        self.world.extra["JAX_COMPILATION_CACHE_DIR"] = str(self.cache)

    def start(self, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        """Run ``jaxcache ARG…``, whatever its exit code."""
        return self.world.run_jaxcache(*map(str, arguments))

    def run(self, *arguments: str | Path) -> str:
        """Run ``jaxcache ARG…`` and return what it prints; it must succeed."""
        done = self.start(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def fill(self) -> None:
        """Put into the cache what plain JAX wrote for the program, once for all tests."""

        def run(directory: Path) -> None:
            assert self.plain(JAX_COMPILATION_CACHE_DIR=str(directory)) == ALL_MISSES

        shutil.copytree(self._once("plain", run), self.cache)

    def record(self, name: str) -> None:
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

    def trust(self) -> None:
        """Make the key ci, and let the user trust it."""
        self.run("trust", "add", "ci", self.run("trust", "keygen", "ci").strip().split("\t")[1])

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


@pytest.fixture
def pair(tmp_path: Path, make_once: MakeOnce, each_jax_python: str) -> Pair:
    if jax_version(each_jax_python) < (0, 5):
        pytest.skip("recipes and portable keys need JAX 0.5")
    world = WorldInProcess(tmp_path / "world", each_jax_python, SPELLINGS["absolute"])
    return Pair(world, make_once)


@pytest.mark.jax
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=name, marks=[pytest.mark.slow] * (name in MATRIX["slow"]))
        for name, script in SCENARIOS.items()
    ],
)
def test_a_scenario(pair: Pair, script: str, request: pytest.FixtureRequest) -> None:
    settings = pair.world.top / "home" / ".config" / "jaxcache"
    names = {"HERE": str(pair.directory), "SETTINGS": str(settings), "ODD": ODD}
    names |= {"CAP": "=".join(*CAP.items()), "PORTABLE": "=".join(*PORTABLE.items())}
    for word, fixture in (("TORCH", "golden"), ("BUCKET", "bucket")):
        if f"${word}" in script:
            names[word] = str(request.getfixturevalue(fixture))
    several = {"$PYTHON": pair.python, "$PROGRAM": pair.program()}
    for line in script.strip().splitlines():
        words: list[str] = []
        for word in shlex.split(line):
            words += several.get(word) or [Template(word).substitute(names)]
        play(pair, words, settings)


def play(pair: Pair, words: list[str], settings: Path) -> None:
    """Do what a line of a scenario says; ``matrix.toml`` explains each."""
    match words:
        case ["fill"]:
            pair.fill()
        case ["record", name]:
            pair.record(name)
        case ["use", directory]:
            pair.use(directory)
        case ["set", setting]:
            pair.world.extra |= dict([setting.split("=", 1)])
        case ["unset", name]:
            del pair.world.extra[name]
        case ["change"]:
            pair.change_one_function()
        case ["mix"]:
            for path in OTHER_VERSION.glob("*-cache"):
                os.utime(shutil.copy(path, pair.cache), (1_700_000_000, 1_700_000_000))
        case ["trust"]:
            pair.trust()
        case ["require-signed"]:
            (settings / "config.toml").write_text("require-signed = true\n")
        case ["plain", hits, writes, *env]:
            counts = pair.plain(**dict(setting.split("=", 1) for setting in env))
            assert counts == Counts(int(hits), int(writes)), words
        case ["entries", directory, number]:
            assert len(keys(pair.directory / directory)) == int(number), words
        case ["mix-torch", source]:
            shutil.copytree(source, pair.cache, dirs_exist_ok=True)
        case ["stamped"]:
            assert keys(pair.cache, "-atime") == keys(pair.cache)
        case ["jaxcache", *command]:
            pair.run(*command)
        case ["fails", code, "jaxcache", *command]:
            assert pair.start(*command).returncode == int(code), words
        case ["count", field, number, "jaxcache", *command]:
            value = json.loads(pair.run(*command, "--json"))[field]
            assert (value if isinstance(value, int) else len(value)) == int(number), words
        case _:
            raise ValueError(f"no line of a scenario: {words}")


# What is no list of commands.


#: Prints a line before its last compile, which never ends by itself.
INTERRUPTED = """
import threading, jax, program
program.COUNTS.clear()
program.main()
print("compiled", flush=True)
threading.Event().wait()
"""


@pytest.mark.jax
def test_ctrl_c_during_warm_leaves_whole_entries(pair: Pair) -> None:
    (pair.directory / "interrupted.py").write_text(INTERRUPTED)
    command = [*pair.world.jaxcache, "warm", *pair.python, "interrupted.py"]
    env = pair.world.environment(plain=False)
    code, shown = interrupt(command, "compiled", cwd=pair.directory, env=env)
    assert code == 130 and "interrupted" in shown and "jit_first" in shown
    assert pair.plain() == ALL_HITS
    pair.run("verify")


#: The end of a program that waits for what the live layer fetches ahead.
UNTIL_FETCHED = """
import glob, os, sys, time
entries = os.path.join(os.environ["JAX_COMPILATION_CACHE_DIR"], "*-cache")
end = time.monotonic() + 60
while len(glob.glob(entries)) <= int(sys.argv[1]) and time.monotonic() < end:
    time.sleep(0.05)
"""


@pytest.mark.jax
def test_what_a_tier_has_for_others_does_not_fail_a_run_of_hits(pair: Pair) -> None:
    """The layer fetches ahead what the last run used, and this one does not ask for."""
    live = ("--live", "--tier", pair.directory / "tier")
    program = pair.directory / "program.py"
    text = program.read_text()
    pair.fill()
    pair.run("copy", pair.cache, pair.directory / "tier")
    pair.change_one_function()
    pair.run("warm", *pair.python, *live, "program.py")
    pair.use("second")
    program.write_text(f"{text}{UNTIL_FETCHED}")
    pair.run("warm", *pair.python, "--fail-on-miss", *live, "program.py", str(MODULES))
    assert len(keys(pair.cache)) > MODULES


def contents(directory: Path) -> dict[str, bytes]:
    """The bytes of all files below a directory, except jaxcache's own."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and ".jaxcache" not in path.parts
    }


@pytest.mark.jax
@pytest.mark.slow
def test_two_versions_take_turns_in_one_directory(pair: Pair) -> None:
    first, other = pair.world.python, find_jax_pythons()[-1]
    if first == other:
        pytest.skip("JAXCACHE_TEST_JAX_PYTHONS names no other Python after this one")
    tier = pair.directory / "tier"
    for _ in range(2):
        for python in (first, other):
            pair.world.python = python
            pair.run("run", "--live", "--tier", tier, *pair.program())
            assert pair.plain(**CAP) == ALL_HITS
        pair.run("verify", "--fix", "--yes")
        pair.run("seal")
        pair.run("prune", "--unused-for", "30d", "--yes")
    assert len(keys(pair.cache)) == 2 * MODULES
    assert keys(tier) == keys(pair.cache)


@pytest.mark.jax
def test_torch_in_the_same_directory_is_left_alone(pair: Pair, golden: Path) -> None:
    pair.fill()
    shutil.copytree(golden, pair.cache, dirs_exist_ok=True)
    before = contents(golden)
    jax = ("--layout", "jax")
    pair.start("verify", *jax, "--fix", "--yes", "--grace", "0s")
    pair.run("prune", *jax, "--max-entries", "3", "--orphans", "--grace", "0s", "--yes")
    pair.run("export", *jax, "x.jxb")
    assert pair.plain(**CAP) == ALL_HITS
    assert {name: contents(pair.cache).get(name) for name in before} == before
    pair.use("second")
    pair.run("import", "x.jxb")
    assert len(keys(pair.cache)) == MODULES
    assert not set(contents(pair.cache)) & set(before)


#: Another user, whose directories root fills.
OWNER = 65534


@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")
@pytest.mark.parametrize("way", ["compile", "ci restore", "live", "signed"])
def test_what_root_fills_belongs_to_the_owner_of_an_odd_directory(pair: Pair, way: str) -> None:
    tier = pair.directory / "tier ★"
    pair.run("warm", *pair.python, "--record", "x.recipe", "program.py")
    pair.run("ci", "save", "x.jxb")
    source = pair.cache
    pair.use("ein Verzeichnis ★")
    for directory in (pair.cache, tier):
        directory.mkdir()
        os.chown(directory, OWNER, OWNER)
    umask = os.umask(0o077)
    try:
        if way == "compile":
            pair.run("compile", *pair.python, "x.recipe")
        elif way == "ci restore":
            pair.run("ci", "restore", *pair.python, "x.jxb")
        elif way == "live":
            pair.run("run", "--live", "--tier", tier, *pair.program())
        else:
            pair.trust()
            pair.run("push", "-C", source, "--sign", "ci", tier)
            pair.run("pull", tier)
    finally:
        os.umask(umask)
    made = (pair.cache, tier, *pair.cache.rglob("*"), *tier.rglob("*"))
    assert {path.lstat().st_uid for path in made} == {OWNER}
    assert pair.plain() == ALL_HITS
