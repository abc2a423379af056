"""A guard in pytest, with the live layer and in one of two processes."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from harness import case, equal, main

HERE = str(Path(__file__).parent)
CACHED = {
    "JAX_ENABLE_COMPILATION_CACHE": "true",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def run_program(program: str, *command: str, **environment: str) -> "subprocess.CompletedProcess":
    """Run a program of its own, in a directory of its own with an empty cache."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "test_program.py").write_text(program)
        path = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
        # The plugin is loaded by name, whether jaxcache is installed beside this pytest or not.
        env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        env |= {"JAX_COMPILATION_CACHE_DIR": directory + "/cache", "PYTHONPATH": path}
        return subprocess.run(
            [sys.executable, *command, "test_program.py"],
            cwd=directory,
            env=env | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


SUITE = """
import jax, numpy as np, pytest
step = jax.jit(lambda x: x * 2)

@pytest.fixture(autouse=True)
def warm():
    step(np.ones(2))

@pytest.mark.jaxcache_guard
def test_warm():
    step(np.ones(2))

@pytest.mark.jaxcache_guard
@pytest.mark.parametrize("again", range(3))
def test_cold(again):
    step(np.ones(3))

def test_free():
    step(np.ones(3))
"""


@case("pytest: the marker")
def in_pytest() -> str:
    options = ("-m", "pytest", "-q", "-p", "jaxcache.inprocess.pytest_plugin")
    done = run_program(SUITE, *options, "-p", "no:cacheprovider")
    assert "3 failed, 2 passed" in done.stdout, done.stdout
    counted = run_program(SUITE, *options, "-p", "no:cacheprovider", "--jaxcache", **CACHED)
    assert "3 refused" in counted.stdout, counted.stdout
    return "3 refused, 2 passed"


LIVE = """
from harness import case, dispatches, equal, guard, main, ones, refuse, refuse_thrice, xla_compiles
import tempfile
import jax, jaxcache
enabled = jaxcache.enable(tempfile.mkdtemp())

@case("live")
def live():
    assert enabled.live
    step = jax.jit(lambda x: x * 2)
    step(ones(2))
    with jaxcache.watch() as report:
        error = refuse_thrice(lambda: step(ones(3)))
    equal((report.refused, report.errors, report.written), (3, 0, 1), "refused, errors, written")
    equal(dispatches(lambda: step(ones(3))), 0, "Python dispatches")
    jax.clear_caches()
    with guard():
        equal(xla_compiles(lambda: step(ones(3))), 0, "what is loaded")
    jax.clear_caches()
    with guard("load"):
        refuse(lambda: step(ones(3)))
    return str(error.changed[0])

main()
"""


@case("the live layer and watch()")
def with_live_layer() -> str:
    done = run_program(LIVE, **CACHED)
    assert done.stdout, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])["live"]
    equal(result["fault"], "", "fault")
    return str(result["note"])


#: Both processes compile the same; process 0 refuses the second one.
TWO = """
import sys, threading
from harness import UnexpectedCompileError, guard, ones, refuse
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
address, number = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, num_processes=2, process_id=number)
rows = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), PartitionSpec("i"))
total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(rows.mesh, PartitionSpec()))
def make(length):
    return jax.make_array_from_callback((length,), rows, lambda index: ones(length)[index])
print("warm", float(total(make(4))), flush=True)
if number == 0:
    with guard():
        error = refuse(lambda: total(make(8)))
    print("refused", error.changed[0], flush=True)
    sys.stdin.readline()
else:
    print("waits", flush=True)
print("then", float(total(make(8))), flush=True)
jax.distributed.shutdown()
"""


class Half:
    """One of two processes."""

    def __init__(self, program: Path, address: str, number: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, program, address, str(number)],
            env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ['PYTHONPATH']}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def read(self, word: str) -> str:
        """The rest of the next line that begins with a word; gloo prints lines of its own."""
        stdout: Any = self.process.stdout
        for line in stdout:
            if line.startswith(word):
                return str(line.removeprefix(word).strip())
        raise AssertionError(f"{word}: the program ended: {self.process.communicate()[1]}")


@case("jax.distributed, guarded in one of two processes")
def distributed() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "two.py"
        program.write_text(TWO)
        halves = [Half(program, address, number) for number in range(2)]
        watchdog = threading.Timer(240, lambda: [half.process.kill() for half in halves])
        watchdog.start()
        try:
            for half in halves:
                equal(half.read("warm"), "4.0", "the sum of both")
            changed = halves[0].read("refused")
            halves[1].read("waits")
            try:
                halves[1].process.wait(2)
                raise AssertionError("the other process did not wait")
            except subprocess.TimeoutExpired:
                pass
            stdin: Any = halves[0].process.stdin
            stdin.write("\n")
            stdin.flush()
            for half in halves:
                equal(half.read("then"), "8.0", "the sum of both, allowed")
            errors = [half.process.communicate()[1] for half in halves]
        finally:
            watchdog.cancel()
            for half in halves:
                half.process.kill()
    counts = [text.count("guard sees 2 processes of jax.distributed") for text in errors]
    equal(counts, [1, 0], "lines that say so")
    return f"{changed}; one line says so; the other waits until it is allowed"


if __name__ == "__main__":
    main()
