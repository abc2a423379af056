"""Tiers that are asked while jax is imported."""

import shutil
from pathlib import Path

import pytest

from live.conftest import PROGRAM, RunLive, entries

pytestmark = pytest.mark.jax
#: As jaxcache.pth does, where jaxcache is installed.
HOOK = """
import os, sys, time
from jaxcache.injected import hook
hook.install()
"""
#: Waits until the entries of the last run are here; JAX starts no backend meanwhile.
WAIT = """
import jax
from jaxcache.live import layer as layers
end = time.monotonic() + 120
def fetched():
    return layers._early.counters["prefetched"]
while fetched() < int(os.environ["NUMBER"]) and time.monotonic() < end:
    time.sleep(0.01)
first_layer = layers._early
"""
#: Whether the layer at work is the one that began to fetch.
SAME = """
result.append(sys.modules["jaxcache.live.layer"].LAYER is first_layer)
"""


@pytest.fixture
def tier(run_live: RunLive, tmp_path: Path) -> dict[str, str]:
    """The environment of a machine whose directory is empty, and whose tier is not."""
    shared = tmp_path / "tier"
    env = {"JAXCACHE_LIVE_TIERS": str(shared), "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
    written = run_live(**env)["written"]
    shutil.rmtree(tmp_path / "cache")
    assert written == len(entries(shared))
    return env | {"NUMBER": str(written)}


def test_the_entries_of_the_last_run_come_before_a_backend_is_there(
    run_live: RunLive, tier: dict[str, str]
) -> None:
    ran = run_live(HOOK + WAIT + PROGRAM + SAME, **tier)
    number = int(tier["NUMBER"])
    assert (ran["prefetched"], ran["hits_tier"], ran["misses"]) == (number, number, 0)
    assert ran.result[-1]
    assert ran.err == ""


#: Another JAX than the one whose versions were read before it was imported.
OTHER_VERSION = (
    HOOK
    + """
import importlib.metadata
importlib.metadata.version = lambda name: "0.0.1"
import jax
from jaxcache.live import layer as layers
first_layer = layers._early
"""
)
#: The tier has refused this process while jax was imported.
REFUSED = (
    HOOK
    + """
import jax
from jaxcache.live import layer as layers
first_layer = layers._early
for directory in first_layer.directories.values():
    directory.tiers._tiers[0].reading.stop()
"""
)


@pytest.mark.parametrize("begin", [OTHER_VERSION, REFUSED], ids=["another JAX", "refused"])
def test_a_new_layer_asks_where_the_first_cannot_go_on(
    run_live: RunLive, tier: dict[str, str], begin: str
) -> None:
    ran = run_live(begin + PROGRAM + SAME, **tier)
    assert ran.result[-1] is False
    assert ran["misses"] == 0
    assert ran["hits_tier"] + ran["hits_local"] == int(tier["NUMBER"])


def test_nothing_begins_where_no_tier_is_named(run_live: RunLive) -> None:
    ran = run_live(
        HOOK + "import jax\nfrom jaxcache.live import layer as layers\n"
        "first_layer = layers._early\nassert first_layer is None\n" + PROGRAM
    )
    assert ran["written"] > 0
