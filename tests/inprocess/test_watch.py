"""``jaxcache.watch()`` counts what JAX counts, in the block and nowhere else."""

import sys
from pathlib import Path

import pytest

from tests.inprocess.conftest import OWN_COUNTS, RunInside

pytestmark = pytest.mark.jax

BEGIN = f"import jaxcache, sys\n{OWN_COUNTS}"
BLOCKS = """
import dataclasses, threading
import jax.numpy as jnp
from jax._src import compilation_cache

x = jnp.ones((4, 4))
ours, jax_own = {}, {}
found = {"ours": ours, "own": jax_own}

def make(n):
    def step(x):
        return jnp.sin(x) @ x + n
    return jax.jit(step)

make(0)(x)  # outside: not ours
own()
with jaxcache.watch() as outer:
    make(1)(x)
    before = own()
    try:
        with jaxcache.watch() as inner:
            threads = [threading.Thread(target=lambda n=n: make(n)(x)) for n in range(2, 6)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            inner_own = own()
            raise KeyError("the program's own")
    except KeyError:
        pass
    ours["inner"], jax_own["inner"] = told(inner), inner_own
    jax.clear_caches()
    compilation_cache.reset_cache()
    make(1)(x)
    found["live"] = outer.hits
    make(6)(x)
    later = own()
ours["outer"] = told(outer)
jax_own["outer"] = {n: before[n] + inner_own[n] + later[n] for n in later}
make(7)(x)
found["after"] = outer.written
own()

jax.monitoring.clear_event_listeners()
listen()
jax.clear_caches()
with jaxcache.watch() as cleared:
    make(1)(x)
    make(8)(x)
ours["cleared"], jax_own["cleared"] = told(cleared), own()
found["text"] = str(outer)
found["html"] = outer._repr_html_()
steps = [m for m in outer.modules if m.module == "jit_step" and m.outcome == "written"]
found["rows"] = [[m.function, m.file, m.line, m.reason, m.cause] for m in steps]
found["seconds"] = [outer.retrieval_seconds, outer.compile_seconds]
found["phases"] = [dataclasses.astuple(r.phases) for r in (inner, outer)]
found["walls"] = [inner.wall_seconds, outer.wall_seconds]
found["misses"] = [m.module for m in jaxcache.last_misses()]
print(json.dumps(found))
"""
#: Where ``step`` stands in it.
STEP_LINE = (BEGIN + BLOCKS).partition("def step")[0].count("\n") + 1


def test_counts_are_jax_own(run_inside: RunInside, tmp_path: Path) -> None:
    """With the live layer, too; the next test has none."""
    found = run_inside(BEGIN + BLOCKS, JAXCACHE_LIVE="1")
    assert found["ours"] == found["own"]
    assert found["own"]["inner"] == {"requests": 4, "hits": 0, "written": 4}
    assert found["live"] == 1  # after clear_caches() and reset_cache()
    assert found["own"]["outer"]["written"] == found["after"] >= 6
    assert found["misses"] == ["jit_step"]
    for function, file, line, reason, cause in found["rows"]:
        assert (function, file, line) == ("step", str(tmp_path / "program.py"), STEP_LINE)
        assert reason == "not-in-cache" and cause
    retrieving, compiling = found["seconds"]
    assert 0 < retrieving < compiling
    for phases, seconds in zip(found["phases"], found["walls"], strict=True):
        assert sum(phases) == pytest.approx(seconds) and max(phases[2:7]) > 0
    assert found["text"].splitlines()[0].startswith("1 of ")
    assert f"program.py:{STEP_LINE}" in found["text"]
    assert "<td" in found["html"] and "jit_step" in found["html"]


def test_a_run_and_the_program_itself_agree(run_inside: RunInside) -> None:
    program = BEGIN + BLOCKS.replace("jax.monitoring.clear_event_listeners()\nlisten()", "")
    command = (sys.executable, "-m", "jaxcache", "run", "--json", "--")
    document, found = run_inside(
        program.replace("print(json.dumps(found))", "sys.stderr.write(json.dumps(found) + '\\n')"),
        prefix=(sys.executable, "-c", SPLIT, *command),
    )
    assert found["ours"] == found["own"]
    counters = document["processes"][0]["counters"]
    assert counters["requests"] == document["summary"]["compile_requests"]
    assert document["summary"]["hits"] == counters["hits"] > found["own"]["outer"]["hits"]


#: Runs a command, and prints its standard output and the last line of the other as one list.
SPLIT = """
import json, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
lines = [line for line in done.stderr.splitlines() if line.startswith("{")]
sys.stderr.write(done.stderr)
print(json.dumps([json.loads(done.stdout), json.loads(lines[-1])]))
"""

EARLY = """
import json, sys
import jaxcache
before = list(sys.meta_path)
with jaxcache.watch() as nothing:
    pass
assert sys.meta_path == before
quiet = "jax" in sys.modules, nothing.compile_requests, str(nothing)
with jaxcache.watch() as report:
    import jax
    jax.jit(lambda x: x + 1)(1.0)
print(json.dumps([quiet, report.written, report.phases.import_seconds > 0]))
"""


def test_a_block_may_begin_before_jax_is_imported(run_inside: RunInside) -> None:
    assert run_inside(EARLY) == [[False, 0, "no compiles"], 1, True]


FORKED = """
import json, os, sys
import jaxcache, jax
with jaxcache.watch() as report:
    read, write = os.pipe()
    if os.fork() == 0:
        jax.jit(lambda x: x + 1)(1.0)
        os.write(write, json.dumps(report.written).encode())
        os._exit(0)
    os.wait()
print(json.dumps([json.loads(os.read(read, 99)), report.written]))
"""


def test_a_forked_child_counts_for_itself(run_inside: RunInside) -> None:
    assert run_inside(FORKED) == [1, 0]


UNKNOWN = """
import json, sys
import jaxcache, jax
from jax._src import compiler
del compiler._cache_write
with jaxcache.watch() as report:
    pass
print(json.dumps([report.unobserved, report.compile_requests, str(report)]))
"""


def test_an_unknown_jax_is_said_and_raises_nothing(run_inside: RunInside) -> None:
    unobserved, requests, text = run_inside(UNKNOWN)
    assert "cannot listen to jax" in unobserved[0] and unobserved[0] in text.replace("\n", " ")
    assert requests == 0


def test_no_cache_is_no_error(run_inside: RunInside) -> None:
    reason, text = run_inside(
        "import json, jaxcache, jax\n"
        "with jaxcache.watch() as report:\n"
        "    jax.jit(lambda x: x + 1)(1.0)\n"
        "print(json.dumps([report.modules[0].reason, str(report)]))\n",
        JAX_COMPILATION_CACHE_DIR="",
    )
    assert reason == "no-directory"
    assert "JAX has no cache directory" in text.replace("\n", " ")
