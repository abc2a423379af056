"""``warm`` and ``run`` over real JAX, as a person and as CI meet them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli, StepRuns
from live.conftest import live_environment
from object_server import CREDENTIALS, Proxy, make_bucket
from processes import sh
from warm_checks import STEP, Warm, assert_counts_are_jax_own, only, outcomes, start_warm

pytestmark = pytest.mark.jax


def test_the_second_run_is_all_hits(step_runs: StepRuns, step_cache: Path, run_cli: RunCli) -> None:
    first, second = step_runs.cold, step_runs.hot
    assert outcomes(first) == {("written", "not-in-cache")}
    assert_counts_are_jax_own(first)
    step = only(first, "jit_step")
    assert step["function"] == "step"
    assert step["file"] == str(step_runs.directory / "script.py")
    assert step["line"] in (3, 4)  # of the decorator, or of the function
    assert [(a["dtype"], a["shape"]) for a in step["arguments"]] == [("float32", [8, 8])]
    assert step["compile_seconds"] > 0
    listed = json.loads(run_cli("ls", "--json", "-C", step_cache).stdout)["entries"]
    assert {entry["sealed"] for entry in listed} == {True}
    assert {m["key"]: m["size_bytes"] for m in first["modules"]} == {
        e["key"]: e["size_bytes"] for e in listed
    }
    assert outcomes(second) == {("hit", "in-cache")}
    assert_counts_are_jax_own(second)
    assert {m["key"] for m in second["modules"]} == {m["key"] for m in first["modules"]}
    assert only(second, "jit_step")["retrieval_seconds"] > 0
    saved = (m["compile_seconds"] - m["retrieval_seconds"] for m in second["modules"])
    assert second["summary"]["saved_seconds"] == pytest.approx(sum(saved))


@pytest.mark.usefixtures("step_cache")
def test_a_program_that_only_hits_imports_no_reader_of_modules(warm: Warm, script: Any) -> None:
    loaded = "{'_jaxcache.core.sketching', '_jaxcache.core.sketch'} & sys.modules.keys()"
    path = script(f"{STEP}import sys\nassert {loaded} == {{'_jaxcache.core.sketching'}}")
    assert outcomes(warm(path, options=("--portable",))) == {("hit", "in-cache")}


@pytest.mark.usefixtures("step_cache")
def test_a_changed_function_alone_misses(warm: Warm, script: Any) -> None:
    options = ("--portable", "--fail-on-miss", "0")
    document = warm(script(STEP.replace("sin", "cos")), options=options, code=1)
    assert outcomes(document, "jit_step") == {("written", "not-in-cache")}
    others = {m["outcome"] for m in document["modules"] if m["module"] != "jit_step"}
    assert others <= {"hit"}


def test_the_script_runs_unchanged(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str, tmp_path: Path
) -> None:
    script("value = 42", "beside.py")
    path = script(
        """
        import sys, os, json, beside, jax
        print(json.dumps([sys.argv, __name__, __file__, sys.path[0], beside.value, sys.stdin.read(),
                          os.getcwd(), [m for m in sys.modules if m.startswith('jaxcache.')]]))
        print("to stderr", file=sys.stderr)
        sys.exit(7)
        """
    )
    argv = [str(path), "--flag", "-q", "a b", "--json"]
    words = ("warm", "-C", cache, "--python", each_jax_python, *argv)
    done = run_cli(*words, input="typed", cwd=tmp_path)
    assert done.returncode == 7
    *seen, modules = json.loads(done.stdout)
    assert seen == [argv, "__main__", str(path), str(tmp_path), 42, "typed", str(tmp_path)]
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
    done = run_cli("warm", "-C", cache, "--python", "no-such-python", script(STEP))
    assert (done.returncode, "no-python" in done.stderr) == (13, True)


def test_a_script_that_is_not_there(run_cli: RunCli, cache: Path, each_jax_python: str) -> None:
    done = run_cli("warm", "-C", cache, "--python", each_jax_python, "gone.py")
    assert (done.returncode, "no-script" in done.stderr) == (2, True)


def test_a_script_that_dies_from_a_signal(warm: Warm, script: Any) -> None:
    document = warm(script(STEP + "import os\nos.kill(os.getpid(), 9)"), code=137)
    assert document["script_exit_code"] == -9
    assert ("written", "not-in-cache") in outcomes(document, "jit_step")


def test_ctrl_c_shows_the_traceback_of_plain_python(
    run_cli: RunCli, jax_python: str, cache: Path, script: Any
) -> None:
    path = script(
        """
        import os, signal
        import jax, jax.numpy as jnp
        @jax.jit
        def interrupted(x):
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(10**6):
                pass
            return x
        interrupted(jnp.ones(3))
        """
    )
    plain = sh([jax_python, path]).stderr
    assert "KeyboardInterrupt" in plain
    done = run_cli("run", "-C", cache, "--", jax_python, path)
    assert done.stderr.startswith(plain)


def test_a_refused_permission_is_recognized_by_its_number(
    run_cli: RunCli, jax_python: str, cache: Path, script: Any
) -> None:
    path = script(
        """
        import errno, warnings
        import jax, jax.numpy as jnp
        from jax._src import lru_cache
        warnings.simplefilter("ignore")

        class Refused(PermissionError):
            def __str__(self):
                return "in another language"

        def put(*_):
            raise Refused(errno.EACCES, "")

        lru_cache.LRUCache.put = put
        jax.jit(lambda x: x)(jnp.ones(3))
        """
    )
    done = run_cli("warm", "-C", cache, "--python", jax_python, path)
    assert done.returncode == 1
    assert f"not cached, because this user may not write to {cache}\n" in done.stderr


def test_a_script_that_takes_too_long_is_stopped(warm: Warm, script: Any) -> None:
    path = script("import time\ntime.sleep(3600)")
    document = warm(path, options=("--timeout", "5s"), code=128 + 15)
    assert document["timed_out"] is True


def test_a_directory_that_the_program_sets_is_reported_or_overruled(
    warm: Warm, cache: Path, script: Any, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    path = script(
        f"import jax\njax.config.update('jax_compilation_cache_dir', {str(own)!r})\n{STEP}"
    )
    document = warm(path)
    assert any(str(own) in note for note in document["notes"])
    assert {p["cache_dir"] for p in document["processes"]} == {str(own)}
    document = warm(path, options=("--force-cache-dir",))
    assert {p["cache_dir"] for p in document["processes"]} == {str(cache)}
    assert list(cache.glob("jit_step-*"))


def test_an_unwritable_cache_is_an_error_with_jax_words(
    warm: Warm, step_runs: StepRuns, step_cache: Path, script: Any
) -> None:
    # A directory where the entry would go fails for root too.
    for path in step_cache.glob(f"{only(step_runs.cold, 'jit_step')['key']}*"):
        path.unlink()
        path.mkdir()
    # JAX warns, and goes on; what was to fill the cache has failed
    lenient = {"PYTHONWARNINGS": "default"}
    document = warm(script(STEP), options=("--portable",), env=lenient, code=1)
    step = only(document, "jit_step")
    assert (step["outcome"], step["reason"]) in (("error", "read-error"), ("error", "write-error"))
    assert "directory" in step["detail"].lower()


def test_the_example_is_all_hits_the_second_time(
    run_cli: RunCli, cache: Path, jax_python: str
) -> None:
    example = REPOSITORY / "examples" / "train.py"
    args = ("warm", "-C", cache, "--python", jax_python)
    small = ("--layers", "1", "--width", "32", "--lengths", "8")
    first = run_cli(*args, example, *small)
    assert first.returncode == 0, first.stderr
    assert "loss" in first.stdout
    second = run_cli(*args, "--fail-on-miss", "0", example, *small)
    assert second.returncode == 0, second.stderr
    hits = re.search(r"^(\d+) of (\d+) hits", second.stderr, re.MULTILINE)
    assert hits and hits[1] == hits[2], second.stderr
    shutil.rmtree(cache)


# ``warm`` and ``run`` of a cache in a bucket, held to what JAX counts in a Python of its own.


#: Prints JAX's own counters.
PROGRAM = """
import json, jax, jax.numpy as jnp
counts = {}
def count(name, **_):
    counts[name] = counts.get(name, 0) + 1
jax.monitoring.register_event_listener(count)
jax.jit(lambda x: jnp.sin(x) @ x.T + 1)(jnp.ones((4, 4)))
prefix = "/jax/compilation_cache/cache_"
print(json.dumps({word: counts.get(prefix + word, 0) for word in ("hits", "misses")}))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_plain_jax_hits_what_warm_has_put_into_a_bucket(
    run_cli: RunCli, s3: Proxy, each_jax_python: str, program: Path, tmp_path: Path
) -> None:
    make_bucket(s3.endpoint, "filled")
    url = "s3://filled/jax"
    warm = ("warm", "--json", "-C", url, "--python", each_jax_python, program)
    done = run_cli(*warm, env={"XDG_CACHE_HOME": str(tmp_path / "here")})
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)["summary"]["written"]
    assert written == len(run_cli("ls", "-q", "-C", url).stdout.splitlines()) > 0

    elsewhere = {
        "XDG_CACHE_HOME": str(tmp_path / "elsewhere"),
        "AWS_ENDPOINT_URL": s3.endpoint,
        **CREDENTIALS,
    }
    environment = live_environment(each_jax_python, tmp_path, url) | elsewhere
    plain = sh([each_jax_python, program], env=environment, check=True)
    assert json.loads(plain.stdout) == {"hits": written, "misses": 0}

    variable = {"XDG_CACHE_HOME": str(tmp_path / "third"), "JAX_COMPILATION_CACHE_DIR": url}
    ran = run_cli("run", "--json", "--fail-on-miss", "--", each_jax_python, program, env=variable)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["summary"]["hits"] == written

    # Doctor names the bucket as the user writes it.
    doctor = ("doctor", "--json", "-C", url, "--python", "/nonexistent")
    findings = json.loads(run_cli(*doctor).stdout)["findings"]
    assert "s3:/filled" not in json.dumps(findings)
    traps = {finding["trap"]: finding for finding in findings}
    assert "cache-dir-in-key" not in traps
    assert f"export JAX_COMPILATION_CACHE_DIR={url} JAXCACHE_LIVE=1" in traps["no-cache-dir"]["fix"]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "did not reach s3://lost/jax"),
        ({"JAXCACHE_LIVE": "0"}, "JAX could not open s3://lost/jax"),
    ],
    ids=["unreachable", "live-layer-off"],
)
def test_a_bucket_that_gets_nothing_fails_the_run(
    run_cli: RunCli,
    s3: Proxy,
    environment: dict[str, str],
    said: str,
    program: Path,
    tmp_path: Path,
) -> None:
    make_bucket(s3.endpoint, "lost")
    home = {"XDG_CACHE_HOME": str(tmp_path / "here"), "PYTHONWARNINGS": ""}
    done = run_cli("warm", "-C", "s3://lost/jax", program, env=home | environment)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]


# Programs that fork, die, shout, wait or are stopped while ``warm`` looks on.


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_threads_and_processes_are_told_apart(warm: Warm, script: Any, method: str) -> None:
    path = script(
        f"""
        import multiprocessing, os, sys, threading

        def work(n):
            import jax, jax.numpy as jnp
            jax.jit(lambda x: jnp.cos(x) * n)(jnp.ones(n)).block_until_ready()

        if __name__ == "__main__":
            import warnings
            warnings.simplefilter("ignore")
            import jax  # imported, but not used before the fork
            context = multiprocessing.get_context("{method}")
            children = [context.Process(target=work, args=(n,)) for n in (3, 4)]
            [c.start() for c in children]
            [c.join() for c in children]
            threads = [threading.Thread(target=work, args=(n,)) for n in (5, 6, 7)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            sys.exit(sum(c.exitcode for c in children))
        """
    )
    document = warm(path, env={"PYTHONWARNINGS": "default"})
    assert_counts_are_jax_own(document)
    compiled = {m["process"] for m in document["modules"]}
    assert len(compiled) == 3
    assert len({p["pid"] for p in document["processes"] if p["process"] in compiled}) == 3
    assert len(document["processes"]) == 3


def test_threads_that_compile_one_function_at_once(warm: Warm, script: Any) -> None:
    path = script(
        """
        import threading, jax, jax.numpy as jnp, numpy as np
        def work(n):
            jax.jit(lambda x: jnp.tanh(x) @ x)(np.ones((32, 32), np.float32)).block_until_ready()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        """
    )
    document = warm(path)
    assert_counts_are_jax_own(document)
    assert outcomes(document) <= {
        ("written", "not-in-cache"),
        ("skipped", "written-meanwhile"),
        ("hit", "in-cache"),
    }


def test_megabytes_of_output_and_a_setting_that_comes_before_jax(warm: Warm, script: Any) -> None:
    three = "import os, sys\nos.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=3'\n"
    noise = "for _ in range(4000): print('x' * 1000); print('y' * 1000, file=sys.stderr)\n"
    text = f"{three}{noise}{STEP}{noise}assert jax.device_count() == 3"
    document = warm(script(text))  # which is alone on standard output
    assert document["summary"]["written"] > 0
    assert (document["schema_version"], document["script_exit_code"]) == (1, 0)


def test_a_program_that_talks_with_its_user(
    cache: Path, script: Any, each_jax_python: str, tmp_path: Path
) -> None:
    path = script("import jax\nname = input('name? ')\nprint('hello', name, flush=True)\ninput()")
    child = start_warm(cache, each_jax_python, path, tmp_path, stdin=subprocess.PIPE)
    assert child.stdin
    assert child.stdout
    child.stdin.write("ada\n")
    child.stdin.flush()
    assert child.stdout.readline() == "name? hello ada\n"  # before the program has ended
    out, errors = child.communicate("\n", timeout=300)
    assert (child.returncode, out) == (0, ""), errors


def test_it_can_be_ended_by_a_signal_to_us(
    cache: Path, script: Any, each_jax_python: str, tmp_path: Path
) -> None:
    path = script(STEP + "print('ready', flush=True)\nimport time\ntime.sleep(60)")
    child = start_warm(cache, each_jax_python, path, tmp_path)
    assert child.stdout
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=300)
    assert child.returncode == 128 + signal.SIGTERM
    assert "jit_step" in errors


def test_a_grandchild_that_outlives_the_program(warm: Warm, script: Any, tmp_path: Path) -> None:
    path = script(
        STEP
        + """
import subprocess, sys
code = "import jax, time; jax.jit(lambda x: x)(1.0); time.sleep(3600)"
child = subprocess.Popen([sys.executable, "-c", code],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
open(sys.argv[1], "w").write(str(child.pid))
"""
    )
    pid_file = tmp_path / "pid"
    try:
        document = warm(path, str(pid_file))
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
    assert ("written", "not-in-cache") in outcomes(document, "jit_step")


def test_a_cache_that_cannot_be_made(warm: Warm, script: Any, cache: Path) -> None:
    cache.parent.joinpath("file").write_text("")
    inside = str(cache.parent / "file" / "x")
    before = f"import jax\njax.config.update('jax_compilation_cache_dir', {inside!r})\n"
    document = warm(script(before + STEP), code=1, env={"PYTHONWARNINGS": "default"})
    assert {o for o, _ in outcomes(document)} <= {"error", "uncacheable"}
    assert only(document, "jit_step")["detail"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache(warm: Warm, script: Any, cache: Path) -> None:
    cache.mkdir()
    (cache / "jit_other-cache").write_bytes(b"")  # an empty one is refused
    cache.chmod(0o555)
    document = warm(script(STEP), code=1, env={"PYTHONWARNINGS": "default"})
    assert outcomes(document) == {("error", "write-error")}
    assert "Permission denied" in only(document, "jit_step")["detail"]


def test_a_script_that_silences_everything_and_leaves_without_a_goodbye(
    warm: Warm, script: Any
) -> None:
    text = """
import logging, warnings, sys, os
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
sys.stderr = sys.stdout = open(os.devnull, "w")
"""
    document = warm(script(f"{text}{STEP}os._exit(3)"), code=3)
    assert outcomes(document) == {("written", "not-in-cache")}
    assert_counts_are_jax_own(document)


def test_a_deleted_directory(warm: Warm, script: Any, cache: Path) -> None:
    text = STEP + f"import shutil; shutil.rmtree({str(cache)!r})\njax.jit(lambda x: x - 1)(1.0)"
    document = warm(script(text), code=1, env={"PYTHONWARNINGS": "default"})  # not all is cached
    assert "error" in {o for o, _ in outcomes(document)}
    assert_counts_are_jax_own(document)


def test_many_events_while_nobody_reads_them_quickly(warm: Warm, script: Any) -> None:
    path = script(
        """
        import jax, numpy as np
        f = jax.jit(lambda x: x)
        for n in range(150):
            f(np.ones(n))
        """
    )
    document = warm(path)
    assert document["summary"]["compile_requests"] >= 150
    assert_counts_are_jax_own(document)
