"""``jaxcache.guard()`` refuses compiles before XLA is called, and leaves JAX as it was."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, jax_version
from processes import sh

import jaxcache

pytestmark = pytest.mark.jax

#: Programs whose cases raise where the guard is wrong; ``make guard-table`` prints all of them.
CASES = Path(__file__).parents[2] / "tools" / "guard_cases"


@pytest.mark.parametrize(
    "program",
    [
        *("changes", "transformations", "scopes", "processes", "old"),
        pytest.param("late changes", marks=pytest.mark.slow),
    ],
)
def test_cases_of(
    program: str, inside_python: str, inside_environment: dict[str, str], tmp_path: Path
) -> None:
    late, _, name = program.rpartition(" ")
    if (name == "old") != (jax_version(inside_python) < (0, 6)):
        pytest.skip("below JAX 0.6 a guard only warns, and only there")
    # What is in a persistent cache would be loaded, which a guard on compiles allows.
    env = inside_environment | {"JAX_ENABLE_COMPILATION_CACHE": "false", "LATE": late}
    done = sh([inside_python, CASES / f"{name}.py"], env=env, cwd=tmp_path, check=True)
    cases = json.loads(done.stdout.splitlines()[-1])
    assert {case: facts["fault"] for case, facts in cases.items() if facts["fault"]} == {}


ARMED = """
import json
import jax, numpy as np
import jaxcache
step = jax.jit(lambda x: x * 2)
step(np.ones(2))
%s
try:
    step(np.ones(3))
    found = "compiled"
except RuntimeError as error:
    found = type(error).__name__
print(json.dumps(found))
"""
WARM = "jaxcache.warmed_up()\n" * 2
#: The variable, the end of the warm-up, what is found, and how often each sentence is printed.
VARIABLES = {
    "up": ("compile:raise", WARM, "UnexpectedCompileError", (0, 0)),
    "never up": ("compile:raise", "", "compiled", (0, 1)),
    "another form": ("comple:raise", WARM, "compiled", (1, 0)),
    "not set": ("", WARM, "compiled", (0, 0)),
}


@pytest.mark.parametrize(("guard", "warm_up", "found", "counts"), VARIABLES.values(), ids=VARIABLES)
def test_the_variable_arms_a_guard_and_where_it_has_no_effect_that_is_said_once(
    inside_python: str,
    inside_environment: dict[str, str],
    guard: str,
    warm_up: str,
    found: str,
    counts: tuple[int, int],
) -> None:
    env = inside_environment | ({"JAXCACHE_GUARD": guard} if guard else {})
    done = sh([inside_python, "-c", ARMED % warm_up], env=env, check=True)
    assert json.loads(done.stdout) == found
    sentences = (
        "runs without a guard: JAXCACHE_GUARD must be",
        "JAXCACHE_GUARD had no effect: the program did not call jaxcache.warmed_up()\n",
    )
    assert tuple(map(done.stderr.count, sentences)) == counts


RunGuarded = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_guarded(run_cli: RunCli, inside_python: str, tmp_path: Path) -> RunGuarded:
    """Run a program by ``run --guard``."""

    def run(program: str, *words: str, guard: str = "compile:raise") -> Any:
        (tmp_path / "program.py").write_text(program)
        args = ("--guard", guard, "-C", tmp_path / "cache", *words, "--", inside_python)
        return run_cli("run", *args, tmp_path / "program.py")

    return run


@pytest.mark.parametrize(
    ("seconds", "why"),
    [
        ("", "waits for the program to call jaxcache.warmed_up()"),
        (":3600", "waits 3600 s after the import of jax, and the program ended"),
    ],
)
def test_a_run_without_its_guard_fails(run_guarded: RunGuarded, seconds: str, why: str) -> None:
    done = run_guarded("import jax; jax.jit(lambda x: x)(1)", guard=f"compile:count{seconds}")
    assert done.returncode == 1
    assert f"failed: --guard compile:count{seconds} had no effect: it {why}" in done.stderr
    assert "the guard counted after the warm-up: " not in done.stderr
    assert "note: the guard was up from " not in done.stderr


@pytest.mark.parametrize("seconds", ["", ":0.1"])
def test_only_a_clock_puts_a_guard_up_where_jaxcache_is_not_beside_jax(
    run_guarded: RunGuarded, seconds: str
) -> None:
    program = (
        "import sys, time\n"
        "sys.modules['jaxcache'] = None\n"
        "import jax, jax.numpy as jnp\n"
        "f = jax.jit(lambda x: x * 2)\n"
        f"for n in range(3, {2000 if seconds else 5}):\n"
        "    time.sleep(0.05)\n"
        "    f(jnp.ones(n))\n"
    )
    done = run_guarded(program, "--json", guard=f"compile:raise{seconds}")
    assert done.returncode == 1
    assert ("give seconds, such as compile:raise:60" in done.stderr) == (not seconds)
    assert ("UnexpectedCompileError" in done.stderr) == bool(seconds)
    assert json.loads(done.stdout)["summary"]["refused"] == bool(seconds)


@pytest.mark.parametrize("signal", [False, True])
def test_a_run_fails_whose_program_caught_a_refusal(run_guarded: RunGuarded, signal: bool) -> None:
    end = "import os, sys\nsys.stdout.flush()\nos.kill(os.getpid(), 15)\n" if signal else ""
    program = (
        "import jax, jaxcache, numpy as np\n"
        "f = jax.jit(lambda x: x * 2)\n"
        "f(np.ones(2))\n"
        "jaxcache.warmed_up()\n"
        "try:\n"
        "    f(np.ones(3))\n"
        "except jaxcache.UnexpectedCompileError as error:\n"
        "    print(type(error).__module__)\n"
    )
    done = run_guarded(program + end)
    assert done.returncode == (143 if signal else 1)
    assert "failed: the guard refused 1 compile\n" in done.stderr
    assert done.stdout.startswith("jaxcache\n")
    assert "0 of 1 hits · 1 refused · " in done.stderr  # what was refused is no miss


def test_a_refused_operation_has_its_line_and_advice_that_can_be_followed(
    run_cli: RunCli, run_guarded: RunGuarded, inside_python: str, tmp_path: Path
) -> None:
    """``run --guard`` has no word for ``eager``; an own guard has."""
    body = "import jax.numpy as jnp, jaxcache\nx = jnp.ones((2, 2))\n"
    done = run_guarded(f"{body}jaxcache.warmed_up()\nfloat(x[0, 0])\n", "--json")
    (refused,) = (m for m in json.loads(done.stdout)["modules"] if m["outcome"] == "refused")
    path = str(tmp_path / "program.py")
    assert (refused["file"], refused["line"]) == (path, 4)
    assert f"{path}:4 would compile an operation outside jax.jit: " in done.stderr
    assert "use numpy (np.asarray(x)[0] for x[0]), or move it into a jitted" in done.stderr
    assert "eager=" not in done.stderr
    own = tmp_path / "own.py"
    own.write_text(f"{body}with jaxcache.guard():\n    float(x[0, 0])\n")
    done = run_cli("run", "-C", tmp_path / "cache", "--", inside_python, own)
    assert 'or allow it by jaxcache.guard(eager="allow")' in done.stderr


def test_a_run_names_what_a_guard_let_pass(run_guarded: RunGuarded) -> None:
    program = (
        "import jax, jaxcache, numpy as np\n"
        "def double(x):\n"
        "    return x * 2\n"
        "f = jax.jit(double)\n"
        "f(np.ones(2))\n"
        "jaxcache.warmed_up()\n"
        "for n in (3, 4):\n"
        "    f(np.ones(n))\n"
    )
    done = run_guarded(program, guard="compile:count")
    assert done.returncode == 0, done.stderr
    assert "the guard counted after the warm-up: " in done.stderr
    assert "note: the guard was up from " in done.stderr
    assert "note: the guard let 2 compiles pass: double (program.py:2) ×2\n" in done.stderr
    assert " after the start; 1 compile started before it\n" in done.stderr


def test_a_guard_of_another_form_is_a_usage_error(run_cli: RunCli) -> None:
    done = run_cli("run", "--guard", "compile:shout", "--", "true")
    assert done.returncode == 2
    assert "bad-guard" in done.stderr


@pytest.mark.parametrize(
    "words", [{"on": "link"}, {"action": "shout"}, {"threads": "some"}, {"eager": "no"}]
)
def test_other_words_are_refused(words: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        jaxcache.guard(**words)
