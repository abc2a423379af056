"""What every test may ask for: the command line, real caches, and Pythons that have jax."""

import gc
import importlib
import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from schemas import check_output

import jaxcache.cache
import jaxcache.cli
import jaxcache.render
import jaxcache.store
from jaxcache.store.local import LocalStore

pytest_plugins = ["acting", "object_server"]

REPOSITORY = Path(__file__).parents[1]
CORPUS = Path(__file__).parent / "data" / "corpus"

#: Variables of the caller that would change what a test sees.
_FOREIGN = (
    *("JAX_", "XLA_", "LIBTPU", "XDG_", "NO_COLOR", "COLUMNS", "TERM", "PYTHONWARNINGS"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "JAXCACHE_", "LC_", "LANG", "TZ", "LINES", "FORCE_COLOR"),
    *("CI", "GITHUB_", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONOPTIMIZE"),
)

#: No example has a time limit: the machine may be ten times slower.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

gc.set_threshold(50_000)  # collection alone would collect garbage for a third of its time

#: Where the Pythons of tests find jaxcache, and ``startup/sitecustomize.py``.
PYTHONPATH = f"{REPOSITORY}{os.pathsep}{REPOSITORY}/tests/startup"

RunCli = Callable[..., "subprocess.CompletedProcess[str]"]

for _number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        # A shell starts its background jobs so, and what the tests signal would inherit it.
        signal.signal(
            _number,
            signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL,
        )


def clean_environment(home: Path) -> dict[str, str]:
    """The caller's environment without what would leak into a test."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    env |= {"HOME": str(home), "PYTHONPATH": PYTHONPATH, "PYTHONHASHSEED": "0"}
    env |= {"PYTHONWARNINGS": "error", "LANG": "C.UTF-8"}
    return env


#: Variables that decide which modules a Python finds.
_OF_PYTHON = {"PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHOME", "PYTHONNOUSERSITE"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file whose every test is left out by how it is marked, or not marked, ``jax``."""
    wanted = config.option.markexpr
    if not collection_path.match("test_*.py") or "jax" not in wanted:
        return None
    text = collection_path.read_text("utf-8")
    if wanted in ("jax", "not slow and jax"):
        return "pytest.mark.jax" not in text or None
    return ("not jax" in wanted and "\npytestmark = pytest.mark.jax\n" in text) or None


@pytest.fixture
def run_cli(tmp_path: Path, spawn_cli: RunCli) -> RunCli:
    """Run ``jaxcache ARG…`` in this process, away from the caller's settings."""
    from command_line import run_in_process

    def run(
        *args: str | Path,
        env: dict[str, str] | None = None,
        input: str | None = None,  # noqa: A002
        cwd: Path | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        if _OF_PYTHON & {*(env or {})}:  # they count when a Python starts
            return spawn_cli(*args, env=env, input=input, cwd=cwd)
        given = clean_environment(tmp_path) | (env or {})
        return run_in_process(args, env=given, cwd=cwd or tmp_path, input=input)

    return run


#: Where root runs the tests: who goes on without its rights, and another user of the machine.
_USER, _STRANGER = 65534, 65533


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A directory of a user who may not write everywhere, as whom the test goes on."""
    with tempfile.TemporaryDirectory() as name:
        if os.getuid() == 0:
            for package in (jaxcache.cli, jaxcache.cache, jaxcache.render, jaxcache.store):
                # Python itself may lie where that user cannot read.
                for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                    importlib.import_module(module.name)
            os.chmod(name, 0o755)
            os.chown(name, _USER, _USER)
            os.setresuid(_USER, _USER, 0)
        try:
            yield Path(name)
        finally:
            if os.getresuid()[2] == 0:
                os.setresuid(0, 0, 0)


GiveAway = Callable[[Path], None]


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> GiveAway:
    """Make files another user's: really where root runs the tests, else for this process.

    Of a directory, everything in it; of a link, the link.
    """
    foreign: set[tuple[int, int]] = set()
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        status = real(descriptor)
        if (status.st_dev, status.st_ino) not in foreign:
            return status
        return os.stat_result((*status[:4], status.st_uid + 1, *status[5:10]))

    def give(path: Path) -> None:
        below = () if path.is_symlink() else path.rglob("*")
        for each in (path, *below):
            if CAN_GIVE_AWAY:
                user = os.geteuid()
                os.seteuid(0)  # which ``unprivileged`` has laid down
                os.chown(each, _STRANGER, _STRANGER, follow_symlinks=False)
                os.seteuid(user)
            else:
                status = each.lstat()
                foreign.add((status.st_dev, status.st_ino))
                monkeypatch.setattr(os, "fstat", fstat)

    return give


#: Whether files of another user are really theirs, for other processes, too.
CAN_GIVE_AWAY = os.getuid() == 0


@pytest.fixture
def clone(corpus: Path, tmp_path: Path) -> Path:
    """A checkout of somebody's project, whose settings choose its own cache and its own tier."""
    path = tmp_path / "clone"
    shutil.copytree(corpus / "0.4.38-cpu-zstd", path / ".c")
    (path / "pyproject.toml").write_text(
        """
[tool.jaxcache]
cache-dir = ".c"

[tool.jaxcache.live]
enabled = true
tiers = ["./.c:ro"]
portable-keys = true
metrics = "../precious.txt"
max-size = "1B"
"""
    )
    return path


@pytest.fixture
def spawn_cli(tmp_path: Path) -> RunCli:
    """Run ``jaxcache ARG…`` as a process: for signals, pipes, encodings, start-up and imports."""
    return partial(spawn, tmp_path)


def spawn(
    home: Path,
    *args: str | Path,
    env: dict[str, str] | None = None,
    input: str | None = None,  # noqa: A002
    cwd: Path | None = None,
    timeout: float = 300,
) -> "subprocess.CompletedProcess[str]":
    """Run ``jaxcache ARG…`` as a process, in a home of its own."""
    from processes import sh

    own = clean_environment(home) | (env or {})
    options = {"input": input} if input is not None else {"stdin": subprocess.DEVNULL}
    command = [sys.executable, "-m", "jaxcache", *map(str, args)]
    done = sh(command, env=own, cwd=cwd or home, timeout=timeout, **options)
    if "PYTHONPATH" not in (env or {}):  # else it is another jaxcache
        check_output([*map(str, args)], done.stdout, done.stderr)
    return done


MakeOnce = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session", autouse=True)
def _reads_are_recorded() -> Iterator[None]:
    """Take every mount for one that records reads; one that does not has tests of its own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LocalStore, "keeps_atime", True)
        yield


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> MakeOnce:
    """Make a directory once for all workers of a run of pytest; tests only read and copy it."""
    top = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        top = top.parent

    def make(name: str, fill: Callable[[Path], None]) -> Path:
        directory = top / "shared" / name
        directory.parent.mkdir(parents=True, exist_ok=True)
        done = directory.with_name(f"{name}.done")
        with FileLock(directory.with_name(f"{name}.lock")):
            if not done.exists():
                shutil.rmtree(directory, ignore_errors=True)  # of a fill that failed
                directory.mkdir()
                fill(directory)
                done.touch()
        return directory

    return make


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Real cache directories of five JAX versions; see ``PROVENANCE.md`` there."""
    return CORPUS


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of torch's compilers to look at; see ``tests/data/torch/PROVENANCE.md``."""
    directory = tmp_path_factory.mktemp("golden")
    with tarfile.open(CORPUS.parent / "torch" / "golden.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory / "cache"


@pytest.fixture
def torch_cache(golden: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(golden, tmp_path / "torch-cache"))


def first_file(cache: Path, pattern: str) -> Path:
    """The first file below a cache that fits a pattern."""
    return min(p for p in cache.glob(pattern) if p.is_file())


@cache
def has_modules(python: str, *names: str) -> bool:
    """Whether an interpreter has these modules; they are looked up, not imported."""
    look = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    done = subprocess.run([python, "-c", look, *names], capture_output=True, check=False)
    return done.returncode == 0


@cache
def jax_version(python: str) -> tuple[int, ...]:
    """The first three numbers of its jax, as its metadata has them."""
    read = "from importlib.metadata import version; print(version('jax'))"
    printed = subprocess.check_output([python, "-c", read], text=True)
    return tuple(int(n) for n in printed.split(".")[:3])


@cache
def find_jax_pythons() -> tuple[str, ...]:
    """The interpreters to test with: those named by the environment, else our own."""
    many = os.environ.get("JAXCACHE_TEST_JAX_PYTHONS")
    named = many.split(os.pathsep) if many else [os.environ.get("JAXCACHE_TEST_JAX_PYTHON", "")]
    chosen = [p for p in named if p] or [sys.executable]
    return tuple(p for p in chosen if has_modules(p, "jax"))


@pytest.fixture(scope="session")
def jax_python() -> str:
    """An interpreter that has jax."""
    pythons = find_jax_pythons()
    if not pythons:
        pytest.skip("no Python with jax: set JAXCACHE_TEST_JAX_PYTHON")
    return pythons[0]


@pytest.fixture(scope="session")
def torch_python() -> str:
    """An interpreter that has torch."""
    python = os.environ.get("JAXCACHE_TEST_TORCH_PYTHON")
    if not python:
        pytest.skip("no Python with torch: set JAXCACHE_TEST_TORCH_PYTHON")
    return python


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Where a cache may come to be."""
    return tmp_path / "cache"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Where entries of another cache may go."""
    return tmp_path / "here"


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Write a script and return its path."""

    def write(text: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def warm(run_cli: RunCli, cache: Path, each_jax_python: str) -> Callable[..., Any]:
    """Run ``warm --json`` and return its document; the exit code is checked."""

    def run(
        path: Path, *args: str, options: tuple[str, ...] = (), code: int | None = 0, **kw: Any
    ) -> Any:
        done = run_cli(
            "warm", "--json", "-C", cache, "--python", each_jax_python, *options, path, *args, **kw
        )
        assert code is None or done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr

    return run


class StepRuns(NamedTuple):
    """``warm`` of ``STEP``, cold and then hot, with keys that do not contain the cache's path."""

    directory: Path
    """``cache``, ``script.py``, ``step.recipe``, and what ``--trace`` wrote: ``cold``, ``hot``."""
    cold: Any
    hot: Any


@pytest.fixture
def step_runs(run_cli: RunCli, make_once: MakeOnce, each_jax_python: str) -> StepRuns:
    """Two runs to look at, which all tests share."""
    from warm_checks import STEP

    def fill(directory: Path) -> None:
        (directory / "script.py").write_text(STEP)
        words = ("warm", "--json", "-C", directory / "cache", "--python", each_jax_python)
        more = {"cold": ("--record", directory / "step.recipe"), "hot": ("--fail-on-miss",)}
        for name, options in more.items():
            trace = ("--portable", "--trace", directory / name, directory / "script.py")
            done = run_cli(*words, *options, *trace)
            assert done.returncode == 0, done.stderr
            (directory / f"{name}.json").write_text(done.stdout)

    index = find_jax_pythons().index(each_jax_python)
    directory = make_once(f"step-runs-jax{index}", fill)
    cold, hot = (json.loads((directory / f"{n}.json").read_text()) for n in ("cold", "hot"))
    return StepRuns(directory, cold, hot)


@pytest.fixture
def step_cache(step_runs: StepRuns, cache: Path) -> Path:
    """The test's own cache with the entries of ``STEP``, which runs with ``--portable`` hit."""
    return Path(shutil.copytree(step_runs.directory / "cache", cache))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``each_jax_python`` once for every interpreter of the matrix."""
    if "each_jax_python" in metafunc.fixturenames:
        params = [pytest.param(p, id=f"jax{i}") for i, p in enumerate(find_jax_pythons())]
        metafunc.parametrize("each_jax_python", params)  # without any, the test is skipped


@pytest.fixture
def local(corpus: Path, tmp_path: Path) -> Path:
    """A cache that may be changed."""
    return Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "local"))


@pytest.fixture
def capped_cache(corpus: Path, tmp_path: Path) -> Path:
    """A copy of a real cache with seven entries, their ``-atime`` files and a lock file."""
    target = Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd-maxsize", tmp_path / "cache"))
    for path in target.iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return target


@pytest.fixture
def bundle(run_cli: RunCli, cache: Path, tmp_path: Path) -> Path:
    """A bundle of the ``cache`` of the test's file."""
    path = tmp_path / "cache.jxb"
    assert run_cli("export", path, "-C", cache).returncode == 0
    return path


@pytest.fixture
def without_links(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A mount without hard links and ``renameat2``; a parameter is a word of the mount."""
    from mount_without_links import can_mount, mounted_without_links

    if not can_mount():
        pytest.skip("only root may mount, where there is FUSE")
    words = [request.param] if hasattr(request, "param") else []
    directory, mountpoint = tmp_path / "directory", tmp_path / "mounted"
    directory.mkdir()
    mountpoint.mkdir()
    with mounted_without_links(directory, mountpoint, *words):
        yield mountpoint
