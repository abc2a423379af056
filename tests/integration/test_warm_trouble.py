"""Programs that fork, die, shout, wait or are stopped while ``warm`` looks on."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from warm_checks import STEP, Warm, assert_counts_are_jax_own, only, outcomes, start_warm

pytestmark = pytest.mark.jax


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(warm: Warm, script: Any, method: str) -> None:
    path = script(
        f"""
        import multiprocessing, os, sys

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
            work(5)
            sys.exit(sum(c.exitcode for c in children))
        """
    )
    document = warm(path, env={"PYTHONWARNINGS": "default"})
    assert_counts_are_jax_own(document)
    compiled = {m["process"] for m in document["modules"]}
    assert len(compiled) == 3
    assert len({p["pid"] for p in document["processes"] if p["process"] in compiled}) == 3


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


def test_megabytes_of_output(warm: Warm, script: Any) -> None:
    noise = (
        "import sys\nfor _ in range(4000): print('x' * 1000); print('y' * 1000, file=sys.stderr)\n"
    )
    document = warm(script(noise + STEP + noise))
    assert document["summary"]["written"] > 0


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


def test_a_script_that_silences_everything(warm: Warm, script: Any) -> None:
    text = """
import logging, warnings, sys, os
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
sys.stderr = sys.stdout = open(os.devnull, "w")
"""
    assert outcomes(warm(script(text + STEP))) == {("written", "not-in-cache")}


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
