"""``verify`` and ``seal`` beside real JAX."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import zstandard
from acting import fragile_python
from conftest import RunCli, clean_environment, has_modules, jax_version
from plain_jax import run_plain
from processes import sh

from jaxcache.cache.verify.run_checks import INFORMATIONAL

pytestmark = pytest.mark.jax
HERE = Path(__file__).parent
PROGRAM = HERE / "programs.py"
LONG_AGO = time.time() - 3600


class Cache:
    """A cache directory and a Python whose JAX uses it."""

    def __init__(self, path: Path, python: str) -> None:
        self.path, self.python = path, python

    def environment(self, **more: str) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX", "XLA", "PYTHON"))}
        env |= {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.path),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
            "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",  # keys without the path
        }
        return env | more

    def run(self, **more: str) -> dict[str, int]:
        """Run the program; hits, requests and warnings about the cache."""
        done = run_plain([self.python, PROGRAM, "cached"], env=self.environment(**more))
        return json.loads(done.stdout.splitlines()[-1])

    def entry(self, module: str) -> Path:
        """The one entry of a module; JAX 0.4.30 names the file by the key alone."""
        (path,) = (p for p in self.path.glob(f"{module}-*") if not p.name.endswith("-atime"))
        return path


@pytest.fixture(scope="session")
def filled(jax_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What JAX wrote, from cold."""
    made = Cache(tmp_path_factory.mktemp("filled") / "cache", jax_python)
    assert made.run()["hits"] == 0
    return made.path


@pytest.fixture
def cache(jax_python: str, filled: Path, tmp_path: Path) -> Cache:
    return Cache(Path(shutil.copytree(filled, tmp_path / "cache")), jax_python)


def test_load_names_the_entry_that_kills_its_child_and_goes_on(
    cache: Cache, run_cli, tmp_path: Path
) -> None:
    fragile = fragile_python(tmp_path, cache.python, "jit_step")
    hollow_out(cache.entry("jit_loss"))  # found by a child that is alive, before or after
    words = ("verify", "-C", cache.path, "--level", "load", "--python", fragile, "--no-payload")
    done = run_cli(*words, "--json")
    assert done.returncode == 1, done.stderr
    problems = [p for p in json.loads(done.stdout)["problems"] if p["kind"] not in INFORMATIONAL]
    step, loss = cache.entry("jit_step").name, cache.entry("jit_loss").name
    found = {p["file"]: p["kind"] for p in problems}
    assert found == {step: "load-crashed", loss: "load-failed"}
    (detail,) = [p["detail"] for p in problems if p["file"] == step]
    assert "SIGSEGV" in detail or "11" in detail


def hollow_out(path: Path) -> None:
    """Make an entry that decompresses well and holds no executable that could be loaded."""
    import zlib

    data = path.read_bytes()
    is_zlib = data[:1] == b"\x78"  # a JAX without zstandard
    content = zlib.decompress(data) if is_zlib else zstandard.decompress(data)
    hollow = content.replace(b"\x7fELF", b"\x7fFLE")
    assert hollow != content
    packed = zlib.compress if is_zlib else zstandard.ZstdCompressor(write_checksum=True).compress
    path.write_bytes(packed(hollow))


@pytest.mark.parametrize("cap", ["-1", pytest.param("1000000000", marks=pytest.mark.slow)])
def test_beside_a_running_jax(cache: Cache, run_cli, cap: str) -> None:
    """JAX reads and writes in a loop while entries are sealed, broken and put away."""
    env = cache.environment(JAX_COMPILATION_CACHE_MAX_SIZE=cap, LOOP="1")
    if cap != "-1":
        if not has_modules(cache.python, "filelock"):
            pytest.skip("JAX's Python has no filelock, which a size cap takes")
        assert run_cli("verify", "-C", cache.path, "--fix", "--atimes").returncode == 0
    process = subprocess.Popen(
        [cache.python, PROGRAM, "cached"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    broken = cache.path / f"jit_broken-{'0' * 64}-cache"
    for level in (1, 19):
        assert process.stdout.readline() == "looping\n"
        # With its date, or a capped JAX before 0.11.2 would stop writing by itself.
        broken.with_name(broken.name.replace("-cache", "-atime")).write_bytes(bytes(8))
        broken.write_bytes(b"")
        os.utime(broken, (LONG_AGO, LONG_AGO))
        done = run_cli("seal", "-C", cache.path, "--recompress", str(level), "--json")
        assert {p["kind"] for p in json.loads(done.stdout)["problems"]} <= {"empty"}
        done = run_cli("verify", "-C", cache.path, "--fix", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert not broken.exists()
    assert process.stdout.readline() == "looping\n"  # the third round
    out, err = process.communicate("stop\n", timeout=120)
    assert process.returncode == 0, err
    result = json.loads(out.splitlines()[-1])
    assert result["warnings"] == 0, err
    assert result["rounds"] > 2
    assert result["hits"] == result["expected_hits"]


@pytest.mark.parametrize("trials", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_no_damage_to_a_sealed_entry_reaches_the_result(
    each_jax_python: str, tmp_path: Path, run_cli, trials: int
) -> None:
    """Flips and truncations; the same on unsealed entries kills, or changes the result."""
    cache = Cache(tmp_path, each_jax_python)
    sweep = [each_jax_python, HERE / "flip_sweep.py", tmp_path]
    for count in ("0", str(trials)):
        done = sh([*sweep, count, "7"], env=cache.environment(), check=True)
        assert run_cli("seal", "-C", tmp_path).returncode == 0
    seen = json.loads(done.stdout)
    assert seen["died"] == seen["wrong"] == 0
    assert seen["warned"] + seen["unnoticed"] == seen["trials"] == trials
    assert seen["unnoticed"] <= trials // 20 + 1  # bits that mean nothing


# ``verify --level load`` judges only what can be judged on this machine by this jax.


def load(run_cli: RunCli, cache: Path, python: str, *args: str) -> dict[str, str]:
    """The kind of each finding by file; the exit code must be 0."""
    for path in cache.iterdir():
        os.utime(path, (LONG_AGO, LONG_AGO))
    done = run_cli("verify", "-C", cache, "--level", "load", "--python", python, "--json", *args)
    assert done.returncode == 0, (done.stdout, done.stderr)
    problems = json.loads(done.stdout)["problems"]
    return {p["file"]: p["kind"] for p in problems if p["kind"] not in ("unsealed", "legacy-name")}


def test_a_program_of_two_processes_is_sound_and_stays(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    if jax_version(jax_python) < (0, 5):
        pytest.skip("no collectives between processes on a CPU")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    cache = tmp_path / "cache"
    env = clean_environment(tmp_path) | {"JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "default"}
    del env["PYTHONPATH"]
    running = [
        subprocess.Popen(
            [jax_python, PROGRAM, "pair", cache, str(port), str(number)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    for process in running:
        said, _ = process.communicate(timeout=200)
        assert process.returncode == 0, said
    names = {p.name for p in cache.glob("*-cache")}
    (shared,) = cache.glob("jit_total-*-cache")
    assert list(cache.glob("jit_single-*-cache"))
    assert load(run_cli, cache, jax_python, "--fix") == {shared.name: "not-loadable-here"}
    assert {p.name for p in cache.glob("*-cache")} == names


def test_what_another_jaxlib_wrote_or_another_platform_needs_is_not_called_damaged(
    run_cli: RunCli, jax_python: str, corpus: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    versions = {(0, 4, 38): "0.4.38-cpu-zstd", (0, 8, 3): "0.8.3-cpu-zstd"}
    versions.pop(jax_version(jax_python), None)  # it is its own
    gpu = corpus / "0.8.3-cuda13-h200-zstd"
    for source in (gpu, *(corpus / name for name in versions.values())):
        for path in source.glob("*-cache"):
            shutil.copyfile(path, cache / path.name)
    names = {p.name for p in cache.glob("*-cache")}
    found = load(run_cli, cache, jax_python, "--fix")
    assert set(found.values()) == {"not-loadable-here"}
    assert {p.name for p in gpu.glob("*-cache")} <= set(found)
    assert {p.name for p in cache.glob("*-cache")} == names


# A cache that root has changed serves the JAX of its owner, with a size cap.

OWNER = 65534
#: Imports all that it needs in a cache of its own first: its user may not read this Python.
BY_OWNER = """
import json, os, sys, tempfile
import jax, jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
def compile_all(cache):
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.clear_caches()
    for length in range(3, 6):
        jax.jit(lambda x: jnp.sort(jnp.tanh(x) @ x))(jnp.ones((length, length)))
with tempfile.TemporaryDirectory() as directory:
    for _ in range(2):
        compile_all(directory)
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
events.clear()
compile_all(sys.argv[1])
print(json.dumps({name: sum(e.endswith(name) for e in events) for name in
                  ("cache_hits", "cache_misses")}))
"""


def run_as_owner(python: str, cache: Path) -> dict[str, int]:
    more = {"JAX_COMPILATION_CACHE_MAX_SIZE": str(10**9), "JAX_RAISE_PERSISTENT_CACHE_ERRORS": "1"}
    env = Cache(cache, python).environment(**more)
    done = sh([python, "-c", BY_OWNER, str(cache), str(OWNER)], env=env)
    assert done.returncode == 0, done.stderr
    counted: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counted


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")
def test_jax_hits_all_after_root_has_changed_a_cache(run_cli: RunCli, jax_python: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        cache = Path(directory, "cache")
        cache.mkdir()
        os.chown(cache, OWNER, OWNER)
        cold = run_as_owner(jax_python, cache)
        assert cold["cache_misses"] > 0
        for stamp in list(cache.glob("*-atime"))[:1]:
            stamp.unlink()
        (cache / ".lockfile").unlink()
        for arguments in (("verify", "--fix", "--atimes"), ("seal",), ("pin", "*")):
            done = run_cli(*arguments, "-C", cache)
            assert done.returncode == 0, done.stderr
        hot = run_as_owner(jax_python, cache)
        assert hot == {"cache_hits": cold["cache_misses"] + cold["cache_hits"], "cache_misses": 0}
