"""Uploads that become due when a program ends."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_server import CREDENTIALS, S3Server, make_bucket, run_s3_server

from live.conftest import PROGRAM, RunLive, entries
from live.machines import PORTABLE

pytestmark = pytest.mark.jax

#: Ends once the tier has told what it has. Python 3.12 starts no thread by then, and neither does
#: any other here.
ENDS = """
import atexit, os, sys, threading, time
layer = sys.modules["jaxcache.live.layer"].LAYER
tiers = [tier for d in layer.directories.values() for tier in d.tiers._tiers]
while any(tier._known is None for tier in tiers):
    time.sleep(0.01)

def start_none():
    def refuse(*_, **__):
        raise RuntimeError("can't create new thread at interpreter shutdown")
    threading._start_new_thread = threading._start_joinable_thread = refuse

atexit.register(start_none)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """An S3 server process."""
    with run_s3_server() as running:
        yield running


@pytest.fixture(params=["bucket", "directory"])
def empty_tier(request: pytest.FixtureRequest, server: S3Server, tmp_path: Path) -> dict[str, str]:
    """The environment of a program whose tier has nothing."""
    if request.param == "directory":
        return {"JAXCACHE_LIVE_TIERS": str(tmp_path / "shared")}
    name = f"empty-{uuid.uuid4().hex}"
    make_bucket(server.endpoint, name)
    place = {"JAXCACHE_LIVE_TIERS": f"s3://{name}/jax", "AWS_ENDPOINT_URL": server.endpoint}
    return CREDENTIALS | place


def waiting(cache: Path) -> set[str]:
    """The keys that wait for their upload."""
    spool = cache / ".jaxcache" / "live" / "spool"
    return {path.name for path in spool.rglob("jit_*")}


def test_a_full_cache_fills_a_tier_that_was_named_later(
    run_live: RunLive, empty_tier: dict[str, str], tmp_path: Path
) -> None:
    number = run_live(**PORTABLE)["written"]
    ran = run_live(PROGRAM + ENDS, JAXCACHE_LIVE_SUMMARY="1", **PORTABLE, **empty_tier)
    assert ran["hits_local"] == number > 1
    assert f"{number} uploaded" in ran.err
    assert waiting(tmp_path / "cache") == set()
    again = run_live(PROGRAM + ENDS, cache_dir=tmp_path / "other", **PORTABLE, **empty_tier)
    assert (again["hits_tier"], again["written"]) == (number, 0)


def test_what_the_end_leaves_goes_up_with_the_next_process(
    run_live: RunLive, empty_tier: dict[str, str], tmp_path: Path
) -> None:
    number = run_live(**PORTABLE)["written"]
    cut = {"JAXCACHE_LIVE_FLUSH": "0s", "JAXCACHE_LIVE_SUMMARY": "1"}
    ran = run_live(PROGRAM + ENDS, **cut, **PORTABLE, **empty_tier)
    assert f"{number} uploads left" in ran.err
    keys = {path.name.removesuffix("-cache") for path in entries(tmp_path / "cache")}
    assert waiting(tmp_path / "cache") == keys
    # Also one that uses none of them.
    other = "import jax; result = float(jax.jit(lambda x: x - 2)(3.0))"
    assert (
        f"{number + 1} uploaded"
        in run_live(other, JAXCACHE_LIVE_SUMMARY="1", **PORTABLE, **empty_tier).err
    )
    assert waiting(tmp_path / "cache") == set()


#: Lists a tier only when it is told to, and not at once.
LISTS_LATE = """
import threading, time
import jaxcache.live.tier as tier
is_due = threading.Event()
list_tier = tier.Tier.list

def list_late(self, *seconds):
    # At its end Python 3.12 has no other thread for it, so that the program itself waits.
    is_last = threading.current_thread() is threading.main_thread()
    if is_due.wait(0.5 if is_last else None):
        time.sleep(0.5)
        list_tier(self, *seconds)

tier.Tier.list = list_late
"""
AT_ITS_END = "\nimport atexit; atexit.register(is_due.set)\n"


def test_a_program_that_ends_before_its_tier_is_listed_fills_it(
    run_live: RunLive, empty_tier: dict[str, str], tmp_path: Path
) -> None:
    number = run_live(**PORTABLE)["written"]
    patient = {"JAXCACHE_LIVE_TIMEOUT": "60s", "JAXCACHE_LIVE_SUMMARY": "1"}
    ran = run_live(LISTS_LATE + PROGRAM + AT_ITS_END, **patient, **PORTABLE, **empty_tier)
    assert ran["hits_local"] == number > 1
    assert f"{number} uploaded" in ran.err
    assert waiting(tmp_path / "cache") == set()


def test_what_a_tier_lacks_goes_up_with_a_later_process_where_it_was_never_listed(
    run_live: RunLive, empty_tier: dict[str, str], tmp_path: Path
) -> None:
    number = run_live(**PORTABLE)["written"]
    run_live(LISTS_LATE + PROGRAM, JAXCACHE_LIVE_TIMEOUT="0.1s", **PORTABLE, **empty_tier)
    keys = {path.name.removesuffix("-cache") for path in entries(tmp_path / "cache")}
    assert waiting(tmp_path / "cache") == keys
    assert len(keys) == number
    run_live(PROGRAM + ENDS, **PORTABLE, **empty_tier)
    assert waiting(tmp_path / "cache") == set()
