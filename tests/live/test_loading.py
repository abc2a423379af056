"""Several processes on one cold cache: each module is compiled once."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from jaxcache.live.loading import Leases
from jaxcache.live.process import Counters
from jaxcache.store import open_store
from live.conftest import PROGRAM, TELL, entries, live_environment

pytestmark = pytest.mark.jax

#: All begin at the same moment; ``first`` takes a while to compile.
AT_ONCE = """
import os, time
import jax, jax.numpy as jnp
jax.devices()
directory = os.environ["TEST_DIRECTORY"]
open(f"{directory}/ready-{os.getpid()}", "w").close()
while not os.path.exists(directory + "/go"):
    time.sleep(0.01)
"""
#: The first process to compile ``first`` dies over it.
MURDER = """
from jax._src import compiler
real = compiler.backend_compile_and_load if hasattr(compiler, "backend_compile_and_load") else None
name = "backend_compile_and_load" if real else "backend_compile"
real = getattr(compiler, name)
def deadly(backend, module, *args, **kwargs):
    if "jit_first" in str(module.operation.attributes["sym_name"]):
        try:
            os.close(os.open(directory + "/dead", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            time.sleep(1.0)
            os.kill(os.getpid(), 9)
    return real(backend, module, *args, **kwargs)
setattr(compiler, name, deadly)
"""


def start_together(
    python: str, directory: Path, number: int, program: str, *, tier: str = "", **more: str
) -> list["tuple[subprocess.Popen[str], str, str]"]:
    """Start processes that wait for each other; how each ended, with what it printed."""
    running = []
    for index in range(number):
        cache = directory / (f"machine-{index}" if tier else "cache")
        env = live_environment(python, directory, cache) | {
            "JAXCACHE_LIVE_SINGLE_FLIGHT": "60s",
            "TEST_DIRECTORY": str(directory),
            "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
        }
        env |= more | ({"JAXCACHE_LIVE_TIERS": tier} if tier else {})
        command = [python, "-c", AT_ONCE + program + TELL]
        running.append(
            subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    deadline = time.monotonic() + 240
    while len(list(directory.glob("ready-*"))) < number and time.monotonic() < deadline:
        assert all(p.poll() is None for p in running)
        time.sleep(0.05)
    (directory / "go").touch()
    return [(p, *p.communicate(timeout=240)) for p in running]


def total(ended: list["tuple[subprocess.Popen[str], str, str]"], name: str) -> int:
    """The sum of a counter over the processes that came to their end."""
    documents = [json.loads(out.splitlines()[-1]) for p, out, _ in ended if p.returncode == 0]
    return sum(int(d["counts"].get(name, 0)) for d in documents)


@pytest.mark.parametrize("number", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_processes_on_a_cold_cache_compile_each_module_once(
    jax_python: str, tmp_path: Path, number: int
) -> None:
    ended = start_together(jax_python, tmp_path, number, PROGRAM)
    assert all(p.returncode == 0 for p, _, _ in ended), [err for _, _, err in ended]
    modules = len(entries(tmp_path / "cache"))
    assert total(ended, "misses") == total(ended, "written") == modules > 1
    assert total(ended, "hits_local") == (number - 1) * modules
    assert len({out.splitlines()[-1].partition('"counts"')[0] for _, out, _ in ended}) == 1


@pytest.mark.parametrize("number", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_a_holder_that_dies_stops_nobody(jax_python: str, tmp_path: Path, number: int) -> None:
    ended = start_together(jax_python, tmp_path, number, MURDER + PROGRAM)
    codes = sorted(p.returncode for p, _, _ in ended)
    assert codes == [-signal.SIGKILL] + [0] * (number - 1), [err for _, _, err in ended]
    assert entries(tmp_path / "cache", "first")
    assert os.path.exists(tmp_path / "dead")


def test_who_gets_a_lease_looks_for_the_entry_again(tmp_path: Path) -> None:
    """Its last owner may have written it since this process looked."""
    leases = Leases(str(tmp_path), 5.0, Counters())
    key = f"jit_first-{'a' * 64}"
    assert leases.take_or_wait(key, lambda: b"an entry", None) == b"an entry"
    assert leases.take_or_wait(key, lambda: None, None) is None


def test_machines_that_share_a_directory_compile_each_module_once(
    jax_python: str, tmp_path: Path
) -> None:
    ended = start_together(jax_python, tmp_path, 2, PROGRAM, tier=str(tmp_path / "shared"))
    assert all(p.returncode == 0 for p, _, _ in ended), [err for _, _, err in ended]
    modules = len(entries(tmp_path / "shared"))
    assert total(ended, "misses") == total(ended, "written") == modules > 1
    assert list((tmp_path / "shared" / ".jaxcache" / "live" / "leases").iterdir()) == []


def test_a_program_that_ends_gives_its_leases_back(jax_python: str, tmp_path: Path) -> None:
    """Also where that takes longer than the upload before it."""
    slow = """
import time
from jaxcache.live import loading
real = loading._delete
loading._delete = lambda *args: (time.sleep(0.5), real(*args))
"""
    ended = start_together(jax_python, tmp_path, 1, slow + PROGRAM, tier=str(tmp_path / "shared"))
    assert ended[0][0].returncode == 0, ended[0][2]
    assert list((tmp_path / "shared" / ".jaxcache" / "live" / "leases").iterdir()) == []


def test_machines_that_share_a_bucket_compile_each_module_once(
    jax_python: str, tmp_path: Path, bucket: str
) -> None:
    """The leases are objects that are put only if they are not there."""
    # No answer in time counts as none, and three processes at once keep a busy machine waiting.
    env = {"JAXCACHE_LIVE_TIMEOUT": "30s"}
    ended = start_together(jax_python, tmp_path, 3, PROGRAM, tier=bucket, **env)
    assert all(p.returncode == 0 for p, _, _ in ended), [err for _, _, err in ended]
    modules = len(entries(tmp_path / "machine-0"))
    assert total(ended, "misses") == total(ended, "written") == modules > 1
    assert total(ended, "troubles") == total(ended, "tier_errors") == 0
    names = [info.name for info in open_store(bucket).walk("")]
    assert len([n for n in names if n.endswith("-cache")]) == modules
    assert [n for n in names if "/leases/" in n] == []
