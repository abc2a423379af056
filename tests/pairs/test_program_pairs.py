"""What happens inside a program or to it: odd directories, Ctrl-C, threads, two passes."""

import json
import os
import signal
import subprocess

import pytest
from processes import sh

from tests.inprocess.conftest import OWN_COUNTS, inside_python  # noqa: F401
from tests.pairs.conftest import ALL_HITS, Pair
from tools.oracle.world import MODULES, Counts

pytestmark = pytest.mark.jax
#: A name with spaces, letters beyond ASCII, and what shells and URLs treat specially.
ODD = "my cäche ★ #1 %20 'x'"
#: Prints a line before its last compile, which never ends by itself.
INTERRUPTED = """
import threading, jax, program
program.COUNTS.clear()
program.main()
print("compiled", flush=True)
threading.Event().wait()
"""
#: Two threads watch at once; both blocks are open while each compiles one function.
WATCHING = f"""
import json, threading, jax, jax.numpy as jnp, jaxcache
{OWN_COUNTS}
x = jnp.ones((4, 4))
both, told_by = threading.Barrier(2), {{}}
own()
def work(number):
    with jaxcache.watch() as report:
        both.wait()
        jax.jit(lambda x: jnp.sin(x) @ x + number)(x).block_until_ready()
        both.wait()
    told_by[number] = told(report)
threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps({{"blocks": [told_by[1], told_by[2]], "own": own()}}))
"""


def test_an_odd_directory_with_the_live_layer_and_a_tier(pair: Pair) -> None:
    pair.use(ODD)
    live = ("--live", "--tier", pair.directory / f"tier of {ODD}")
    pair.run("run", *live, *pair.program())
    pair.run("verify", "--fix", "--yes")
    pair.run("seal")
    assert pair.plain() == ALL_HITS
    pair.use(f"second {ODD}")
    pair.run("run", "--fail-on-miss", *live, *pair.program())
    assert pair.plain() == ALL_HITS


@pytest.mark.slow
def test_an_odd_directory_in_a_bundle_of_an_odd_name(pair: Pair) -> None:
    pair.use(ODD)
    pair.run("warm", *pair.python, "program.py")
    pair.run("export", f"{ODD}.jxb")
    pair.run("rm", "--yes", "*")
    pair.run("import", f"{ODD}.jxb")
    assert pair.plain() == ALL_HITS


@pytest.mark.slow
def test_an_odd_directory_with_a_recipe_and_a_cap_is_pushed_signed(pair: Pair) -> None:
    public = pair.run("trust", "keygen", "ci").strip().split("\t")[1]
    pair.run("trust", "add", "ci", public)
    pair.world.extra |= {"JAX_COMPILATION_CACHE_MAX_SIZE": str(10**9)}
    recipe = f"{ODD}.recipe"
    pair.record(recipe)
    pair.use(ODD)
    pair.run("compile", *pair.python, recipe)
    pair.run("push", "--sign", "ci", f"tier of {ODD}")
    pair.use(f"second {ODD}")
    pair.run("pull", "--require-signed", f"tier of {ODD}")
    pair.change_one_function()
    assert pair.plain() == Counts(MODULES - 1, 1)
    assert pair.plain() == ALL_HITS


def test_ctrl_c_during_warm_leaves_whole_entries(pair: Pair) -> None:
    (pair.directory / "interrupted.py").write_text(INTERRUPTED)
    child = subprocess.Popen(
        [*pair.world.jaxcache, "warm", *pair.python, "interrupted.py"],
        cwd=pair.directory,
        env=pair.world.environment(plain=False),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        while child.stdout.readline() not in ("compiled\n", ""):
            pass
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does
        _, shown = child.communicate(timeout=180)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == 128 + signal.SIGINT, shown
    assert "interrupted" in shown and "jit_first" in shown
    assert pair.plain() == ALL_HITS
    pair.run("verify")


@pytest.mark.usefixtures("inside_python")
def test_watch_in_two_threads_counts_what_jax_counts(pair: Pair) -> None:
    """A block counts what the process compiles in it, in all threads."""
    done = sh(
        [pair.world.python, "-c", WATCHING],
        cwd=pair.directory,
        env=pair.world.environment(plain=False),
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["own"]["written"] == 2
    assert told["blocks"] == [told["own"], told["own"]]


def test_explain_names_the_cause_after_warm_jobs(pair: Pair) -> None:
    pair.run("warm", *pair.python, "--jobs", "2", "program.py")
    program = pair.directory / "program.py"
    program.write_text(program.read_text().replace("cos(x) + 2", "cos(x) + 3"))
    explain = ("explain", "--json", *pair.python)
    (missed,) = json.loads(pair.run(*explain, "program.py"))["comparisons"]
    (difference,) = missed["differences"]
    assert (missed["module"], difference["cause"]) == ("jit_second", "constant")
    assert (difference["left"], difference["right"]) == ("2", "3")
    assert pair.plain() == Counts(MODULES - 1, 1)
