"""A directory with a program, in which plain JAX and jaxcache take turns over one cache.

Plain JAX is the oracle: the program prints the events that JAX counts, and no part of jaxcache is in
its process.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("program.py")
REPOSITORY = Path(__file__).parents[2]
MODULES = 3
_FOREIGN = ("JAX", "XLA_", "LIBTPU", "XDG_", "PYTHON", "VIRTUAL_ENV", "CONDA")
#: Whether and where Python keeps bytecode: without it each process compiles the package.
_BYTECODE = {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
_LIFTED = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_PLATFORMS": "cpu",
}


@dataclass(frozen=True, slots=True)
class Counts:
    """What JAX counted in one process, or in all processes of one program."""

    hits: int
    misses: int


@dataclass(frozen=True, slots=True)
class Spelling:
    """A way to name the cache directory."""

    name: str
    value: str | None
    """``JAX_COMPILATION_CACHE_DIR``; ``{world}`` is the directory of the program."""
    before: str = ""
    """Code that the program runs before its first compile."""
    place: str = ""
    """Where the cache lies, if only the program says so."""
    cannot: str = ""
    """Why plain JAX itself does not hit what it wrote."""


_IN_CODE = "jax.config.update('jax_compilation_cache_dir', {!r})"
SPELLINGS = {
    s.name: s
    for s in (
        Spelling("absolute", "{world}/jc"),
        Spelling(".jc", ".jc"),
        Spelling("./x/../jc", "./x/../jc"),
        Spelling("jc/", "jc/"),
        Spelling("../p/jc", "../p/jc"),
        Spelling("link", "link"),
        Spelling("~/jc", "~/jc"),
        Spelling("unset", None, cannot="without a directory JAX has no cache"),
        Spelling("code", None, _IN_CODE.format("jc"), place="jc"),
        Spelling("code, chdir", None, f"{_IN_CODE.format('jc')}; os.chdir('x')", place="x/jc"),
        Spelling(
            "chdir anew",
            ".jc",
            "import tempfile; os.chdir(tempfile.mkdtemp(dir='runs'))",
            cannot="each working directory has a cache of its own",
        ),
    )
}


@dataclass(slots=True)
class World:
    """One program in a directory of its own, its cache, and the Python that runs it."""

    top: Path
    python: str
    spelling: Spelling
    jaxcache: tuple[str, ...] = (sys.executable, "-m", "jaxcache")
    extra: dict[str, str] = field(default_factory=dict)
    """Environment for plain JAX and jaxcache alike."""
    finds_python: bool = False
    """Whether jaxcache has to find the Python by itself."""
    processes: int = 1
    """Processes that the program is started in."""

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        for name in ("x", "runs", "target"):
            (self.directory / name).mkdir()
        (self.directory / "link").symlink_to("target")
        (self.top / "home").mkdir()
        shutil.copy(PROGRAM, self.directory / "program.py")

    @property
    def modules(self) -> int:
        """Compile requests of one start of the program."""
        return MODULES * self.processes

    @property
    def directory(self) -> Path:
        """The directory that the program runs in."""
        return self.top / "p"

    def environment(self, *, plain: bool) -> dict[str, str]:
        """The environment of a process."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN) or k in _BYTECODE}
        env |= {"HOME": str(self.top / "home"), "ORACLE_BEFORE": self.spelling.before, **_LIFTED}
        if self.spelling.value is not None:
            value = self.spelling.value.format(world=self.directory)
            env["JAX_COMPILATION_CACHE_DIR"] = value
        if not plain:
            env["PYTHONPATH"] = str(REPOSITORY)
        return env | self.extra

    def plain(self, *command: str) -> Counts:
        """Run the program as a user would, without jaxcache, and return what JAX counted."""
        counts = self.top / f"counts-{len(list(self.top.iterdir()))}"
        counts.mkdir()
        done = subprocess.run(
            command or (self.python, "program.py"),
            cwd=self.directory,
            env=self.environment(plain=True) | {"ORACLE_COUNTS": str(counts)},
            capture_output=True,
            text=True,
            check=False,
        )
        told = [json.loads(path.read_text()) for path in counts.iterdir()]
        if done.returncode or not told or any(t["jaxcache"] for t in told):
            raise AssertionError(f"plain JAX failed: {done.stdout}{done.stderr}")
        return Counts(sum(t["cache_hits"] for t in told), sum(t["cache_misses"] for t in told))

    def run_jaxcache(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run ``jaxcache ARG…`` in the directory of the program."""
        return subprocess.run(
            [*self.jaxcache, *arguments],
            cwd=self.directory,
            env=self.environment(plain=False),
            capture_output=True,
            text=True,
            check=False,
        )

    def report(self, command: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run ``jaxcache COMMAND --json ARG…``; its exit code and document."""
        done = self.run_jaxcache(command, "--json", *arguments)
        if not done.stdout.startswith("{"):
            raise AssertionError(f"jaxcache {command} {arguments}: {done.stderr}")
        return done.returncode, json.loads(done.stdout)

    @property
    def choice(self) -> tuple[str, ...]:
        """The option that names the Python, where the environment does not."""
        return () if self.finds_python else ("--python", self.python)

    @property
    def place(self) -> tuple[str, ...]:
        """The option that names the cache, where only the program does."""
        return ("-C", self.spelling.place) if self.spelling.place else ()

    def entries(self) -> set[str]:
        """Every entry in the world, wherever it lies."""
        return {str(path.relative_to(self.top)) for path in self.top.rglob("*-cache")}

    def cache_entries(self) -> set[str]:
        """Entries at or below the working directory of the program."""
        return {name for name in self.entries() if name.startswith("p/")}


def fill(world: World, way: str) -> None:
    """Fill the cache of a world with jaxcache.

    Raises:
        AssertionError: a command failed.
    """
    for command in WAYS[way](world):
        done = world.run_jaxcache(*command)
        if done.returncode:
            raise AssertionError(f"jaxcache {' '.join(command)}: {done.stdout}{done.stderr}")
    if way == "warm --portable":
        world.extra["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"


Commands = list[tuple[str, ...]]


def _warm(*options: str) -> Callable[[World], Commands]:
    return lambda world: [("warm", *world.choice, *options, "program.py")]


def _compile(world: World) -> Commands:
    """Compile a recipe; where the program names its directory, only the user can tell how."""
    options = world.place and (*world.place, "--used-at", "jc")
    return [
        ("warm", *world.choice, "--collect-only", "--record", "x.recipe", "program.py"),
        ("compile", *world.choice, *options, "x.recipe"),
    ]


def _through(save: tuple[str, ...], load: tuple[str, ...]) -> Callable[[World], Commands]:
    """Fill a cache, save it elsewhere, empty it, and load it again."""
    return lambda world: [
        ("warm", *world.choice, "program.py"),
        (*save, *world.place),
        ("rm", "--yes", "*", *world.place),
        (*load, *world.place),
    ]


def _tier(world: World) -> Commands:
    """Fill a tier, empty the cache, and let the live layer fetch what the program needs."""
    source = world.place[1] if world.place else world.spelling.value or ""
    source = source.format(world=world.directory).replace("~", "./~")
    return [
        ("warm", *world.choice, "program.py"),
        ("copy", source, "../tier"),
        ("rm", "--yes", "*", *world.place),
        ("warm", *world.choice, "--tier", "../tier", "program.py"),
    ]


#: Ways to fill a cache with jaxcache.
WAYS: dict[str, Callable[[World], Commands]] = {
    "warm": _warm(),
    "warm -m": lambda world: [("warm", *world.choice, "-m", "program")],
    "warm --jobs": _warm("--jobs", "2"),
    "warm --portable": _warm("--portable"),
    "warm --live": _warm("--live"),
    "run": lambda world: [("run", "--", world.python, "program.py")],
    "compile RECIPE": _compile,
    "bundle": _through(("export", "../x.jxb"), ("import", "../x.jxb")),
    "pull": _through(("push", "../there"), ("pull", "../there")),
    "ci restore": lambda world: _through(
        ("ci", "save", "../saved"), ("ci", "restore", *world.choice, "../saved")
    )(world),
    "tier": _tier,
}


def faults(world: World, way: str = "warm", command: Sequence[str] = ()) -> list[str]:
    """Fill with jaxcache, run plain JAX, and ask jaxcache again; return what is wrong."""
    wrong: list[str] = []
    fill(world, way)
    return wrong + faults_of_full(world, way, command)


def faults_of_full(world: World, way: str, command: Sequence[str] = ()) -> list[str]:
    """Run plain JAX over a cache that jaxcache filled, and ask jaxcache again."""
    wrong: list[str] = []
    filled = world.entries()
    counts = world.plain(*command)
    if counts != Counts(world.modules, 0):
        wrong.append(f"{way}, then plain JAX: {counts.hits} hits, {counts.misses} misses")
    if added := world.entries() - filled:
        wrong.append(f"{way}, then plain JAX: {len(added)} entries more")
    return wrong + faults_of_report(world, command)


def faults_after_plain(world: World, command: Sequence[str] = ()) -> list[str]:
    """Fill with plain JAX, and have jaxcache report on it; return what is wrong."""
    counts = world.plain(*command)
    cold = counts.misses >= MODULES and counts.hits + counts.misses == world.modules
    wrong = [] if cold else [f"plain JAX, cold: {counts}"]
    return wrong + faults_of_report(world, command)


def faults_of_report(world: World, command: Sequence[str] = ()) -> list[str]:
    """Run the program under ``run --fail-on-miss`` over a full cache; return what is wrong."""
    wrong: list[str] = []
    before = world.entries()
    line = command or (world.python, "program.py")
    code, report = world.report("run", "--fail-on-miss", "--", *line)
    hits = report["summary"]["hits"]
    if (code, hits) != (0, world.modules):
        wrong.append(f"full, then run --fail-on-miss: exit {code}, {hits} hits")
    if added := world.entries() - before:
        wrong.append(f"full, then run --fail-on-miss: {len(added)} entries more")
    opened = Path(report["cache_dir"] or "")
    places = {(world.top / entry).parent for entry in world.cache_entries()}
    if not any(opened.is_dir() and opened.samefile(place) for place in places):
        wrong.append(f"run reports on {opened}, and the entries are in {places}")
    return wrong
