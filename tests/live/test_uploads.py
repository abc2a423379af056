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


#: Uploads nothing, as where the queue is full.
IDLE = """
import jaxcache.live.uploads as uploads
uploads.Uploads._offer = lambda *_: None
"""


def test_what_the_end_leaves_goes_up_with_the_next_process(
    run_live: RunLive, empty_tier: dict[str, str], tmp_path: Path
) -> None:
    number = run_live(IDLE + PROGRAM + ENDS, **PORTABLE, **empty_tier)["written"]
    keys = {path.name.removesuffix("-cache") for path in entries(tmp_path / "cache")}
    assert waiting(tmp_path / "cache") == keys
    # Also one that uses none of them.
    other = "import sys, jax; result = float(jax.jit(lambda x: x - 2)(3.0))"
    ran = run_live(other + ENDS, JAXCACHE_LIVE_SUMMARY="1", **PORTABLE, **empty_tier)
    assert f"{number + 1} uploaded" in ran.err
    assert waiting(tmp_path / "cache") == set()
    again = run_live(PROGRAM + ENDS, cache_dir=tmp_path / "other", **PORTABLE, **empty_tier)
    assert (again["hits_tier"], again["written"]) == (number, 0)
