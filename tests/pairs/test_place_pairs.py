"""Features where the program or the cache is elsewhere: notebooks, buckets."""

from pathlib import Path

import pytest
from conftest import has_modules, jax_version

from tests.pairs.conftest import ALL_HITS, Pair, keys
from tools.oracle.__main__ import write_notebook
from tools.oracle.world import MODULES

pytestmark = pytest.mark.jax


def test_a_notebook_fills_a_tier_and_is_filled_by_it(pair: Pair) -> None:
    if not has_modules(pair.world.python, "nbconvert", "ipykernel"):
        pytest.skip("this Python has no nbconvert")
    notebook = write_notebook(pair.world, "")
    live = ("--live", "--tier", pair.directory / "tier")
    pair.run("warm", *pair.python, *live, notebook)
    assert len(keys(pair.directory / "tier")) == MODULES
    pair.use("second")
    pair.run("warm", *pair.python, *live, "--fail-on-miss", notebook)
    assert pair.plain() == ALL_HITS


def test_a_target_is_checked_against_a_bucket(pair: Pair, bucket: str, tmp_path: Path) -> None:
    if jax_version(pair.world.python) < (0, 11):
        pytest.skip("a topology can be compiled for since JAX 0.11")
    profile = tmp_path / "host.json"
    pair.run("target", "capture", *pair.python, profile)
    pair.run("warm", *pair.python, "--target", profile, "program.py")
    pair.run("push", bucket)
    local = pair.run_json("target", "check", *pair.python, profile)
    remote = pair.run_json("target", "check", *pair.python, "-C", bucket, profile)
    assert local["looked_up"] == MODULES
    assert {**remote, "cache_dir": None} == {**local, "cache_dir": None}
