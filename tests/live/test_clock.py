"""A program whose clock is wrong, or jumps while it runs: what it leaves is as with a right one."""

from pathlib import Path

import pytest
from conftest import RunCli

from live.conftest import PROGRAM, RunLive, entries

pytestmark = pytest.mark.jax

#: The first lines of a program: how far its clock is off, in years, one after the other.
CLOCK = """
import itertools, time
_years = itertools.cycle(%r)
_real_time_ns = time.time_ns
time.time_ns = lambda: max(0, _real_time_ns() + int(next(_years) * 365.25 * 86_400e9))
time.time = lambda: time.time_ns() / 1e9
"""
#: A module that only this program has.
THIRD = """
@jax.jit
def third(x):
    return x * %d
third(x)
"""


def test_a_wrong_clock_removes_and_accuses_nothing(
    run_live: RunLive, run_cli: RunCli, tmp_path: Path
) -> None:
    settings = {
        "JAXCACHE_LIVE_MAX_SIZE": "1GB",
        "JAXCACHE_LIVE_SINGLE_FLIGHT": "2s",
        "JAXCACHE_LIVE_TIERS": str(tmp_path / "tier"),
        "JAXCACHE_LIVE_FLUSH": "60s",
    }
    first = run_live(**settings)
    first_names = entries(tmp_path / "cache")
    for number, years in enumerate([(-10,), (10,), (5, -5), (0, -60)], 2):
        before = {path.name for path in entries(tmp_path / "cache")}
        ran = run_live(CLOCK % (years,) + PROGRAM + THIRD % number, **settings)
        assert ran.result == first.result
        assert (ran["hits_local"], ran["misses"]) == (len(first_names), 1)
        assert (ran["troubles"], ran["wait_seconds"]) == (0, 0)
        names = {path.name for path in entries(tmp_path / "cache")}
        assert len(names - before) == 1
        assert names > before
    again = run_live(PROGRAM + THIRD % number, **settings)
    assert (again["misses"], again["rotten"], again["died_loading"]) == (0, 0, 0)
    assert {path.name for path in entries(tmp_path / "tier")} == names
    done = run_cli("verify", "--fix", "--grace", "0s", "-C", tmp_path / "cache")
    assert f"{len(names)} match their checksum" in done.stderr
    assert {path.name for path in entries(tmp_path / "cache")} == names
