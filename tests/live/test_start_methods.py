"""The layer where JAX is started in other ways than by a plain script."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from processes import sh

from live.conftest import (
    PROGRAM,
    TELL,
    RunLive,
    entries,
    finds_the_layer,
    live_environment,
)

pytestmark = pytest.mark.jax

RESETS = """
import os
from jax._src import compilation_cache
compilation_cache.reset_cache()
jax.clear_caches()
again = [first(x).tolist(), second(x).tolist()]
assert again == result
jax.config.update("jax_compilation_cache_dir", os.environ["OTHER"])
compilation_cache.reset_cache()
jax.clear_caches()
assert [first(x).tolist(), second(x).tolist()] == result
# What JAX's own check of the contents does: put what was read and compared.
cache = compilation_cache._cache
key = next(iter(cache._path.glob("jit_first*-cache"))).name[: -len("-cache")]
value = cache.get(key)
before = (cache._path / (key + "-cache")).stat().st_mtime_ns
cache.put(key, value)
if hasattr(compilation_cache, "VerificationCache"):
    checked = compilation_cache.VerificationCache(cache)
    assert checked.get(key) is None
    checked.put(key, value)
assert (cache._path / (key + "-cache")).stat().st_mtime_ns == before
# A program that JAX could not load is compiled again, and what it puts then counts.
content = compilation_cache.decompress_executable(value)
other = compilation_cache.compress_executable(content + b"x")
cache.get(key)
cache.put(key, other)
assert cache.get(key) == other
"""


def test_the_layer_survives_a_reset_and_another_directory(
    run_live: RunLive, tmp_path: Path
) -> None:
    ran = run_live(PROGRAM + RESETS, OTHER=str(tmp_path / "other"))
    number = len(entries(tmp_path / "cache"))
    assert ran["hits_local"] >= number
    assert len(entries(tmp_path / "other")) >= 2
    assert ran["replaced"] == 1
    assert ran["troubles"] == 0


UNKNOWN = """
import jax._src.lru_cache
jax._src.lru_cache._CACHE_SUFFIX = "-future"
"""


def test_a_jax_with_other_inner_names_goes_on_without_the_layer(
    run_live: RunLive, tmp_path: Path
) -> None:
    ran = run_live(UNKNOWN + PROGRAM)
    assert ran.document["counts"] is None
    (line,) = ran.err.splitlines()
    assert line.startswith("jaxcache: live is off: cannot stand in front of the cache of jax ")
    assert "entries end in -future" in line
    assert len(list((tmp_path / "cache").glob("jit_*-future"))) > 1


#: What may go wrong in the layer itself, and the words on standard error.
SABOTAGE = {
    "at import": ("sys.modules['jaxcache.live.process'] = None", "live is off: Module"),
    "when JAX opens its cache": ("sys.modules['jaxcache.live.directory'] = None", "live: Module"),
    "at each call": (
        "from jaxcache.live.directory import Directory\n"
        "def fail(*_, **__): raise RuntimeError('broken')\n"
        "Directory.get = Directory.put = Directory.loaded = Directory.close = fail",
        "live: RuntimeError: broken",
    ),
    "in the background": (
        "from jaxcache.live import evictor, uses\n"
        "def fail(*_, **__): raise RuntimeError('broken')\n"
        "evictor.Evictor._look = uses.UseLog.flush = fail",
        "live: RuntimeError: broken",
    ),
}


@pytest.mark.parametrize("where", SABOTAGE)
def test_whatever_fails_in_the_layer_the_program_runs_on(
    run_live: RunLive, tmp_path: Path, where: str
) -> None:
    """With errors of the cache as exceptions, too: then one in its constructor is the user's."""
    script, said = SABOTAGE[where]
    env = {"JAX_RAISE_PERSISTENT_CACHE_ERRORS": "1", "JAXCACHE_LIVE_MAX_SIZE": "1GB"}
    good = run_live(cache_dir=tmp_path / "plain", JAXCACHE_LIVE="0").result
    for _ in range(2 if "RuntimeError" in said else 1):
        ran = run_live(f"import sys\n{script}\n{PROGRAM}", **env)
        assert ran.result == good
        (line,) = ran.err.splitlines()
        assert line.startswith(f"jaxcache: {said}")
    assert len(entries(tmp_path / "cache")) > 1


@pytest.mark.usefixtures("newer_python")
@pytest.mark.parametrize("cache_dir", [None, "jc"])
def test_a_file_that_switches_the_layer_on_gives_a_program_without_a_cache_one(
    run_live: RunLive, run_cli: RunCli, tmp_path: Path, cache_dir: str | None
) -> None:
    top = f'[tool.jaxcache]\ncache-dir = "{cache_dir}"\n' if cache_dir else ""
    (tmp_path / "pyproject.toml").write_text(f"{top}[tool.jaxcache.live]\nenabled = true\n")
    assert run_cli("trust", "here", "--yes").returncode == 0
    unset = {"JAXCACHE_LIVE": None, "JAX_COMPILATION_CACHE_DIR": None, "XDG_CACHE_HOME": "xdg"}
    where = tmp_path / (cache_dir or "xdg/jax")
    first = run_live(PROGRAM, **unset)
    assert len(entries(where)) == first["written"] > 1
    assert run_live(PROGRAM, **unset)["hits_local"] == first["written"]
    # A program that names a directory itself keeps it.
    own = f"import jax\njax.config.update('jax_compilation_cache_dir', {str(tmp_path / 'own')!r})"
    assert run_live(f"{own}\n{PROGRAM}", **unset)["written"] == len(entries(tmp_path / "own")) > 1


CHILDREN = """
import multiprocessing, os, sys

def work(queue):
    import jax, jax.numpy as jnp
    jax.jit(lambda x: jnp.sin(x) @ x.T)(jnp.ones((4, 4)))
    layer = sys.modules["jaxcache.live.layer"].LAYER
    queue.put([layer.counters.snapshot(), os.getpid()])

if __name__ == "__main__":
    result = {}
    for how in ("spawn", "fork", "forkserver"):  # forked before any backend is there
        context = multiprocessing.get_context(how)
        queue = context.SimpleQueue()
        child = context.Process(target=work, args=(queue,))
        child.start()
        result[how], _ = queue.get()
        child.join()
        assert child.exitcode == 0
    import json
    print(json.dumps(result))
"""


def test_children_of_multiprocessing_have_a_layer_of_their_own(
    jax_python: str, tmp_path: Path
) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    env = live_environment(jax_python, tmp_path, tmp_path / "cache")
    done = sh([jax_python, tmp_path / "children.py"], env=env)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["spawn"]["written"] > 0
    assert told["fork"]["hits_local"] == told["forkserver"]["hits_local"] > 0
    assert "misses" not in told["fork"]


#: A child forked when everything runs, with a tier: it uses the local directory only.
FORKED = """
import os
layer = sys.modules["jaxcache.live.layer"].LAYER
directory = next(iter(layer.directories.values()))
key = next(iter(directory._served), None) or next(iter(directory.tiers._used))
assert directory.tiers is not None
child = os.fork()
if child == 0:
    fine = directory.tiers is None and directory.get(key) is not None
    fine = fine and directory.get("jit_no-" + "0" * 64) is None
    os._exit(0 if fine else 9)
result = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_uses_the_local_directory_only(run_live: RunLive, tmp_path: Path) -> None:
    ran = run_live(PROGRAM + FORKED, JAXCACHE_LIVE_TIERS=str(tmp_path / "shared"))
    assert ran.result == 0


#: Locks that another thread held at the fork are not released in the child.
HELD = """
import os, signal
layer = sys.modules["jaxcache.live.layer"].LAYER
directory = next(iter(layer.directories.values()))
key = next(iter(directory._served))
with directory.loading._lock, directory._leases._lock, directory.evictor._lock:
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        layer.now.loading = True
        fine = directory.get(key) is not None and directory.get("jit_no-" + "0" * 64) is None
        directory.put("jit_no-" + "0" * 64, b"an entry")
        os._exit(0 if fine else 9)
result = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def test_a_lock_held_at_a_fork_does_not_stop_the_child(run_live: RunLive) -> None:
    settings = {"JAXCACHE_LIVE_SINGLE_FLIGHT": "5s", "JAXCACHE_LIVE_MAX_SIZE": "1GB"}
    run_live(**settings)
    assert run_live(PROGRAM + HELD, **settings).result == 0


def test_an_isolated_python_has_the_layer(jax_python: str, tmp_path: Path) -> None:
    if not finds_the_layer(jax_python):
        pytest.skip("-I finds an installed jaxcache only")
    env = live_environment(jax_python, tmp_path, tmp_path / "cache")
    done = sh([jax_python, "-I", "-c", PROGRAM + TELL], env=env)
    assert '"written": 3' in done.stdout, done.stderr


KERNEL = """
import json, sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel()
try:
    def on_output(message):
        content = message["content"]
        if message["msg_type"] == "stream" and content["name"] == "stdout":
            print(content["text"], end="", flush=True)
    for cell in json.loads(sys.argv[1]):
        reply = client.execute_interactive(cell, timeout=200, output_hook=on_output)
        assert reply["content"]["status"] == "ok", reply
finally:
    client.stop_channels()
    manager.shutdown_kernel()
"""


def test_a_notebook_has_the_layer_and_flushes_at_its_end(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    pytest.importorskip("jupyter_client")
    env = live_environment(sys.executable, tmp_path, tmp_path / "cache")
    env |= {"JAXCACHE_LIVE_TIERS": str(tmp_path / "shared"), "HOME": str(tmp_path)}
    told = []
    for _ in range(2):
        done = sh(
            [sys.executable, "-c", KERNEL, json.dumps([PROGRAM, TELL])], env=env, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout.splitlines()[-1])["counts"])
    number = len(entries(tmp_path / "cache"))
    assert told[0]["written"] == told[1]["hits_local"] == number > 1
    assert len(entries(tmp_path / "shared")) == number


TESTS = """
import jax, jax.numpy as jnp, sys

def test_something():
    assert jax.jit(lambda x: x + 1)(jnp.ones(3)).sum() == 6
    layer = sys.modules["jaxcache.live.layer"].LAYER
    assert sum(layer.counters[n] for n in ("written", "present", "hits_local")) > 0
"""


def test_tests_under_xdist_share_the_cache(tmp_path: Path) -> None:
    directory = tmp_path / "tests"
    directory.mkdir()
    for name in ("test_one.py", "test_two.py"):
        (directory / name).write_text(TESTS)
    env = live_environment(sys.executable, tmp_path, tmp_path / "cache")
    without = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    words = [sys.executable, "-m", "pytest", "-q", "-n", "2", *without, directory]
    done = sh(words, env=env, cwd=directory)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


DISTRIBUTED = """
import os, sys
import jax
jax.distributed.initialize(os.environ["ADDRESS"], 2, int(os.environ["RANK"]))
"""


def run_distributed(python: str, program: str, env: dict[str, str]) -> list[dict[str, Any]]:
    """Run two processes of a distributed program, and return the document that each prints."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = env | {"ADDRESS": f"127.0.0.1:{port}", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    running = [
        subprocess.Popen(
            [python, "-c", f"{DISTRIBUTED}{program}\njax.distributed.shutdown()\n"],
            env=env | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    documents = []
    for process in running:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        lines = [line for line in out.splitlines() if line.startswith('{"result"')]
        documents.append(json.loads(lines[-1]))
    return documents


def test_every_process_of_a_distributed_program_hits_what_it_wrote(
    jax_python: str, tmp_path: Path
) -> None:
    env = live_environment(jax_python, tmp_path, tmp_path / "cache")

    def run_second(every: str) -> dict[str, int]:
        env["JAXCACHE_LIVE_EVERY_PROCESS"] = every
        counts: dict[str, int] = run_distributed(jax_python, PROGRAM + TELL, env)[1]["counts"]
        return counts

    run_second("0")
    first = run_second("1")
    written = first["written"]
    assert (first.get("hits_local", 0), written > 0) == (0, True)  # "0" is as with plain JAX
    after = run_second("1")
    assert (after.get("misses", 0), after["hits_local"]) == (0, written)
