"""The steps of a CI job around a real JAX: the key tells hits, and the cache keeps what is used."""

import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from acting import act, acts_on, says
from conftest import RunCli, jax_version
from plain_jax import run_workload

from jaxcache.cache.ledger.record import HIT, Event
from jaxcache.cache.ledger.write import append
from jaxcache.store.local import LocalStore

NO_XLA_CACHES = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}

pytestmark = pytest.mark.jax


def ci(run_cli: RunCli, *args: str | Path, env: dict[str, str] | None = None) -> Any:
    done = run_cli("ci", *args, "--json", env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_equal_keys_are_hits_and_others_are_not(
    run_cli: RunCli, each_jax_python: str, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"

    def key(cache: Path, env: dict[str, str] | None = None) -> Any:
        return ci(run_cli, "key", "-C", cache, "--python", each_jax_python, env=env)

    here = key(first)["key"]
    assert key(first)["key"] == here, "it names the environment, not the moment"
    words = ("ci", "key", "-C", "first", "--python", each_jax_python)
    assert run_cli(*words, cwd=tmp_path).stdout.strip() == here, "as warm -C names it"
    compiled = run_workload(each_jax_python, first, tmp_path)["cache_misses"]
    assert compiled
    shutil.copytree(first, second)
    digests = [key(cache)["components"]["environment_digest"] for cache in (first, second)]
    hits = run_workload(each_jax_python, second, tmp_path)["cache_hits"]
    equal = digests[0] == digests[1]
    assert (hits == compiled, hits == 0) == (equal, not equal)
    assert key(first, NO_XLA_CACHES)["components"]["cache_dir_in_key"] is None
    free = [key(cache, NO_XLA_CACHES)["key"] for cache in (first, second)]
    assert free[0] == free[1]


def test_a_key_from_precise_to_loose(run_cli: RunCli, jax_python: str, tmp_path: Path) -> None:
    source = tmp_path / "src" / "deep"
    source.mkdir(parents=True)
    (source / "model.py").write_text("x = 1\n")
    (source / "model.txt").write_text("1\n")
    globs = ("--hash-files", "src/**/*.py", "--prefix", "my job")
    command = ("ci", "key", "-C", tmp_path / "cache", "--python", jax_python, *globs)
    key = run_cli(*command).stdout.strip()
    loose = run_cli(*command, "--restore-keys").stdout.splitlines()
    assert key.startswith("my_job-v2-cpu-")
    assert len(loose) == 2
    assert all(key.startswith(k) and k.endswith("-") for k in loose)
    assert len(loose[0]) > len(loose[1])
    (source / "model.txt").write_text("2\n")
    assert run_cli(*command).stdout.strip() == key
    (source / "model.py").write_text("x = 2\n")
    changed = run_cli(*command).stdout.strip()
    assert (changed != key, changed.startswith(loose[0])) == (True, True)
    env = {"GITHUB_OUTPUT": str(tmp_path / "output")}
    run_cli(*command, env=env)
    assert "\n".join(loose) in (tmp_path / "output").read_text()
    none = run_cli("ci", "key", "--python", jax_python, "--hash-files", "nothing/*.py")
    assert (none.returncode, "[no-match]" in none.stderr) == (2, True)


def test_three_jobs(run_cli: RunCli, each_jax_python: str, tmp_path: Path) -> None:
    cache, bundle = tmp_path / "cache", tmp_path / "cache.jxb"
    restore = ("restore", bundle, "-C", cache, "--python", each_jax_python)
    assert ci(run_cli, *restore)["cache_hit"] is False
    cold = run_workload(each_jax_python, cache, tmp_path)
    told = ci(run_cli, "save", bundle, "-C", cache)
    assert (told["saved"], told["entries"]) == (True, cold["cache_misses"])

    shutil.rmtree(cache)
    assert ci(run_cli, *restore)["entries"] == cold["cache_misses"]
    warm = run_workload(each_jax_python, cache, tmp_path)
    assert (warm["cache_misses"], warm["result"]) == (0, cold["result"])
    records_reads = json.loads((cache / ".jaxcache" / "ci.json").read_text())["records_reads"]
    told = ci(run_cli, "save", bundle, "-C", cache)
    assert (told["saved"], told["new"]) == (False, [])
    if records_reads:
        assert len(told["used"]) == cold["cache_misses"]

    shutil.rmtree(cache)
    ci(run_cli, *restore)
    script = "import jax, sys; jax.jit(lambda x: x * 3)(2.0).block_until_ready()"
    low = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = run_cli("run", "-C", cache, "--", each_jax_python, "-c", script, env=low)
    assert done.returncode == 0, done.stderr
    told = ci(run_cli, "save", bundle, "-C", cache)
    assert (told["saved"], len(told["new"])) == (True, 1)
    if records_reads:
        assert (len(told["unused"]), told["written"]) == (cold["cache_misses"], 1)


@acts_on(
    "the CPU, as --xla_cpu_max_isa in XLA_FLAGS may limit it, is part of the key: these never hit"
)
def test_each_kind_of_cpu_has_its_own_bundle_and_doctor_names_the_wrong_one(
    run_cli: RunCli, each_jax_python: str, tmp_path: Path
) -> None:
    if jax_version(each_jax_python) < (0, 8, 3) or platform.machine() != "x86_64":
        pytest.skip("needs a CPU whose features XLA limits, in keys")
    cache, store = tmp_path / "cache", tmp_path / "store"
    here = ("-C", cache, "--python", each_jax_python)
    kinds = {isa: {"XLA_FLAGS": f"--xla_cpu_max_isa={isa}"} for isa in ("AVX", "AVX2")}
    bundles: dict[str, Path] = {}
    for isa, env in kinds.items():
        bundles[isa] = store / f"{ci(run_cli, 'key', *here, env=env)['key']}.jxb"
        assert ci(run_cli, "restore", bundles[isa], *here, env=env)["cache_hit"] is False
        compiled = run_workload(each_jax_python, cache, tmp_path, **env)["cache_misses"]
        assert ci(run_cli, "save", bundles[isa], "-C", cache, env=env)["entries"] == compiled
        shutil.rmtree(cache)

    for isa, other in (("AVX", "AVX2"), ("AVX2", "AVX")):
        wrong = ci(run_cli, "restore", bundles[other], *here, env=kinds[isa])
        assert (wrong["entries"], wrong["found"]) == (0, compiled)
        assert "CPU" in wrong["misses"][0]["reason"]
        assert run_cli("import", bundles[other], "-C", cache).returncode == 0
        examined = run_cli("doctor", "--json", *here, env=kinds[isa])
        found = {f["trap"]: f for f in json.loads(examined.stdout)["findings"]}["cpu-features"]
        word = "with" if other == "AVX2" else "without"
        assert found["seen"].endswith(f", {word} avx2, fma"), found
        says(found["cost"])
        judged = run_workload(each_jax_python, cache, tmp_path, **kinds[isa])
        assert (judged["cache_hits"], judged["cache_misses"]) == (0, compiled)
        shutil.rmtree(cache)

        key = ci(run_cli, "key", *here, env=kinds[isa])["key"]
        restored = ci(run_cli, "restore", store / f"{key}.jxb", *here, env=kinds[isa])
        assert restored["entries"] == compiled
        examined = run_cli("doctor", "--json", *here, env=kinds[isa])
        assert "cpu-features" not in examined.stdout
        judged = run_workload(each_jax_python, cache, tmp_path, **kinds[isa])
        assert (judged["cache_hits"], judged["cache_misses"]) == (compiled, 0)
        shutil.rmtree(cache)


def entries(cache: Path) -> set[str]:
    files = (p.name for p in cache.iterdir() if p.is_file() and p.name != "CACHEDIR.TAG")
    return {n for n in files if not n.startswith(".") and not n.endswith("-atime")}


def test_only_what_fits_is_restored(
    run_cli: RunCli, each_jax_python: str, corpus: Path, tmp_path: Path
) -> None:
    mixed, cache = tmp_path / "mixed", tmp_path / "cache"
    run_workload(each_jax_python, cache, tmp_path)
    mine = entries(cache)
    shutil.move(cache, mixed)
    for directory in ("0.4.38-cpu-zlib", "0.12.0.1-cuda13-h200-zstd"):
        for entry in (corpus / directory).iterdir():
            shutil.copy(entry, mixed)
    foreign = len(entries(mixed)) - len(mine)
    told = ci(run_cli, "restore", mixed, "-C", cache, "--python", each_jax_python)
    if told["outlook"].get("unknown"):
        pytest.skip("a JAX that does not say in its entries what wrote them")
    assert entries(cache) == mine
    assert sum(m["entries"] for m in told["misses"]) == foreign


@acts_on("If other jobs use them, give each environment its own bundle: $(jaxcache ci key).jxb")
def test_a_save_replaces_entries_that_restore_left(
    run_cli: RunCli, jax_python: str, corpus: Path, tmp_path: Path
) -> None:
    """After an upgrade, or in another directory, nothing of the bundle can hit."""
    bundle, cache = tmp_path / "cache.jxb", tmp_path / "cache"
    old = corpus / "0.4.38-cpu-zlib"
    assert run_cli("export", bundle, "-C", old).returncode == 0
    told = ci(run_cli, "restore", bundle, "-C", cache, "--python", jax_python)
    assert (told["entries"], told["found"]) == (0, len(entries(old)))
    compiled = run_workload(jax_python, cache, tmp_path)["cache_misses"]
    dry = ci(run_cli, "save", bundle, "-C", cache, "--dry-run")
    assert {d["reason"] for d in dry["dropped"]} == {"cannot-hit"}
    done = run_cli("ci", "save", bundle, "-C", cache)
    assert done.returncode == 0, done.stderr
    number = len(entries(old))
    assert f"also held {number} entries that cannot hit here; they are not kept" in done.stderr
    says(done.stderr)
    names = []
    for env in ({}, {"JAX_ENABLE_X64": "1"}):
        path = f"{Path(jax_python).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        named = act(done.stderr, tmp_path, until=").jxb", PATH=path, **env)
        assert named.returncode == 0, named
        names.append(named.stdout)
    assert names[0] != names[1]
    shutil.rmtree(cache)
    told = ci(run_cli, "restore", bundle, "-C", cache, "--python", jax_python)
    assert (told["entries"], told["found"]) == (compiled, compiled)


def test_uses_elsewhere_of_entries_that_import_brought_saved_nothing_here(
    run_cli: RunCli, jax_python: str, corpus: Path, tmp_path: Path
) -> None:
    bundle, cache = tmp_path / "cache.jxb", tmp_path / "cache"
    other = Path(shutil.copytree(corpus / "0.4.38-cpu-zlib", tmp_path / "other"))
    (key, *_) = sorted(entries(other))
    hit = Event(key.removesuffix("-cache"), HIT, 1, {"timed": 1, "saved_seconds": 6.2})
    append(LocalStore(other), [hit])
    assert run_cli("export", bundle, "-C", other).returncode == 0
    ci(run_cli, "restore", bundle, "-C", cache, "--python", jax_python)
    assert run_cli("import", bundle, "-C", cache).returncode == 0
    done = run_cli("ci", "save", bundle, "-C", cache, "--dry-run")
    number = len(entries(other))
    used = f"of {number} entries from before it, the job used 0, by the files' access times; "
    assert f"{used}the use of {number} is unknown" in done.stderr
    assert ci(run_cli, "save", bundle, "-C", cache, "--dry-run")["saved_seconds"] == 0
