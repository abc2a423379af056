"""``warm`` and ``run`` over real JAX, as a person and as CI meet them."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from acting import BOUND
from conftest import REPOSITORY, RunCli, StepRuns, has_modules, jax_version
from live.conftest import live_environment
from processes import begin, sh
from warm_checks import STEP, Warm, assert_counts_are_jax_own, only, outcomes

from jaxcache.core import runs
from jaxcache.injected.run_program import CallError, find_function

pytestmark = pytest.mark.jax


def test_the_second_run_is_all_hits(step_runs: StepRuns, step_cache: Path, run_cli: RunCli) -> None:
    first, second = step_runs.cold, step_runs.hot
    assert outcomes(first) == {("written", "not-in-cache")}
    assert_counts_are_jax_own(first)
    step = only(first, "jit_step")
    assert step["function"] == "step"
    assert step["file"] == str(step_runs.directory / "script.py")
    assert step["line"] in (3, 4)  # of the decorator, or of the function
    assert [[*a.values()] for a in step["arguments"]] == [["x", "float32", [8, 8]]]
    assert step["compile_seconds"] > 0
    listed = json.loads(run_cli("ls", "--json", "-C", step_cache).stdout)["entries"]
    found = {(entry["key"], entry["size_bytes"], entry["sealed"]) for entry in listed}
    assert found == {(m["key"], m["size_bytes"], True) for m in first["modules"]}
    assert outcomes(second) == {("hit", "in-cache")}
    assert_counts_are_jax_own(second)
    assert {m["key"] for m in second["modules"]} == {m["key"] for m in first["modules"]}
    assert only(second, "jit_step")["retrieval_seconds"] > 0
    saved = (m["compile_seconds"] - m["retrieval_seconds"] for m in second["modules"])
    assert second["summary"]["saved_seconds"] == pytest.approx(sum(saved))


def test_portable_keys_hit_in_another_directory(
    step_runs: StepRuns, run_cli: RunCli, script: Any, tmp_path: Path, each_jax_python: str
) -> None:
    """Also where the program is run by hand with the setting.

    A program that only hits imports no reader of modules.
    """
    told = any("XLA_CACHES=none" in note for note in step_runs.cold["notes"])
    assert told is (BOUND[0] <= jax_version(each_jax_python) < BOUND[1])
    loaded = "{'_jaxcache.core.sketching', '_jaxcache.core.sketch'} & sys.modules.keys()"
    only_hits = script(f"{STEP}import sys\nassert {loaded} == {{'_jaxcache.core.sketching'}}")
    run_cli("copy", step_runs.directory / "cache", tmp_path / "there")
    by_hand = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
    words = ("-C", tmp_path / "there", "--fail-on-miss", "--", each_jax_python, only_hits)
    done = run_cli("run", *words, env=by_hand)
    assert done.returncode == 0, done.stderr


def test_a_changed_function_alone_misses_and_quiet_prints_the_keys(
    run_cli: RunCli, step_cache: Path, script: Any, each_jax_python: str
) -> None:
    before = {file.name for file in step_cache.glob("*-cache")}
    (old,) = [name for name in before if name.startswith("jit_step-")]
    path = script(STEP.replace("sin", "cos") + "print('hello')\n")
    quiet = ("warm", "-q", "-C", step_cache, "--portable", "--python", each_jax_python)
    done = run_cli(*quiet, path)
    assert (done.returncode, done.stderr) == (0, "hello\n")
    names = {f"{key}-cache" for key in done.stdout.split()}
    assert names | {old} == {file.name for file in step_cache.glob("*-cache")}
    (new,) = names - before
    assert new.startswith("jit_step-") and names & before == before - {old}


# Programs as people start them: scripts, modules, directories, notebooks and functions.


def test_the_script_runs_unchanged_with_devices_added_to_its_flags(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str, tmp_path: Path
) -> None:
    script("value = 42", "beside.py")
    path = script(
        """
        import sys, os, json, beside, jax
        print(json.dumps([sys.argv, __name__, __file__, sys.path[0], beside.value, sys.stdin.read(),
                          os.getcwd(), os.environ['XLA_FLAGS'],
                          [m for m in sys.modules if m.startswith('jaxcache.')]]))
        print("to stderr", file=sys.stderr)
        sys.exit(7)
        """
    )
    argv = [str(path), "--flag", "-q", "a b", "--json"]
    words = ("warm", "-C", cache, "--python", each_jax_python, "--devices", "3", *argv)
    flags = "--xla_cpu_enable_fast_math=false"
    done = run_cli(*words, input="typed", cwd=tmp_path, env={"XLA_FLAGS": flags})
    assert done.returncode == 7
    *seen, added, modules = json.loads(done.stdout)
    assert seen == [argv, "__main__", str(path), str(tmp_path), 42, "typed", str(tmp_path)]
    assert added == f"{flags} --xla_force_host_platform_device_count=3"
    # Where jaxcache is installed beside jax, its jaxcache.pth brings the listener in.
    assert {*modules} <= {"jaxcache.injected", "jaxcache.injected.hook"}
    assert "to stderr" in done.stderr
    assert "exit code 7" in done.stderr


def test_without_jax_it_is_exit_13(
    run_cli: RunCli, cache: Path, script: Any, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = tmp_path / "bare" / "bin" / "python"
    done = run_cli("warm", "--json", "-C", cache, "--python", bare, script("print('ran')"))
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (done.returncode, error["code"]) == (13, "no-jax")
    assert "ran" not in done.stdout + done.stderr


SAYS = "import sys; print('argv', sys.argv[1:], __name__, file=sys.stderr)\n"


def notebook(*cells: str) -> str:
    found = [{"cell_type": "markdown", "source": ["# Train"]}]
    found += [{"cell_type": "code", "source": c.splitlines(keepends=True)} for c in cells]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": found})


def test_a_module_a_directory_and_a_notebook(
    run_cli: RunCli, cache: Path, each_jax_python: str, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name, text in (("__init__", ""), ("__main__", SAYS), ("module", STEP + SAYS)):
        (package / f"{name}.py").write_text(text)
    cells = ("%precision 3\n!true\n", STEP, "%%bash\ntrue\n", "assert step.__module__\n", SAYS)
    (tmp_path / "train.ipynb").write_text(notebook(*cells))
    common = ("warm", "--json", "-C", cache, "--python", each_jax_python)
    ways = [("package",), ("-m", "package.module")]
    if has_modules(each_jax_python, "IPython"):
        ways.append(("train.ipynb",))
    for way in ways:
        done = run_cli(*common, *way, "--steps", "1", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "argv ['--steps', '1', '--json'] __main__" in done.stderr
    recorded = [p for p in (cache / runs.RUNS_DIR).iterdir() if runs.is_record(p.name)]
    programs = [record.program for p in recorded if (record := runs.decode(p.read_bytes()))]
    assert sorted(programs) == [" ".join(way) for way in ways[1:]]
    (tmp_path / "bad.ipynb").write_text(notebook("1 / 0"))
    done = run_cli(*common, "bad.ipynb", cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert ("ZeroDivisionError" in done.stderr) != ("needs IPython" in done.stderr)
    done = run_cli(*common, tmp_path, cwd=tmp_path)
    assert (done.returncode, "no __main__.py" in done.stderr) == (2, True)


def test_a_notebook_needs_ipython(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(notebook("print('ran')\n"))
    program = (
        "import sys; sys.modules['IPython'] = None; import run_program\n"
        "sys.exit(run_program.run_notebook())"
    )
    env = {"PYTHONPATH": str(REPOSITORY / "jaxcache" / "injected")}
    done = sh([sys.executable, "-c", program, "train.ipynb"], cwd=tmp_path, env=env)
    needs = f"jaxcache: train.ipynb needs IPython: {sys.executable} has none\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", needs)


MODELS = """
import functools
import jax, jax.numpy as jnp

class Net:
    @staticmethod
    @functools.partial(jax.jit, static_argnums=1, static_argnames=("flag",))
    def scaled(x, n, *, flag=False):
        return x * n + (1 if flag else 0)

def init(width):
    return {"w": jnp.ones((width, width)), "b": jnp.zeros(width)}

def plain(params, x, rate, pair, key, train=True):
    assert type(pair) is tuple
    y = (x @ params["w"] + params["b"]) * rate if train else x
    return {"y": y, "pair": pair[0] + pair[1], "key": jax.random.key_data(key)}
"""


CALLS = """
import jax, jax.numpy as jnp, models
models.Net.scaled(jnp.ones(8), 3, flag=True)
on = lambda x: jax.device_put(x, jax.devices()[0])
params = on({"w": jnp.ones((4, 4)), "b": jnp.ones(4)})
pair = (1.0, on(jnp.ones(4, jnp.int8)))
plain = jax.jit(models.plain, static_argnames="train")
plain(params, on(jnp.ones((2, 4), jnp.bfloat16)), 0.5, pair, key=on(jax.random.key(0)), train=True)
"""


#: The arguments of a function, as the command line has them, or as ``--args`` reads them.
ARGUMENTS: dict[str, str | tuple[str, ...]] = {
    # No 64 bits without x64.
    "models:Net.scaled": ("--arg", "f64[8]", "--arg", "3", "--static", "flag=True"),
    "models.py:plain": """
args = [
    { "$call" = { function = "models:init", static = { width = 4 } } },
    "bf16[2,4]", 0.5, { "$tuple" = [1.0, "i8[4]"] },
]
kwargs = { key = "key[]" }
static = { train = true }
committed = true  # another key than that of an array on no certain device
""",
}


def test_a_plain_call_hits_what_was_compiled_without_it(
    warm: Warm, script: Any, tmp_path: Path
) -> None:
    script(MODELS, "models.py")
    keys = {}
    for function, arguments in ARGUMENTS.items():
        if isinstance(arguments, str):
            (tmp_path / "args.toml").write_text(arguments)
            arguments = ("--args", "args.toml")
        document = warm(function, *arguments)
        assert outcomes(document) == {("written", "not-in-cache")}
        (row,) = document["modules"]
        assert row["function"] in function
        keys[row["module"]] = row["key"]
    assert sorted(keys) == ["jit_plain", "jit_scaled"]
    ran = warm(script(CALLS))
    for name, key in keys.items():
        row = only(ran, name)
        assert (row["outcome"], row["key"]) == ("hit", key), name


def test_mistakes_are_said(
    warm: Any, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = json.loads(warm("nowhere:f", code=2))["error"]
    assert (error["code"], "cannot import nowhere" in error["message"]) == ("no-function", True)
    monkeypatch.syspath_prepend(tmp_path)
    light = script("LIGHT = ''", "light.py")
    for name, said in (
        (f"{light}:nope", f"no nope in {light}"),
        (f"{light}:LIGHT.x", f"no LIGHT.x in {light}"),
        (f"{light}:LIGHT", "is not a function"),
        ("nowhere.py:f", "no such file:"),
    ):
        with pytest.raises(CallError, match=said):
            find_function(name)
    with pytest.raises(ZeroDivisionError):  # the program's own failure, with its traceback
        find_function(f"{script('1 / 0', 'broken.py')}:f")
    del sys.modules["light"], sys.modules["broken"]


# Programs that fork, die, shout, wait or are stopped while ``warm`` looks on.


def test_ctrl_c_shows_the_traceback_of_plain_python(
    run_cli: RunCli, jax_python: str, cache: Path, script: Any
) -> None:
    path = script(
        "import jax, os, signal, time\n@jax.jit\ndef interrupted(x):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(60)\ninterrupted(1.0)\n"
    )
    plain = sh([jax_python, path]).stderr
    assert "KeyboardInterrupt" in plain
    done = run_cli("run", "-C", cache, "--", jax_python, path)
    assert done.stderr.startswith(plain)


def test_a_script_that_takes_too_long_is_stopped(warm: Warm, script: Any) -> None:
    path = script("import time\ntime.sleep(3600)")
    document = warm(path, options=("--timeout", "5s"), code=128 + 15)
    assert document["timed_out"] is True


def test_threads_and_processes_are_told_apart(warm: Warm, script: Any) -> None:
    """Two forks, and eight threads that compile one function at the same time."""
    path = script(
        """
        import os, threading, warnings
        import jax, jax.numpy as jnp  # imported, but not used before the fork

        def work(n):
            jax.jit(lambda x: jnp.cos(x) * n)(jnp.ones(n)).block_until_ready()

        warnings.simplefilter("ignore")
        for n in (3, 4):
            if not os.fork():
                work(n)
                os._exit(0)
        assert os.wait()[1] == os.wait()[1] == 0
        threads = [threading.Thread(target=work, args=(5,)) for _ in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        """
    )
    document = warm(path, env={"PYTHONWARNINGS": "default"})
    assert_counts_are_jax_own(document)
    compiled = {m["process"] for m in document["modules"]}
    assert len({p["pid"] for p in document["processes"] if p["process"] in compiled}) == 3
    assert len(document["processes"]) == len(compiled) == 3
    assert outcomes(document) <= {
        ("written", "not-in-cache"),
        ("skipped", "written-meanwhile"),
        ("hit", "in-cache"),
    }


def test_a_program_that_talks_with_its_user(
    cache: Path, script: Any, each_jax_python: str, tmp_path: Path
) -> None:
    path = script("name = input('name? ')\nprint('hello', name, flush=True)\ninput()")
    child = begin(tmp_path, "warm", "-C", cache, "--python", each_jax_python, path)
    assert child.stdin and child.stdout
    child.stdin.write("ada\n")
    child.stdin.flush()
    assert child.stdout.readline() == "name? hello ada\n"  # before the program has ended
    out, errors = child.communicate("\n", timeout=300)
    assert (child.returncode, out) == (0, ""), errors


def test_a_program_that_shouts_falls_silent_and_leaves_a_child_without_a_goodbye(
    warm: Warm, script: Any, tmp_path: Path
) -> None:
    """The report is alone on standard output; XLA's flags are set before jax is imported."""
    path = script(f"""
import logging, os, subprocess, sys, warnings
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
for _ in range(4000): print("x" * 1000); print("y" * 1000, file=sys.stderr)
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
sys.stderr = sys.stdout = open(os.devnull, "w")
{STEP}
assert jax.device_count() == 3
code = "import jax, time; jax.jit(lambda x: x)(1.0); time.sleep(3600)"
null = subprocess.DEVNULL
child = subprocess.Popen([sys.executable, "-c", code], stdout=null, stderr=null)
with open(sys.argv[1], "w") as file:
    file.write(str(child.pid))
os._exit(3)
""")
    pid_file = tmp_path / "pid"
    try:
        document = warm(path, str(pid_file), code=3)
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
    assert (document["schema_version"], document["script_exit_code"]) == (1, 3)
    assert outcomes(document, "jit_step") == {("written", "not-in-cache")}


# Programs of several processes.


#: A program that works alone and as one of several processes.
SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("x",))
split = NamedSharding(mesh, P("x"))
x = jax.make_array_from_callback((8,), split, lambda i: np.arange(8, dtype=np.float32)[i])
def total(x):
    return jnp.sum(x * 2)
print(jax.jit(lambda y: jnp.exp(y) + 1)(np.float32(2)))
value = float(jax.jit(total, out_shardings=NamedSharding(mesh, P()))(x))
print("process", jax.process_index(), "of", jax.process_count(), "says", value)
assert value == 56
"""


#: On CPU the processes' keys differ in ``accelerator_config``; as they do not on other hardware.
EQUAL_KEYS = "from jax._src import cache_key; cache_key._hash_accelerator_config = lambda *a: None"


TOGETHER = ("--processes", "2", "--timeout", "120s")


def by_process_id(document: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """What became of the sharded sum, by the process's number in the program."""
    assert_counts_are_jax_own(document)
    told = {p["process"]: p["process_id"] for p in document["processes"]}
    rows = [m for m in document["modules"] if m["module"] == "jit_total"]
    return {told[m["process"]]: (m["outcome"], m["reason"]) for m in rows}


def test_only_process_0_writes_and_a_recipe_serves_both(
    warm: Warm, run_cli: RunCli, cache: Path, script: Any, each_jax_python: str, tmp_path: Path
) -> None:
    if jax_version(each_jax_python) < (0, 5):
        pytest.skip("recipes are compiled by JAX 0.5 and later")
    path, recipe = script(SHARDED), tmp_path / "two.recipe"
    document = warm(path, options=(*TOGETHER, "--record", str(recipe)))
    written, left = ("written", "not-in-cache"), ("skipped", "not-process-0")
    assert by_process_id(document) == {0: written, 1: left}
    assert sum("made another key" in note for note in document["notes"]) == 1
    shutil.rmtree(cache)
    done = run_cli("compile", recipe, "-C", cache, "--json", "--python", each_jax_python)
    compiled = json.loads(done.stdout)["modules"]
    assert {m["outcome"] for m in compiled} == {"written"}
    # Into the directory where it was recorded: every key is the recorded one.
    assert all(m["key"] == m["recorded_key"] for m in compiled)
    warm(path, options=(*TOGETHER, "--fail-on-miss"))


def test_processes_with_equal_keys_share(warm: Warm, script: Any) -> None:
    path = script(EQUAL_KEYS + "\n" + SHARDED)
    env = {"JAX_SHARE_BINARY_BETWEEN_HOSTS": "true"}
    became = by_process_id(warm(path, options=TOGETHER, env=env))
    assert became[0] == ("written", "not-in-cache")
    # The slower process may find on disk what the other has just written.
    assert became[1] in (("skipped", "shared-by-process-0"), ("hit", "in-cache"))


def test_one_process_that_fails_ends_all(warm: Warm, script: Any) -> None:
    path = script(
        "import jax, time, os\nos._exit(5) if jax.process_index() == 1 else time.sleep(100)"
    )
    document = warm(path, options=("--processes", "2", "--timeout", "60s"), code=None)
    assert document["script_exit_code"] != 0
    assert not document["timed_out"]


# A cache in a bucket, held to what JAX counts in a Python of its own.


def test_plain_jax_hits_what_warm_has_put_into_a_bucket(
    run_cli: RunCli, bucket: str, each_jax_python: str, tmp_path: Path
) -> None:
    program = (Path(__file__).with_name("programs.py"), "cached")
    warm = ("warm", "--json", "-C", bucket, "--python", each_jax_python, *program)
    done = run_cli(*warm, env={"XDG_CACHE_HOME": str(tmp_path / "elsewhere")})
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)["summary"]["written"]
    assert written == len(run_cli("ls", "-q", "-C", bucket).stdout.splitlines()) > 0

    environment = live_environment(each_jax_python, tmp_path, bucket)
    plain = sh([each_jax_python, *program], env=environment, check=True)
    assert json.loads(plain.stdout) == {"warnings": 0, "hits": written, "requests": written}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "did not reach s3://lost/jax"),
        pytest.param(
            {"JAXCACHE_LIVE": "0"}, "JAX could not open s3://lost/jax", marks=pytest.mark.slow
        ),
    ],
    ids=["unreachable", "live-layer-off"],
)
@pytest.mark.usefixtures("s3")
def test_a_bucket_that_gets_nothing_fails_the_run(
    run_cli: RunCli, script: Any, tmp_path: Path, environment: dict[str, str], said: str
) -> None:
    home = {"XDG_CACHE_HOME": str(tmp_path / "here"), "PYTHONWARNINGS": ""}
    done = run_cli("warm", "-C", "s3://lost/jax", script(STEP), env=home | environment)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
