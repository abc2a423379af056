"""Tiers behind the local directory: a real bucket, shared directories, and servers that fail."""

import contextlib
import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import CAN_GIVE_AWAY, GiveAway, RunCli
from object_server import Fault, Proxy, S3Server, Seen, run_proxy
from ways import told

from jaxcache.cache import trust
from jaxcache.cache.ledger.record import COMPILE, Event
from jaxcache.cache.ledger.write import append
from jaxcache.live.frame import decode
from jaxcache.store import open_store
from live.conftest import DEFINITIONS, PORTABLE, PROGRAM, RunLive, entries

pytestmark = pytest.mark.jax

#: Leaves everything to ``enable()``.
FREE = {"JAXCACHE_LIVE": None, "JAX_COMPILATION_CACHE_DIR": None}


#: Three machines are three directories of one process; ``on`` goes to another one.
MACHINES = f"""
{DEFINITIONS}
import os, sys, time
import jaxcache

def on(machine, tiers, seconds=5.0, **settings):
    jaxcache.enable(machine, tiers=tiers, portable=True, flush=seconds, **settings)
    layer = sys.modules["jaxcache.live.layer"].LAYER
    layer.counters.reset()
    jax.clear_caches()
    x = jax.device_put(jnp.asarray([[0.5, 1.5], [2.5, 3.5]]))
    values = [first(x).tolist(), second(x).tolist()]
    hits = layer.counters["hits_tier"] + layer.counters["hits_local"]
    return dict(layer.counters.snapshot(), values=values, hits=hits)

def leave():
    "Flush, as the end of the process does."
    layer = sys.modules["jaxcache.live.layer"].LAYER
    started = time.monotonic()
    directories = list(layer.directories.values())
    for directory in directories:
        directory.close(started + layer.settings["flush"])
    layer.directories.clear()
    layer.adapter.reset()
    flushed_in = time.monotonic() - started
    # Listed before the uploads are counted: one that ends in between is in both, none in neither.
    directories = [os.path.join(d.root, ".jaxcache", "live", "spool") for d in directories]
    notes = [n for f in directories for _, _, names in os.walk(f) for n in names]
    waiting = sum(n.startswith("jit_") for n in notes)
    return dict(layer.counters.snapshot(), flushed_in=flushed_in, waiting=waiting)

result = dict()
"""


def test_the_second_machine_hits_what_the_first_has_compiled(
    run_live: RunLive, bucket: str, tmp_path: Path
) -> None:
    shared = tmp_path / "nfs"
    program = f"""
directory, tiers = {str(tmp_path)!r}, [{str(shared)!r}, {bucket!r}]
result["first"] = on(directory + "/one", tiers)
result["left"] = leave()
result["second"] = on(directory + "/two", tiers[1:])
leave()
for machine in ("third", "local"):
    result[machine] = on(directory + "/three", tiers, prefetch=False)
    leave()
"""
    told = run_live(MACHINES + program, **FREE).result
    number = len(entries(tmp_path / "one"))
    assert (told["first"]["written"], told["left"]["uploaded"]) == (number, 2 * number)
    for machine in ("second", "third", "local"):
        ran = told[machine]
        assert (ran["values"], ran["hits"]) == (told["first"]["values"], number)
        assert "misses" not in ran
    assert told["local"]["hits_local"] == number
    assert told["second"].get("prefetched", 0) > 0
    assert len(entries(shared)) == len(entries(tmp_path / "two")) == number
    # The run's keys and nothing else lies beside the entries.
    assert len(list((shared / ".jaxcache" / "live" / "runs").iterdir())) == 1


@pytest.mark.usefixtures("newer_python")
def test_a_bucket_has_its_uses(
    run_live: RunLive, run_cli: RunCli, bucket: str, tmp_path: Path
) -> None:
    """A client tells what it compiles and hits."""
    program = f"""
tiers = [{bucket!r}]
result["first"] = on({str(tmp_path / "one")!r}, tiers)
leave()
from jaxcache.store import open_store
bucket = open_store({bucket!r})
result["entries"] = [i.name for i in bucket.list() if i.name.endswith("-cache")]
result["again"] = on({str(tmp_path / "one")!r}, tiers)
leave()
result["segments"] = [i.name for i in bucket.list(".jaxcache/ledger")]
"""
    ran = run_live(MACHINES + program, **FREE).result
    number = ran["first"]["written"]
    assert len(ran["segments"]) == 1  # of this client and day
    assert ran["again"]["hits_local"] == number
    found = told(run_cli, "ls", "-C", bucket)["entries"]
    facts = {(e["file"], e["last_used_from"]) for e in found if e["compile_seconds"] % 1}
    assert facts == {(file, "ledger") for file in ran["entries"]}
    uses = told(run_cli, "stats", "-C", bucket)
    assert (uses["hits"], uses["misses"]) == (number, number)


def for_entries(how: int | str) -> Fault:
    """Spoil the answers that hold an entry; listings and everything else pass."""
    return lambda seen: how if seen.verb == "get" and seen.name.endswith("-cache") else None


def answer_slowly(seen: Seen) -> int | None:
    """Take long to say that there is nothing."""
    time.sleep(0.6)
    return 404 if seen.verb in ("get", "list") else None


#: How the tier fails behind which everything lies that the program needs. The limits are 1 s for a
#: request and 1 s for misses.
FAILURES: dict[str, Fault | None] = {
    "down": None,
    "black hole": lambda _: "hang",
    "slow misses": answer_slowly,
    "full": lambda seen: 507 if seen.verb == "put" else None,
    "entries: garbage": for_entries("junk"),
    "entries: cut short": for_entries("shorten"),
}
#: A tier that is waited for without a limit never answers.
_NEVER_SECONDS = 60.0
UNREACHABLE = "http://127.0.0.1:9"


def test_a_tier_that_fails_costs_a_third_machine_a_bounded_delay(
    run_live: RunLive, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        endpoints = {"works": s3_server.endpoint}
        for how, fault in FAILURES.items():
            endpoints[how] = UNREACHABLE
            if fault is not None:
                proxy = stack.enter_context(run_proxy(s3_server.endpoint))
                proxy.fault, endpoints[how] = fault, proxy.endpoint
        program = f"""
limits = {{"timeout": 1.0, "miss_budget": 1.0}}
directory, filled = {str(tmp_path)!r}, [{bucket!r}]
on(directory + "/warmup", [])
result["first"] = {{**on(directory + "/first", filled), **leave()}}
for how, address in {endpoints!r}.items():
    os.environ["AWS_ENDPOINT_URL"] = address
    tiers = [{bucket!r} + "/empty"] if how == "full" else filled
    told = on(os.path.join(directory, how), tiers, seconds=1.0, **limits)
    result[how] = {{**told, **leave()}}
os.environ["AWS_ENDPOINT_URL"] = {s3_server.endpoint!r}
result["after"] = on(directory + "/after", filled, **limits)
"""
        told = run_live(MACHINES + program, **FREE).result
    number = told["first"]["written"]
    for how in FAILURES:
        ran = told[how]
        assert ran["values"] == told["first"]["values"], how
        assert (ran["written"], ran.get("hits_tier", 0)) == (number, 0), how
        assert max(ran.get("miss_seconds", 0.0), ran["flushed_in"]) < _NEVER_SECONDS, how
        # Nothing of what could not be uploaded is forgotten.
        assert ran["waiting"] + ran.get("uploaded", 0) >= number, how
        if how in ("down", "black hole", "full"):
            assert ran["waiting"] == number, how
    for how in ("works", "after"):
        assert (told[how]["hits"], told[how].get("misses", 0)) == (number, 0), how


def test_a_line_says_where_entries_of_a_tier_hit(run_live: RunLive, tmp_path: Path) -> None:
    tiers = {"JAXCACHE_LIVE_TIERS": str(tmp_path / "shared"), "JAXCACHE_LIVE_FLUSH": "60s"}
    first = run_live(cache_dir=tmp_path / "one", **tiers)
    second = run_live(cache_dir=tmp_path / "two", **tiers)
    lines = [line for line in second.err.splitlines() if "PORTABLE_KEYS=1" in line]
    assert len(lines) == bool(second["misses"])  # JAX before 0.11 contains the path
    portable = run_live(cache_dir=tmp_path / "two", JAXCACHE_LIVE_PORTABLE_KEYS="1", **tiers)
    assert first["misses"] and "PORTABLE_KEYS" not in portable.err


def test_a_damaged_entry_of_a_tier_is_replaced_there(
    run_live: RunLive, run_cli: RunCli, tier: dict[str, str], tmp_path: Path
) -> None:
    shared = tmp_path / "tier"
    tiers = tier | {"JAXCACHE_LIVE_FLUSH": "60s"}
    (damaged,) = entries(shared, "first")
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    plain = entries(shared, "second")[0]  # without a checksum, as plain JAX writes it
    plain.write_bytes(zstandard.compress(zstandard.decompress(plain.read_bytes())))
    second = run_live(cache_dir=tmp_path / "two", **tiers)
    assert (second["rotten_tier"], second["unsealed"], second["misses"]) == (1, 1, 2)
    assert "which has no checksum; replaced there by this program\n" in second.err
    assert "refused" not in told(run_cli, "stats", "-C", tmp_path / "two")
    third = run_live(cache_dir=tmp_path / "three", **tiers)
    assert (third["rotten_tier"], third["unsealed"], third["misses"]) == (0, 0, 0)
    assert third.result == second.result


def test_a_directory_that_cannot_be_opened_is_given_up_at_once(
    run_live: RunLive, tmp_path: Path
) -> None:
    """Plain JAX turns its cache off there, for want of etils."""
    env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "home")}
    env["JAXCACHE_LIVE_PORTABLE_KEYS"] = "1"  # nothing is to be said of keys
    ran = run_live(cache_dir="gs://team/jax", **env)
    lines = [line for line in ran.err.splitlines() if line.startswith("jaxcache: ")]
    assert all(line.endswith("going on without it") for line in lines)
    assert any("cannot read gs://team/jax (no credentials" in line for line in lines)
    assert ran["written"] == len(list(tmp_path.rglob("jit_*-cache"))) > 1
    assert ran["troubles"] == 0


def test_what_is_never_written_costs_one_listing(
    run_live: RunLive, bucket: str, s3: Proxy, tmp_path: Path
) -> None:
    """With JAX's threshold of 1 s most look-ups are for modules that nobody writes."""
    program = f"""
given = {str(tmp_path / "one")!r}, [{bucket!r}]
on(*given)
(tier,) = next(iter(sys.modules["jaxcache.live.layer"].LAYER.directories.values())).tiers._tiers
deadline = time.monotonic() + 60
while tier._known is None and time.monotonic() < deadline:
    time.sleep(0.01)
result = on(*given)
"""
    env = FREE | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "100"}
    told = run_live(MACHINES + program, **env).result
    assert told["tier_known_misses"] == told["misses"] > 1
    assert "tier_misses" not in told
    assert s3.counts()["list"] == 1


def test_push_does_the_uploads(
    run_live: RunLive, run_cli: RunCli, bucket: str, tmp_path: Path
) -> None:
    env = PORTABLE | {"JAXCACHE_LIVE_TIERS": bucket, "JAXCACHE_LIVE_SUMMARY": "1"}
    written = run_live(AWS_ENDPOINT_URL=UNREACHABLE, **env)["written"]
    assert written > 0
    pushed = run_cli("push", "-C", tmp_path / "cache", bucket, env=PORTABLE)
    assert pushed.returncode == 0, pushed.stderr
    other = run_live(cache_dir=tmp_path / "other", **env)
    assert (other["misses"], other.hits) == (0, written)
    # The next process finds nothing left to do: the bucket has it all.
    assert run_live(**env)["hits_local"] == written
    assert not list((tmp_path / "cache/.jaxcache/live/spool").rglob("jit_*"))


def test_a_bucket_of_jax_is_a_tier(run_live: RunLive, bucket: str, tmp_path: Path) -> None:
    first = run_live(cache_dir=bucket, XDG_CACHE_HOME=str(tmp_path / "one"))
    second = run_live(cache_dir=bucket, XDG_CACHE_HOME=str(tmp_path / "two"))
    assert first["written"] > 0
    assert (second["misses"], second.hits) == (0, first["written"])
    assert second.result == first.result


def test_only_signed_entries_are_taken(run_live: RunLive, tmp_path: Path) -> None:
    """What nobody has signed is not even decoded."""
    keys = {name: trust.generate_key(tmp_path / name) for name in ("ci", "stranger")}
    trust.add_trusted(tmp_path / "config" / "jaxcache", "ci", trust.public_key_text(keys["ci"]))
    program = f"""
import pathlib
directory = {str(tmp_path)!r}
os.environ["XDG_CONFIG_HOME"] = directory + "/config"
for name in ("ci", "stranger", "unsigned"):
    tier = pathlib.Path(directory, "tier-of-" + name)
    key = "" if name == "unsigned" else directory + "/" + name
    on(directory + "/from-" + name, [str(tier)], signing_key=key, require_signed=False)
    leave()
    for entry in tier.glob("*-cache") if name == "unsigned" else ():
        entry.write_bytes(b"no entry")
    told = on(directory + "/to-" + name, [str(tier)], signing_key="", require_signed=True)
    leave()
    result[name] = told
"""
    told = run_live(MACHINES + program, **FREE).result
    assert "misses" not in told["ci"]
    for name in ("unsigned", "stranger"):
        assert told[name]["unsigned"] >= told[name]["misses"] > 0
        assert told[name].get("hits_tier", 0) == told[name].get("rotten_tier", 0) == 0


# Entries of a tier without a checksum: what vouches for them instead, and who is told.


@pytest.fixture
def plain_tier(plain: tuple[Path, Any], tmp_path: Path) -> Path:
    """A directory with entries as plain JAX writes them, which other machines share."""
    return shutil.copytree(plain[0], tmp_path / "tier")


def digests(directory: Path) -> dict[str, str]:
    """The SHA-256 of the payload of each entry, by key."""
    contents = {path.name[:-6]: decode(path.read_bytes()).content for path in entries(directory)}
    return {key: hashlib.sha256(data[4:]).hexdigest() for key, data in contents.items()}


def test_a_tier_without_checksums_is_named_with_the_command_that_mends_it(
    run_live: RunLive, run_cli: RunCli, plain_tier: Path, tmp_path: Path
) -> None:
    number = len(entries(plain_tier))
    settings = {"JAXCACHE_LIVE_TIERS": f"{plain_tier}:ro", **PORTABLE}
    refused = run_live(cache_dir=tmp_path / "one", **settings)
    assert (refused["unsealed"], refused["hits_tier"]) == (number, 0)
    said = f"refused {number} entries of {plain_tier}, which have no checksum"
    command = f"jaxcache seal -C {plain_tier}"
    assert f"{said}; to mend it: {command}\n" in refused.err
    (row,) = told(run_cli, "stats", "-C", tmp_path / "one")["refused"]
    assert (row["tier"], row["reason"], row["entries"]) == (str(plain_tier), "unsealed", number)
    doctor = ("doctor", "-C", tmp_path / "one", "--json", "--python", "/nonexistent")
    findings = json.loads(run_cli(*doctor).stdout)["findings"]
    (finding,) = (f for f in findings if f["trap"] == "tier-refused")
    assert said in finding["seen"] and command in finding["fix"]

    assert run_cli(*command.split()[1:]).returncode == 0
    mended = run_live(cache_dir=tmp_path / "two", **settings)
    assert (mended["misses"], mended.hits) == (0, number)
    assert "refused" not in mended.err


def test_a_signature_proves_an_entry(run_live: RunLive, plain_tier: Path, tmp_path: Path) -> None:
    key = trust.generate_key(tmp_path / "key")
    private = trust.read_private_key(tmp_path / "key")
    signed = {f"{key}-cache": digest for key, digest in digests(plain_tier).items()}
    trust.write_signatures(open_store(str(plain_tier)), signed, [private], now_ns=1)
    trust.add_trusted(tmp_path / "jaxcache", "ci", trust.public_key_text(key))
    tier = {"JAXCACHE_LIVE_TIERS": f"{plain_tier}:ro", "XDG_CONFIG_HOME": str(tmp_path)}
    ran = run_live(**tier, **PORTABLE)
    assert (ran["misses"], ran["unsealed"]) == (0, 0)


def test_a_digest_that_was_recorded_here_is_as_good_as_a_checksum(
    run_live: RunLive, run_cli: RunCli, plain_tier: Path, tmp_path: Path, give_away: GiveAway
) -> None:
    for name in ("right", "wrong", *(["foreign"] if CAN_GIVE_AWAY else [])):
        directory = tmp_path / name
        directory.mkdir()
        events = [
            Event(key, COMPILE, 1, {"payload_sha256": "0" if name == "wrong" else sha256})
            for key, sha256 in digests(plain_tier).items()
        ]
        append(open_store(str(directory)), events)
        if name == "foreign":
            give_away(directory / ".jaxcache" / "ledger")
        ran = run_live(cache_dir=directory, JAXCACHE_LIVE_TIERS=f"{plain_tier}:ro", **PORTABLE)
        is_refused = name != "right"
        assert (ran["misses"] > 0, ran["unsealed"] > 0) == (is_refused, is_refused)
    # What arrives is sealed, so that the local copy is checked from now on.
    listed = told(run_cli, "ls", "-C", tmp_path / "right")["entries"]
    assert {entry["sealed"] for entry in listed} == {True}


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


_tiers: dict[str, Path] = {}


@pytest.fixture
def tier(
    run_live: RunLive, jax_python: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The environment of a machine whose directory is empty, and whose tier was filled once."""
    if jax_python not in _tiers:
        _tiers[jax_python] = shared = tmp_path_factory.mktemp("tier")
        ran = run_live(cache_dir=tmp_path / "one", JAXCACHE_LIVE_TIERS=str(shared), **PORTABLE)
        assert ran["written"] == len(entries(shared)) > 1
    own = shutil.copytree(_tiers[jax_python], tmp_path / "tier")
    return PORTABLE | {"JAXCACHE_LIVE_TIERS": str(own), "NUMBER": str(len(entries(own)))}


def test_entries_come_before_a_backend_is_there(run_live: RunLive, tier: dict[str, str]) -> None:
    ran = run_live(HOOK + WAIT + PROGRAM + SAME, **tier)
    number = int(tier["NUMBER"])
    assert (ran["prefetched"], ran["hits_tier"], ran["misses"]) == (number, number, 0)
    assert ran.result[-1]
    assert ran.err == ""


#: Another JAX than the one whose versions were read before it was imported.
OTHER_VERSION = """
import importlib.metadata
importlib.metadata.version = lambda name: "0.0.1"
import jax
from jaxcache.live import layer as layers
first_layer = layers._early
"""
#: The tier has refused this process while jax was imported.
REFUSED = """
import jax
from jaxcache.live import layer as layers
first_layer = layers._early
for directory in first_layer.directories.values():
    directory.tiers._tiers[0].reading.stop()
"""


@pytest.mark.parametrize("begin", [OTHER_VERSION, REFUSED], ids=["another JAX", "refused"])
def test_a_new_layer_asks_again(run_live: RunLive, tier: dict[str, str], begin: str) -> None:
    ran = run_live(HOOK + begin + PROGRAM + SAME, **tier)
    assert ran.result[-1] is False
    assert (ran["misses"], ran.hits) == (0, int(tier["NUMBER"]))


def test_nothing_begins_where_no_tier_is_named(run_live: RunLive) -> None:
    ran = run_live(
        HOOK + "import jax\nfrom jaxcache.live import layer as layers\n"
        "first_layer = layers._early\nassert first_layer is None\n" + PROGRAM
    )
    assert ran["written"] > 0
