"""A JAX that works on a bucket directly, and ``jaxcache``: each reads what the other has put."""

import json
import os
from pathlib import Path

import pytest
from conftest import RunCli, find_jax_pythons, has_modules
from object_server import Proxy
from test_bundle_hits import run_jax

#: JAX 0.4.36 to 0.10 hash the directory into the key otherwise.
ANYWHERE = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}


def _reaches_buckets(python: str) -> bool:
    return has_modules(python, "etils.epath", "fsspec", "s3fs")


@pytest.fixture
def python(s3: Proxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Python whose JAX opens ``s3://``, through the proxy that the environment names."""
    found = next(filter(_reaches_buckets, find_jax_pythons()), None)
    if found is None:
        pytest.skip("no Python with jax, etils[epath], fsspec and s3fs")
    monkeypatch.setenv("AWS_DEFAULT_REGION", os.environ["AWS_REGION"])
    assert s3.endpoint == os.environ["AWS_ENDPOINT_URL"]
    return found


@pytest.mark.jax
@pytest.mark.parametrize("sealed", [False, True], ids=["as-written", "sealed"])
def test_jax_hits_what_was_pushed(
    run_cli: RunCli, python: str, bucket: str, tmp_path: Path, sealed: bool
) -> None:
    cold = run_jax(python, tmp_path / "local", tmp_path, **ANYWHERE)
    assert cold["cache_misses"] >= 2
    assert run_cli("push", bucket, "-C", tmp_path / "local").returncode == 0
    if sealed:
        assert run_cli("seal", "-C", bucket).returncode == 0
    warm = run_jax(python, bucket, tmp_path, **ANYWHERE)
    assert (warm["cache_hits"], warm["cache_misses"]) == (cold["cache_misses"], 0)
    assert warm["result"] == cold["result"]


@pytest.mark.jax
def test_what_jax_writes_there_is_a_cache_like_any(
    run_cli: RunCli, python: str, bucket: str, tmp_path: Path
) -> None:
    cold = run_jax(python, bucket, tmp_path, **ANYWHERE)
    listed = json.loads(run_cli("ls", "-C", bucket, "--json").stdout)
    assert len(listed["entries"]) == cold["cache_misses"] >= 2
    assert not listed["problems"]
    checked = json.loads(run_cli("verify", "-C", bucket, "--json").stdout)
    assert checked["ok"] == checked["checked"] == cold["cache_misses"]
    assert run_cli("pull", bucket, "-C", tmp_path / "local").returncode == 0
    warm = run_jax(python, tmp_path / "local", tmp_path, **ANYWHERE)
    assert (warm["cache_hits"], warm["cache_misses"]) == (cold["cache_misses"], 0)
