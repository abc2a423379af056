"""Record a run, compile its recipe elsewhere, and have the run hit everything there."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command_line import error_of, show_on_terminal
from conftest import (
    REPOSITORY,
    MakeOnce,
    RunCli,
    StepRuns,
    clean_environment,
    find_jax_pythons,
    jax_version,
)
from processes import begin
from terminal import without_style
from ways import names

from jaxcache.cache.recipe import Recipe, encode_recipe, open_recipe
from jaxcache.warm.compiling import pool

pytestmark = pytest.mark.jax
PROGRAMS = Path(__file__).with_name("programs.py")
EIGHT = ("--devices", "8")
Record = Callable[..., Path]


def read(recipe: Path) -> Recipe:
    with open_recipe(str(recipe)) as file:
        return file.recipe


def wait_for_entry(cache: Path) -> None:
    deadline = time.monotonic() + 300
    while not names(cache):
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def recorded(run_cli: RunCli, each_jax_python: str, tmp_path: Path) -> Record:
    """Run a program with its cache in ``first`` and return its recipe."""
    if jax_version(each_jax_python) < (0, 5):
        pytest.skip("recipes are compiled by JAX 0.5 and later")

    def record(
        path: Path, *args: str, options: tuple[str, ...] = (), code: int = 0, home: Path = tmp_path
    ) -> Path:
        recipe = home / "some.recipe"
        words = ("-C", home / "first", "--record", recipe, "--python", each_jax_python, *options)
        done = run_cli("warm", *words, path, *args)
        assert done.returncode == code, done.stderr
        return recipe

    return record


@pytest.fixture
def recipe(recorded: Record, make_once: MakeOnce, each_jax_python: str) -> Path:
    """The recipe of ``devices``, for which next to nothing ran: to read, for all tests."""
    options = (*EIGHT, "--collect-only=0")
    home = make_once(
        f"recipe-jax{find_jax_pythons().index(each_jax_python)}",
        lambda home: recorded(PROGRAMS, "devices", options=options, home=home),
    )
    return home / "some.recipe"


@pytest.fixture
def step_recipe(step_runs: StepRuns, each_jax_python: str) -> Path:
    """The recipe of ``STEP`` to read; its keys contain no path."""
    if jax_version(each_jax_python) < (0, 5):
        pytest.skip("recipes are compiled by JAX 0.5 and later")
    return step_runs.directory / "step.recipe"


@pytest.fixture
def compiled(run_cli: RunCli, each_jax_python: str) -> Callable[..., dict[str, Any]]:
    """Run ``compile --json`` with one worker; its document. The exit code is checked."""

    def run(recipe: Path, cache: Path, *options: str, code: int = 0, **kw: Any) -> dict[str, Any]:
        words = ("-C", cache, "--json", "--jobs=1", "--python", each_jax_python, *options)
        done = run_cli("compile", recipe, *words, **kw)
        assert done.returncode == code, done.stderr + done.stdout
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    return run


def test_the_program_hits_everything_that_its_recipe_compiled(
    recorded: Record, recipe: Path, each_jax_python: str, tmp_path: Path
) -> None:
    """A full run has the modules that were collected; a bar counts what is done."""
    first, collected = tmp_path / "first", read(recipe).requests
    # GSPMD chooses shardings while it compiles, so there such modules are compiled.
    assert any(r.stubbed for r in collected)
    words = ("-C", first, "--portable", "--jobs=2", "--python", each_jax_python)
    done = show_on_terminal(("compile", recipe, *words), home=tmp_path, width=150)
    assert done.returncode == 0, done.stdout
    bar = re.compile(r"compiling .*?(\d+)/(\d+) ")
    shown = bar.findall(without_style(done.stdout))
    counts = [int(count) for count, _ in shown]
    assert counts and counts == sorted(counts)
    assert {int(total) for _, total in shown} == {len(names(first))}
    options = (*EIGHT, "--portable", "--fail-on-miss")
    full = read(recorded(PROGRAMS, "devices", options=options)).requests
    assert not any(r.stubbed for r in full)
    assert names(first) == {f"{r.key}-cache" for r in full}
    found, expected = ({(r.module, r.bytecode) for r in each} for each in (collected, full))
    assert found == expected


def test_a_module_that_kills_every_worker_is_named_and_the_rest_go_on(
    run_cli: RunCli, step_recipe: Path, compiled: Any, tmp_path: Path
) -> None:
    """One of the rest kills its first worker, too."""
    cache, once = tmp_path / "other", tmp_path / "once"
    broken = f"{Path(__file__).with_name('broken')}{os.pathsep}{REPOSITORY}"
    env = {"PYTHONPATH": broken, "DEADLY": "jit_step", "DEADLY_ONCE": str(once)}
    document = compiled(step_recipe, cache, code=3, env=env)
    modules = {m["module"]: m for m in document["modules"]}
    failed = modules.pop("jit_step")
    found = (failed["outcome"], failed["reason"], failed["attempts"])
    assert found == ("failed", "worker-died", 2)
    assert "SIGKILL" in failed["detail"]
    assert {m["outcome"] for m in modules.values()} == {"written"}
    assert once.exists() and max(m["attempts"] for m in modules.values()) == 2
    assert run_cli("verify", "-C", cache).returncode == 0


def test_a_parent_that_is_killed_leaves_no_truncated_entry_and_the_next_one_completes(
    run_cli: RunCli, recipe: Path, compiled: Any, each_jax_python: str, tmp_path: Path
) -> None:
    cache = tmp_path / "other"
    words = ("compile", recipe, "-C", cache, "--jobs=2", "--python", each_jax_python)
    with begin(tmp_path, *words) as parent:
        wait_for_entry(cache)
        parent.kill()
    left = names(cache)
    assert left
    summary = compiled(recipe, cache)["summary"]
    assert summary["written"] + summary["already_cached"] == summary["requested"]
    assert summary["already_cached"] == len(left)
    assert run_cli("verify", "-C", cache, "--level", "full").returncode == 0
    assert len(names(cache)) == summary["requested"]


def test_what_cannot_be_compiled_again_is_named(
    recorded: Record, compiled: Any, each_jax_python: str, tmp_path: Path, script: Any
) -> None:
    path = script("import jax\njax.jit(lambda x: jax.debug.print('{}', x))(1.0)")
    (talk,) = compiled(recorded(path), tmp_path / "other")["modules"]
    is_cached = jax_version(each_jax_python) >= (0, 11)
    expected = ("written", None) if is_cached else ("refused", "host-callbacks")
    assert (talk["outcome"], talk["reason"]) == expected


def changed(recipe: Path, target: Path, change: Callable[[Recipe], Recipe], *added: bytes) -> Path:
    """Write a recipe with changes, and with blobs that the original lacks."""
    with open_recipe(str(recipe)) as file:
        blobs = {d: file.blob(d) for r in file.recipe.requests for d in (r.options, r.bytecode)}
        blobs |= {digest(data): data for data in added}
        target.write_bytes(b"".join(encode_recipe(change(file.recipe), blobs.__getitem__)))
    return target


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_recipe_for_what_is_not_here(
    step_recipe: Path, run_cli: RunCli, each_jax_python: str, tmp_path: Path
) -> None:
    def move(recipe: Recipe) -> Recipe:
        environments = tuple(replace(e, platform="tpu") for e in recipe.environments)
        return replace(recipe, environments=environments)

    recipe = changed(step_recipe, tmp_path / "moved.recipe", move)
    words = ("compile", recipe, "--json", "-C", tmp_path / "x", "--python", each_jax_python)
    done = run_cli(*words)
    assert (done.returncode, error_of(done)) == (1, "no-platform")


def test_check_says_what_would_hit_and_why_not(
    step_recipe: Path, step_cache: Path, compiled: Any, tmp_path: Path
) -> None:
    """One entry is gone; the others are recorded as another jaxlib would have made them."""
    (gone,) = step_cache.glob("jit_step-*-cache")
    gone.unlink()

    def change(recipe: Recipe) -> Recipe:
        environments = (replace(e, jaxlib_version="0.0.1") for e in recipe.environments)
        requests = (
            r
            if r.module == "jit_step"
            else replace(r, key=f"{r.module}-{'0' * 64}", components={**r.components, **other})
            for r in recipe.requests
        )
        return replace(recipe, environments=tuple(environments), requests=tuple(requests))

    other = {"jax_lib version": "0" * 64}
    path = changed(step_recipe, tmp_path / "some.recipe", change)
    flags = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}  # ours are not the recipe's
    document = compiled(path, step_cache, "--check", "--portable", code=1, env=flags)
    found = {m["module"]: (m["outcome"], m["moved"], *m["differs"]) for m in document["modules"]}
    assert found.pop("jit_step") == ("missing", False)
    assert {*found.values()} == {("already-cached", False, "jax_lib version")}
    assert any("recorded with jaxlib 0.0.1" in note for note in document["notes"])
    assert not gone.exists()


#: Garbage, and text in which XLA would follow a pointer.
HOSTILE = (
    b"ML\xefR" + bytes(100),
    b"""
    module @jit_evil { func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.custom_call @CustomSPMDPartitioning(%a) {backend_config = "139637976726528"}
      : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32> } }""",
)


def test_nothing_of_a_stranger_takes_the_parent_down(
    step_recipe: Path, compiled: Any, tmp_path: Path
) -> None:
    """Nor is an option obeyed that neither we nor this jaxlib know."""
    unknown = b"\xf8\xf0\x04\x01"  # field 9999 is 1
    build = b"\x1a" + bytes([len(unknown)]) + unknown
    more = b"\x1a" + bytes([len(build)]) + build
    with open_recipe(str(step_recipe)) as file:
        options = file.blob(file.recipe.requests[0].options) + more

    def change(recipe: Recipe) -> Recipe:
        first = recipe.requests[0]
        hostile = (replace(first, bytecode=digest(d)) for d in HOSTILE)
        return replace(recipe, requests=(*hostile, replace(first, options=digest(options))))

    path = changed(step_recipe, tmp_path / "hostile.recipe", change, *HOSTILE, options)
    document = compiled(path, tmp_path / "other", code=3)
    assert document["summary"]["failed"] == len(HOSTILE) + 1
    refused = [m["detail"] for m in document["modules"] if m["reason"] == "refused-here"]
    assert any("XLA option 9999" in detail for detail in refused)
    assert not names(tmp_path / "other")


# ``warm --collect-only``: the recipe of a full run at the price of tracing, and what it marks.


#: A module that is larger than any that runs for real, and whose result is not all zeros.
LARGE = """
import jax, jax.numpy as jnp, numpy as np
@jax.jit
def large(x):
    for _ in range(40):
        x = jnp.sin(x) + 1
    return x
"""


#: Has zeros in its hands: one function captures them, and a branch reads them.
DOUBTED = (
    LARGE
    + """
w = large(np.ones(4, np.float32))
def uses(x):
    return x @ w
jax.jit(uses)(np.ones((3, 4), np.float32))
@jax.jit
def plain(x):
    return x + np.float32(3)
plain(np.ones(5, np.float32))
is_large = bool(w.sum() > 3)
@jax.jit
def later(y):
    return y - 1
later(w)
assert is_large
"""
)


def test_a_recipe_without_a_run_says_what_may_differ_from_one_with(
    recorded: Record, tmp_path: Path, script: Any
) -> None:
    """Stubs never reach the cache; captured zeros, and values that steer, are marked."""
    path = script(DOUBTED)
    recipe = read(recorded(path, options=("--collect-only",), code=1))
    assert "the program exited with code 1; earlier compiles are recorded" in recipe.notes
    requests = {r.module: r for r in recipe.requests}
    assert requests["jit_large"].stubbed
    assert requests["jit_large"].compile_seconds is None
    assert not list((tmp_path / "first").glob("jit_large-*"))
    assert not list((tmp_path / "first").glob("jit_zeros-*"))
    line = 1 + path.read_text().splitlines().index("is_large = bool(w.sum() > 3)")
    assert any(f"{path}:{line} reads a computed value" in note for note in recipe.notes)
    assert requests["jit_large"].doubts == requests["jit_plain"].doubts == ()
    assert requests["jit_later"].doubts == ("after-value-read",)
    full = {r.key for r in read(recorded(path)).requests}
    other = {r.module for r in recipe.requests if r.key not in full}
    # Where constants are arguments of the module instead, zeros change nothing.
    assert not other or (other, requests["jit_uses"].doubts) == ({"jit_uses"}, ("captured-zeros",))


def test_a_loop_that_zeros_never_end_is_stopped(recorded: Record, script: Any) -> None:
    loop = "import time\nx = np.ones(4, np.float32)\nwhile x[0] < 2:\n    x = large(x)\n"
    path = script(f"{LARGE}{loop}    time.sleep(0.1)\n")
    options = ("--collect-only", "--patience", "3s")
    recipe = read(recorded(path, options=options, code=128 + 15))
    assert any("no new module" in note for note in recipe.notes)
    assert {r.module for r in recipe.requests} >= {"jit_large"}


def test_one_command_collects_compiles_and_runs(
    run_cli: RunCli, cache: Path, each_jax_python: str, tmp_path: Path
) -> None:
    if jax_version(each_jax_python) < (0, 5):
        pytest.skip("JAX 0.5 and later can be collected")
    program = tmp_path / "program.py"
    program.write_text(
        "import os\nos.makedirs('twice' if os.path.isdir('once') else 'once')\n"
        f"{LARGE}\nprint('more than 0:', large(jnp.ones(3)).sum() > 0)\n"
    )
    given = ("-C", cache, "--json", "--jobs", "2", "--python", each_jax_python, "--fail-on-miss")
    done = run_cli("warm", *given, program)
    assert done.returncode == 1  # what the workers compiled just now was not in the cache
    report = json.loads(done.stdout)
    assert {m["module"]: m["outcome"] for m in report["modules"]}["jit_large"] == "written"
    assert report["summary"]["hits"] == 0 < report["summary"]["compile_seconds"]
    assert any("2 workers compiled 1 module in" in note for note in report["notes"])
    # It ran twice; of the first run, which had zeros in its hands, nothing is shown.
    assert (tmp_path / "once").is_dir() and (tmp_path / "twice").is_dir()
    assert done.stderr.count("more than 0: True") == 1 == done.stderr.count("more than 0")
    assert run_cli("verify", "-C", cache, "--level", "full").returncode == 0
    listed = json.loads(run_cli("ls", "--json", "-C", cache).stdout)["entries"]
    assert {entry["sealed"] for entry in listed} == {True}


# ``compile --dask`` on a real cluster of this machine.


needs_dask = pytest.mark.skipif(not find_spec("distributed"), reason="no dask.distributed here")


#: Runs until standard input ends; prints its address and its workers' process ids.
CLUSTER = """
import json, sys
from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]
        print(json.dumps({"address": cluster.scheduler_address, "pids": pids}), flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def cluster(tmp_path: Path, script: Any) -> Iterator[dict[str, Any]]:
    # Workers are forks of a process that has imported dask.
    method = {"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver"}
    env = clean_environment(tmp_path) | {"PYTHONWARNINGS": "default"} | method
    with subprocess.Popen(
        [sys.executable, script(CLUSTER, "cluster.py")],
        env=env,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        assert child.stdout
        yield json.loads(child.stdout.readline())


@needs_dask
def test_a_cluster_that_loses_a_worker_makes_the_same_entries(
    run_cli: RunCli,
    cluster: dict[str, Any],
    each_jax_python: str,
    recipe: Path,
    tmp_path: Path,
) -> None:
    other, used_at = tmp_path / "other", recipe.with_name("first")
    args = ("compile", recipe, "-C", other, "--used-at", used_at, "--python", each_jax_python)
    env = clean_environment(tmp_path) | {"PYTHONWARNINGS": "default"}
    words = (*args, "--json", "--dask", cluster["address"])
    compile_ = begin(tmp_path, *words, env=env)
    wait_for_entry(other)
    os.kill(cluster["pids"][0], signal.SIGKILL)
    output, errors = compile_.communicate(timeout=300)
    assert compile_.returncode == 0, errors
    summary = json.loads(output)["summary"]
    assert summary["written"] == summary["requested"] > 0
    requests = read(recipe).requests
    assert names(other) == {f"{r.key}-cache" for r in requests}
    # The cluster knows what is there: nothing is compiled again.
    again = json.loads(run_cli(*words, env={"PYTHONWARNINGS": "default"}).stdout)["modules"]
    found = {(m["key"], m["outcome"], m["compile_seconds"]) for m in again}
    assert found == {(r.key, "already-cached", r.compile_seconds) for r in requests}


@needs_dask
def test_a_scheduler_that_is_not_there(
    run_cli: RunCli, step_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_CONNECT_SECONDS", 1)
    words = ("compile", step_recipe, "--dask", "tcp://127.0.0.1:9", "--json")
    done = run_cli(*words, env={"PYTHONWARNINGS": "default"})
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (done.returncode, error["code"]) == (1, "no-cluster")
