"""Pruning beside real JAX: with its own cap, and while it writes."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, clean_environment
from plain_jax import run_plain
from processes import sh

pytestmark = pytest.mark.jax
#: Compiles one program per length, and prints how many hits and writes JAX counted.
PROGRAM = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
for length in map(int, sys.argv[1:]):
    x = np.ones((length, length), np.float32)
    jax.jit(lambda x: jnp.sort(jnp.tanh(x) @ x))(x).block_until_ready()
print(json.dumps({name: sum(e.endswith(name) for e in events) for name in
                  ("cache_hits", "cache_misses")}))
"""
LENGTHS = tuple(range(3, 9))


def environment(cache: Path, cap: int) -> dict[str, str]:
    env = clean_environment(cache.parent) | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(cap),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
        # Any trouble with the cache ends the program instead of being warned about.
        "JAX_RAISE_PERSISTENT_CACHE_ERRORS": "1",
        "PYTHONWARNINGS": "default",
    }
    del env["PYTHONPATH"]
    return env


def run_jax(python: str, cache: Path, *, cap: int) -> dict[str, int]:
    done = run_plain([python, "-c", PROGRAM, *map(str, LENGTHS)], env=environment(cache, cap))
    assert "persistent compilation cache" not in done.stderr, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def entries(cache: Path) -> set[str]:
    return {p.name.removesuffix("-cache") for p in cache.glob("*-cache")}


def atimes(cache: Path) -> set[str]:
    return {p.name.removesuffix("-atime") for p in cache.glob("*-atime")}


@pytest.mark.parametrize("policy", ["lru", pytest.param("cost", marks=pytest.mark.slow)])
def test_jax_with_a_cap_goes_on_where_prune_stopped(
    run_cli: RunCli, tmp_path: Path, each_jax_python: str, policy: str
) -> None:
    cache, roomy = tmp_path / "cache", 50_000_000
    run_jax(each_jax_python, cache, cap=roomy)
    everything = entries(cache)
    if cache.is_dir() and not atimes(cache):
        pytest.skip("JAX before 0.4.31 keeps no -atime files")
    assert len(everything) >= len(LENGTHS)
    full = sum(p.stat().st_size for p in cache.glob("*-cache"))

    limits = ("--max-size", str(full // 2), "--policy", policy, "--grace", "0s")
    done = run_cli("prune", "-C", cache, *limits, "--yes", "--json")
    assert done.returncode == 0, done.stderr
    kept = entries(cache)
    assert {r["key"] for r in json.loads(done.stdout)["removed"]} == everything - kept
    assert atimes(cache) == kept
    assert 0 < len(kept) < len(everything)

    # A roomy cap: what was kept is read, what was dropped is written again.
    counted = run_jax(each_jax_python, cache, cap=roomy)
    assert counted == {"cache_hits": len(kept), "cache_misses": len(everything - kept)}
    assert entries(cache) == atimes(cache) == everything

    # A cap that JAX itself must evict for, right after another prune below it.
    tight = full * 3 // 4
    args = ("prune", "-C", cache, "--max-size", str(tight // 2), "--grace", "0s", "--yes")
    assert run_cli(*args).returncode == 0
    run_jax(each_jax_python, cache, cap=tight)
    assert entries(cache) == atimes(cache)
    assert sum(p.stat().st_size for p in cache.glob("*-cache")) <= tight


@pytest.mark.parametrize("cap", [50_000_000, pytest.param(-1, marks=pytest.mark.slow)])
def test_two_prunes_and_a_writer_at_once(tmp_path: Path, jax_python: str, cap: int) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    writer = subprocess.Popen(
        [jax_python, "-c", PROGRAM, *map(str, range(3, 14))],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(cache, cap),
    )

    def prune_on_and_on() -> list["subprocess.CompletedProcess[str]"]:
        words = ["--max-entries", "4", "--policy", "lru", "--grace", "0s", "--yes", "--json"]
        command = [sys.executable, "-m", "jaxcache", "prune", "-C", str(cache), *words]
        runs = []
        while writer.poll() is None:
            done = sh(command, stdin=subprocess.DEVNULL, env=clean_environment(tmp_path))
            runs.append(done)
        return runs

    with ThreadPoolExecutor(2) as pool:
        loops = [pool.submit(prune_on_and_on) for _ in range(2)]
        _, errors = writer.communicate(timeout=300)
        runs = [run for loop in loops for run in loop.result()]
    assert (writer.returncode, "persistent compilation cache" in errors) == (0, False), errors
    assert sum(len(json.loads(r.stdout)["removed"]) for r in runs) > 0
    for run in runs:
        assert run.returncode == 0, run.stderr
        assert not [s for s in json.loads(run.stdout)["spared"] if s["why"] == "failed"]
    if cap > 0:
        assert entries(cache) == atimes(cache)
    else:
        assert atimes(cache) == set()
    assert all(p.stat().st_size for p in cache.glob("*-cache"))
    assert not [n for n in os.listdir(cache) if n.startswith((".jaxcache-tmp-", "_temp_"))]


# A hit that only the ledger has seen is a use to every command.


TWO_DAYS_NS = 2 * 86_400 * 10**9


def test_a_hit_in_the_ledger_is_the_last_use(run_cli: RunCli, step_cache: Path) -> None:
    def document(*args: str) -> Any:
        done = run_cli(*args, "-C", step_cache, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    for path in step_cache.glob("*-cache"):
        then_ns = path.stat().st_mtime_ns - TWO_DAYS_NS
        os.utime(path, ns=(then_ns, then_ns))
    entries = document("ls")["entries"]
    assert entries and {e["last_used_from"] for e in entries} == {"ledger"}
    assert document("ls", "--filter", "unused>20h")["entries"] == []
    assert document("prune", "--unused-for", "20h", "--dry-run")["removed"] == []
