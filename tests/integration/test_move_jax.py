"""What moves from one machine to another: JAX hits it there, as was said beforehand."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from acting import BOUND, UNBOUND, acts_on, says
from conftest import RunCli, find_jax_pythons, has_modules, jax_version
from object_server import Proxy
from plain_jax import WORKLOAD, run_workload

pytestmark = pytest.mark.jax


def entries(cache: Path) -> set[str]:
    """The names of entries; JAX 0.4.30 writes none with ``-cache`` at its end."""
    return {p.name for p in cache.glob("jit_*") if not p.name.endswith("-atime")}


# A JAX that works on a bucket directly, and ``jaxcache``: each reads what the other has put.


#: JAX 0.4.36 to 0.10 hash the directory into the key otherwise.
ANYWHERE = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}


@pytest.fixture
def python(s3: Proxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Python whose JAX opens ``s3://``, through the proxy that the environment names."""
    needed = ("etils.epath", "fsspec", "s3fs")
    found = next((p for p in find_jax_pythons() if has_modules(p, *needed)), None)
    if found is None:
        pytest.skip("no Python with jax, etils[epath], fsspec and s3fs")
    monkeypatch.setenv("AWS_DEFAULT_REGION", os.environ["AWS_REGION"])
    assert s3.endpoint == os.environ["AWS_ENDPOINT_URL"]
    return found


@pytest.mark.parametrize("sealed", [False, True], ids=["as-written", "sealed"])
def test_jax_hits_what_was_pushed(
    run_cli: RunCli, python: str, bucket: str, tmp_path: Path, sealed: bool
) -> None:
    cold = run_workload(python, tmp_path / "local", tmp_path, **ANYWHERE)
    assert cold["cache_misses"] >= 2
    assert run_cli("push", bucket, "-C", tmp_path / "local").returncode == 0
    if sealed:
        assert run_cli("seal", "-C", bucket).returncode == 0
    warm = run_workload(python, bucket, tmp_path, **ANYWHERE)
    assert (warm["cache_hits"], warm["cache_misses"]) == (cold["cache_misses"], 0)
    assert warm["result"] == cold["result"]


def test_what_jax_writes_there_is_a_cache_like_any(
    run_cli: RunCli, python: str, bucket: str, tmp_path: Path
) -> None:
    cold = run_workload(python, bucket, tmp_path, **ANYWHERE)
    listed = json.loads(run_cli("ls", "-C", bucket, "--json").stdout)
    assert len(listed["entries"]) == cold["cache_misses"] >= 2
    assert not listed["problems"]
    checked = json.loads(run_cli("verify", "-C", bucket, "--json").stdout)
    assert checked["ok"] == checked["checked"] == cold["cache_misses"]
    assert run_cli("pull", bucket, "-C", tmp_path / "local").returncode == 0
    warm = run_workload(python, tmp_path / "local", tmp_path, **ANYWHERE)
    assert (warm["cache_hits"], warm["cache_misses"]) == (cold["cache_misses"], 0)


# What import says beforehand is what JAX then does.


def test_the_outlook_comes_true(
    run_cli: RunCli, each_jax_python: str, bucket: str, tmp_path: Path
) -> None:
    """What ``push`` put into a bucket, ``pull`` brings there as well."""
    first, second, bundle = tmp_path / "first", tmp_path / "second", tmp_path / "b.jxb"
    cold = run_workload(each_jax_python, first, tmp_path)
    assert cold["cache_hits"] == 0
    names = entries(first)
    compiles = len(names)
    assert compiles >= 2
    assert run_cli("export", bundle, "-C", first).returncode == 0
    assert run_cli("push", bucket, "-C", first).returncode == 0
    shutil.rmtree(first)

    def bring(target: Path, *options: str, **env: str) -> Any:
        words = ("import", bundle, "-C", target, "--python", each_jax_python, "--json")
        done = run_cli(*words, *options, env=env)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr

    def check_hits(target: Path) -> None:
        counted = run_workload(each_jax_python, target, tmp_path)
        assert (counted["cache_hits"], counted["cache_misses"]) == (compiles, 0)
        assert counted["result"] == cold["result"]

    told = bring(second)
    bound = (0, 4, 36) <= jax_version(each_jax_python) < (0, 11)
    assert told["outlook"] == {  # plain JAX recorded neither its settings nor its devices
        "hit": 0,
        "miss": compiles if bound else 0,
        "unknown": 0 if bound else compiles,
    }
    moved = run_workload(each_jax_python, second, tmp_path)
    assert moved["cache_hits"] == told["outlook"]["unknown"]
    if bound:
        assert {e["restore_to"] for e in told["entries"]} == {str(first)}
        refused = bring(tmp_path / "third", "--require-compatible")
        assert f"contain the cache's path, {first}. Use that path" in refused
        assert not (tmp_path / "third").exists()
    # A flag that is in keys, and one that is not.
    fast, dump = "--xla_cpu_enable_fast_math=true", "--xla_dump_to="
    refused = bring(first, "--require-compatible", XLA_FLAGS=fast)
    assert "compiled without --xla_cpu_enable_fast_math=1, which is set here" in refused
    told = bring(first, "--require-compatible", XLA_FLAGS=dump)
    assert told["outlook"]["unknown"] == compiles
    check_hits(first)
    shutil.rmtree(first)
    assert run_cli("pull", bucket, "-C", first).returncode == 0
    assert entries(first) == names
    check_hits(first)


@acts_on(
    "set …=none before the program starts, or start it with jaxcache run --portable", jax=BOUND
)
@acts_on("as things are set now, … will hit", ". … will miss either way", jax=BOUND)
@acts_on("…: then … … will hit ……; ", "…: without it … … will miss …", jax=BOUND)
@acts_on("…: without it … of … will miss", jax=BOUND)
@acts_on("it is unknown whether … will hit ……: …", jax=UNBOUND)
def test_portable_entries_hit_on_a_condition(
    run_cli: RunCli, each_jax_python: str, tmp_path: Path
) -> None:
    """Entries filled with portable keys hit where such keys are asked for, and only there."""
    first, bundle = tmp_path / "first", tmp_path / "b.jxb"
    run_workload(each_jax_python, first, tmp_path)
    bound = len(list(first.glob("*-cache")))
    run_workload(each_jax_python, first, tmp_path, **ANYWHERE)
    portable = len(list(first.glob("*-cache"))) - bound
    assert run_cli("export", bundle, "-C", first).returncode == 0
    pushed = run_cli("push", tmp_path / "pushed", "-C", first)
    for place, setting, told, hits in (
        ("plain", {}, (0, bound, portable), 0),
        ("portable", ANYWHERE, (0, bound, portable), portable),
    ):
        target = tmp_path / place
        words = ("import", bundle, "-C", target, "--python", each_jax_python)
        done = run_cli(*words, "--dry-run", env=setting)
        assert done.returncode == 0, done.stderr
        document = json.loads(run_cli(*words, "--json", env=setting).stdout)
        moved = run_workload(each_jax_python, target, tmp_path, **setting)
        if portable == 0:  # the path is in no key, however the cache was filled
            assert f"it is unknown whether each of {bound} entries will hit" in done.stderr
            says(done.stderr)
            assert (document["outlook"]["unknown"], moved["cache_hits"]) == (bound, bound)
            assert "--portable" not in pushed.stderr
            continue
        assert tuple(document["outlook"].values()) == told
        assert moved["cache_hits"] == hits
        whole = bound + portable
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        assert all(why for _, outlook, _, why in rows if outlook in ("miss", "if set"))
        reason = "needs JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none"
        missed = sum((outlook, why) == ("if set", reason) for _, outlook, _, why in rows)
        assert missed == (portable if place == "plain" else 0)
        assert says(pushed.stderr, f": without it {portable} of {whole} will miss at another path")
        if place == "portable":
            assert says(done.stderr, f", {portable} unknown (who filled it did not")
        else:
            # What must be set comes first, then what hits with it and without.
            then = f"then {portable} of {whole} will hit here with "
            assert says(done.stderr, f"{reason[6:]} before …: {then}…; …. {bound} will miss either")
            restored = run_cli("ci", "restore", bundle, "-C", tmp_path / "restored", *words[4:])
            assert says(restored.stderr, f"without it {portable} of {whole} will miss")
            assert run_workload(each_jax_python, tmp_path / "restored", tmp_path)["cache_hits"] == 0
            command = ("--", each_jax_python, WORKLOAD, "bundle", tmp_path / "restored")
            ran = run_cli("run", "--portable", "--json", "-C", tmp_path / "restored", *command)
            assert json.loads(ran.stdout)["summary"]["hits"] >= portable
