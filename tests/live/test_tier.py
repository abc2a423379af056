"""One tier: what others can do to a program through it is little, and happens once."""

import contextlib
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import RunCli
from object_server import CREDENTIALS, Proxy
from ways import old_copy, told

from jaxcache.cache import trust
from jaxcache.core import signing
from jaxcache.live.helper import BucketStore, TierClient, receive, send
from jaxcache.live.process import Counters
from jaxcache.live.tier import CircuitBreaker, Refusals, Signatures, Tier
from jaxcache.store import open_store
from live.conftest import RunLive, entries, live_environment

KEY = "jit_f-" + "a" * 64


def layer_with(**settings: float) -> Any:
    """As much of a layer as a tier needs."""
    said: list[str] = []
    settings = {"timeout": 0.3, "miss-budget": 0.5, **settings}
    return SimpleNamespace(settings=settings, counters=Counters(), say=said.append, said=said)


#: What happens to a tier whose budget is 1 s, and for how long it is not asked after that.
HISTORIES = {
    "misses within the budget": (["missed 0.5", "missed 0.5"], 0),
    "misses beyond it": (["missed 0.6", "missed 0.6"], 30),
    "hits give no time back": (["missed 0.6", "good", "missed 0.6"], 30),
    "two failures": (["failed 0.1", "failed 0.1"], 0),
    "three in a row": (["failed 0.1", "failed 0.1", "failed 0.1"], 30),
    "three with an answer between": (["failed 0.1", "failed 0.1", "good", "failed 0.1"], 0),
    "three with a miss between": (["failed 0.1", "failed 0.1", "missed 0.1", "failed 0.1"], 0),
    "slow failures": (["failed 1.1"], 30),
    "one more after the pause": (["failed 0.1", "failed 0.1", "failed 0.1", "failed 0.1"], 60),
    "many": (["failed 2"] * 9, 900),
    "good again": (["failed 2", "failed 2", "good", "failed 2"], 30),
}


@pytest.mark.parametrize(("history", "seconds"), HISTORIES.values(), ids=HISTORIES)
def test_a_tier_is_given_up_for_a_while(
    monkeypatch: pytest.MonkeyPatch, history: list[str], seconds: float
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    breaker = CircuitBreaker(1.0)
    for event in history:
        verb, _, lost = event.partition(" ")
        is_given_up = bool(getattr(breaker, verb)(*[float(lost)] if lost else []))
    assert breaker.allows() is (seconds == 0)
    assert is_given_up is (seconds > 0 and verb == "failed")
    now += seconds - 0.1
    assert breaker.allows() is (seconds == 0)
    now += 0.2
    assert breaker.allows()


def test_a_tier_that_refuses_is_never_asked_again() -> None:
    breaker = CircuitBreaker(1.0)
    assert breaker.failed(0.1, final=True)
    breaker.good()
    assert not breaker.allows()


def test_what_was_refused_is_recorded_until_it_is_mended(tmp_path: Path) -> None:
    """A tier that this process has not asked keeps what another one has recorded of it."""
    root = str(tmp_path)

    def recorded() -> list[tuple[str, str, int]]:
        data = (tmp_path / ".jaxcache" / "live" / "refused").read_bytes()
        return [(r.tier, r.reason, r.entries) for r in signing.read_record(data)]

    first = Refusals()
    assert (KEY in first, list(first.lines())) == (False, [])
    first.save(root)
    assert not (tmp_path / ".jaxcache").exists()
    for key in ("a", "b"):
        first.add("/nfs/one", key, "unsealed")
    first.add("/nfs/two", "a", "damaged")
    first.replace("/nfs/two", "a")
    first.replace("/nfs/two", "never refused")
    assert ("/nfs/one", "a") in first and ("/nfs/one", "c") not in first
    mend, mended = first.lines()
    assert "refused 2 entries of /nfs/one" in mend and "jaxcache seal -C /nfs/one" in mend
    assert "/nfs/two" in mended and mended.endswith("; replaced there by this program")
    first.save(root)
    assert recorded() == [("/nfs/one", "unsealed", 2)]
    other = Refusals()
    other.add("/nfs/three", "a", "unsigned")
    other.save(root)
    assert recorded() == [("/nfs/one", "unsealed", 2), ("/nfs/three", "unsigned", 1)]
    later = Refusals()
    later.add("/nfs/one", "a", "unsealed")
    later.accept("/nfs/one", "a")
    later.save(root)
    assert recorded() == [("/nfs/three", "unsigned", 1)]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"a": 1, "b": {"at_ns": -1}, "c": {"at_ns": 1, "unsealed": "x"}}']
)
def test_a_damaged_record_is_ignored(run_cli: RunCli, tmp_path: Path, text: str) -> None:
    cache = old_copy(tmp_path / "cache")
    (cache / ".jaxcache" / "live").mkdir(parents=True)
    (cache / ".jaxcache" / "live" / "refused").write_text(text)
    assert "refused" not in told(run_cli, "stats", "-C", cache)


def test_a_tier_that_answers_every_second_request_is_given_up(bucket: str, s3: Proxy) -> None:
    layer = layer_with(timeout=5.0)
    tier = Tier(bucket, layer)
    assert tier.write("entry", b"entry", replace=True)
    turns = itertools.cycle([None, "hang"])
    s3.fault = lambda _: next(turns)
    tier._seconds = 0.3
    answers = [tier.read("entry") for _ in range(32)]
    assert s3.counts()["get"] <= 4
    assert (answers[0], answers[-1]) == (b"entry", None)
    assert len(layer.said) == 1
    assert layer.counters["tier_skipped"] >= 28


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What this process tells the parent of its run."""
    told: list[dict[str, str]] = []
    monkeypatch.setitem(sys.modules, "_jaxcache_hook", SimpleNamespace(report=told.append))
    return told


@pytest.mark.parametrize("how", ["drop", "hang", "truncate", 403, 500])
def test_what_fails_is_no_answer(
    bucket: str, s3: Proxy, reports: list[dict[str, str]], how: str | int
) -> None:
    layer = layer_with(**{"timeout": 5.0, "miss-budget": 9.0})
    tier = Tier(bucket, layer)
    assert tier.write("entry", b"entry", replace=True)
    s3.fault = lambda _: how
    tier._seconds = 0.3
    assert tier.read("entry") is None
    assert tier.attempt("names", "") is None
    assert tier.write("entry", b"other", replace=True) is (how == "truncate")
    assert len(layer.said) == (2 if how == 403 else 0)
    assert reports == []  # the run has reached its tier


@pytest.mark.parametrize(
    ("address", "env", "said"),
    [
        ("s3://team/jax", {"AWS_ACCESS_KEY_ID": ""}, "no credentials: docs/remote.md has the vari"),
        (
            "s3://team/jax",
            {"AWS_ENDPOINT_URL": "http://[::1"},
            "AWS_ENDPOINT_URL is not a URL of a server",
        ),
        ("s4://team/jax", {}, "no store serves s4://"),
        ("s3://user:PASSWORD@team/jax", {}, "credentials do not belong into a URL"),
    ],
)
def test_a_tier_that_cannot_be_opened_is_given_up_at_once(
    monkeypatch: pytest.MonkeyPatch,
    reports: list[dict[str, str]],
    address: str,
    env: dict[str, str],
    said: str,
) -> None:
    """Without credentials obstore would ask the metadata address of a cloud."""
    for name, value in {**CREDENTIALS, **env}.items():
        monkeypatch.setenv(name, value)
    layer = layer_with(timeout=30.0)
    tier = Tier(f"{address}:ro", layer)
    assert (tier.writable, tier.read("entry"), tier.read("other")) == (False, None, None)
    assert layer.counters.snapshot() == {"tier_errors": 1, "tier_skipped": 1}
    (line,) = layer.said
    assert said in line and line.endswith("; going on without it") and "PASSWORD" not in line
    assert [report["event"] for report in reports] == ["no-tier"]


def test_a_request_needs_no_thread(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Python 3.12 and later, once the main thread has ended."""

    start_of_python = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("jaxcache"):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start_of_python(thread)

    tier = Tier(bucket, layer_with(timeout=5.0))
    monkeypatch.setattr(threading.Thread, "start", start)
    assert tier.write("entry", b"entry", replace=True)
    assert tier.read("entry") == b"entry"


# Signatures.

DIGEST = "d" * 64


def test_only_signatures_of_trusted_keys_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    tier = Tier(str(tmp_path / "tier"), layer_with(timeout=30.0))
    keys = {name: trust.generate_key(tmp_path / name) for name in ("own", "stranger")}
    for name in keys:
        signer = Signatures({"require-signed": False, "signing-key": str(tmp_path / name)})
        assert signer.sign(tier, f"{name}-cache", DIGEST)
    store, own = open_store(str(tmp_path / "tier")), trust.read_private_key(tmp_path / "own")
    trust.write_signatures(store, {"pushed-cache": DIGEST}, [own], now_ns=1)
    assert not Signatures({"require-signed": False, "signing-key": None}).trust()
    trust.add_trusted(tmp_path / "jaxcache", "ci", trust.public_key_text(keys["own"]))
    for required in (True, False):
        signatures = Signatures({"require-signed": required, "signing-key": None})
        assert signatures.sign(tier, "unsigned-cache", DIGEST)
        assert required or signatures.digests(tier, "own-cache") == set()
        signatures = Signatures({"require-signed": required, "signing-key": None})
        assert signatures.trust()
        names = ("own", "pushed", "stranger", "unsigned")
        digests = [signatures.digests(tier, f"{name}-cache") for name in names]
        assert digests == [{DIGEST}, {DIGEST}, set(), set()]


def test_a_key_that_others_may_read_or_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    key = trust.generate_key(tmp_path / "key")
    settings = {"require-signed": False, "signing-key": str(tmp_path / "key")}
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(PermissionError, match="others may read the private key"):
        Signatures(settings)
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "key").write_text("no key")
    with pytest.raises(ValueError, match="holds no private key"):
        Signatures(settings)
    trust.add_trusted(tmp_path / "jaxcache", "ci", trust.public_key_text(key))
    (tmp_path / "jaxcache" / "trusted-keys").chmod(0o666)
    with pytest.raises(PermissionError, match="others may write"):
        Signatures({"require-signed": True, "signing-key": None})


# The process that serves a tier.


def servers_of(mountpoint: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(mountpoint) in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


@pytest.mark.parametrize("place", ["directory", "bucket"])
def test_a_tier_keeps_objects_by_name(
    request: pytest.FixtureRequest, tmp_path: Path, place: str
) -> None:
    layer = layer_with(timeout=30.0)
    address = request.getfixturevalue("bucket") if place == "bucket" else str(tmp_path / "tier")
    tier = Tier(address, layer)
    assert (tier.attempt("names", ""), tier.read("entry")) == ([], None)
    data = os.urandom(3 << 20)
    assert tier.write("entry", data, replace=False)
    assert tier.write("entry", b"another", replace=False)
    assert tier.read("entry") == data
    assert tier.write("entry", b"another", replace=True)
    assert tier.attempt("create", "a/b", b"1") is True
    assert tier.attempt("create", "a/b", b"2") is False
    assert "entry" in tier.attempt("names", "")
    assert (tier.attempt("names", "a"), tier.attempt("names", "b")) == (["b"], [])
    for _ in range(2):
        tier.attempt("delete", "a/b")
    assert tier.read("a/b") is None
    assert tier.read("entry", limit=len(b"another")) == b"another"
    assert tier.read("entry", limit=len(b"another") - 1) is None
    assert layer.said == []
    assert layer.counters.snapshot() == {"tier_misses": 2, "tier_errors": 1}


def test_the_process_of_a_directory_tier_is_replaced_and_ends_with_the_last_connection(
    tmp_path: Path,
) -> None:
    client = TierClient(str(tmp_path), 30.0)
    assert client.ask("create", "entry", b"1", seconds=30.0) is True
    (process,) = servers_of(tmp_path)
    os.kill(process, signal.SIGKILL)
    with pytest.raises(OSError, match=r"has ended|reset|pipe"):
        client.ask("names", "", seconds=30.0)
    assert client.ask("read", "entry", seconds=30.0) == b"1"
    (process,) = servers_of(tmp_path)
    client.close()
    deadline = time.monotonic() + 60
    while servers_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process not in servers_of(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("executable", "/usr/bin/app"), ("frozen", True)])
def test_a_tier_needs_a_python_that_can_be_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reports: list[dict[str, str]],
    name: str,
    value: object,
) -> None:
    monkeypatch.setattr(sys, name, value, raising=False)
    layer = layer_with()
    assert Tier(str(tmp_path), layer).read("entry") is None
    reason = "a tier needs a Python that can be started"
    assert layer.said == [f"live: cannot read {tmp_path} ({reason}); going on without it"]
    assert reports == [{"event": "no-tier", "detail": f"{tmp_path}: {reason}"}]


def test_an_error_of_the_store_arrives_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    client = TierClient(str(tmp_path / "file"), 30.0)
    with pytest.raises(FileExistsError):
        client.ask("create", "entry", b"1", seconds=30.0)
    with pytest.raises(OSError, match=r"^AttributeError: "):
        client.ask("no_method", "entry", seconds=30.0)


def test_an_answer_is_bounded() -> None:
    one, other = socket.socketpair()
    with one, other:
        for _ in range(2):
            send(one, {"value": 1}, b"bytes")
        assert receive(other, 5) == ({"value": 1}, b"bytes")
        with pytest.raises(OSError, match="too large an answer"):
            receive(other, 4)


def test_a_listing_counts_for_two_minutes(tmp_path: Path) -> None:
    layer = layer_with(timeout=30.0)
    layer.background = SimpleNamespace(submit=lambda call: call())
    tier = Tier(str(tmp_path), layer)
    tier.list()
    assert tier.write("entry", b"1", replace=True)
    assert (tier.read("entry"), tier.read("entry", fresh=True)) == (None, b"1")
    assert layer.counters.snapshot() == {"tier_known_misses": 1}
    tier._listed -= 121
    assert tier.read("entry") == b"1"
    assert tier.write("other", b"2", replace=True)
    assert (tier.read("other"), tier.read("entry")) == (None, b"1")


def test_a_name_that_no_entry_has_is_not_kept(bucket: str) -> None:
    """A bucket takes names of 1,024 bytes, and a listing keeps 200,000."""
    store = BucketStore(bucket, 10.0)
    store.write(f"{KEY}-cache", b"entry", replace=True)
    store.write("n" * 512, b"", replace=True)
    assert store.names() == {f"{KEY}-cache"}


@pytest.mark.jax
def test_a_program_ends_while_a_tier_hangs(
    run_live: RunLive, tmp_path: Path, without_links: Path
) -> None:
    """It computes, writes, ends, and leaves its uploads to the next process."""
    (server,) = servers_of(without_links)
    os.kill(server, signal.SIGSTOP)  # every system call hangs until the program has ended
    ran = run_live(
        JAXCACHE_LIVE_TIERS=str(without_links),
        JAXCACHE_LIVE_TIMEOUT="0.5s",
        JAXCACHE_LIVE_MISS_BUDGET="0.5s",
        JAXCACHE_LIVE_FLUSH="1s",
        options=(),
    )
    os.kill(server, signal.SIGCONT)
    assert (ran["tier_errors"] >= 1, ran["troubles"]) == (True, 0)
    assert len(entries(tmp_path / "cache")) > 1
    assert f"cannot read {without_links}" in ran.err
    assert list((tmp_path / "cache/.jaxcache/live/spool").rglob("jit_*"))


# Programs.


#: Nothing is sent: the layer refuses such a tier.
ASKS_FOR_A_TIER = """
import jax
import jaxcache
tier = "s3://user:PASSWORD@bucket/y:ro"
jaxcache.enable(tiers=[tier])  # Python 3.13 shows this line with a warning
jax.jit(lambda x: x + 1)(1.0)
"""


@pytest.mark.jax
def test_where_names_the_settings_and_who_made_them_without_credentials(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    """So does the warning of ``enable()``."""
    env = live_environment(jax_python, tmp_path, tmp_path / "cache")
    tiers = "https://user:PASSWORD@127.0.0.1:9/x:ro,s3://bucket/y?key=PASSWORD:ro"
    env |= {
        "JAXCACHE_LIVE_TIERS": tiers,
        "JAXCACHE_LIVE_MAX_SIZE": "1GB",
        "AWS_ENDPOINT_URL": "http://user:PASSWORD@127.0.0.1:9",
        "PYTHONWARNINGS": "default",
    }
    done = run_cli("where", "--json", "--", jax_python, "-c", ASKS_FOR_A_TIER, env=env)
    assert done.returncode == 0, done.stderr
    (process,) = json.loads(done.stdout)["processes"]
    assert process["live"] == {
        "enabled": {"value": True, "origin": "JAXCACHE_LIVE"},
        "max-size": {"value": 1_000_000_000, "origin": "JAXCACHE_LIVE_MAX_SIZE"},
        "tiers": {
            "value": "https://127.0.0.1:9/x:ro, s3://bucket/y",
            "origin": "JAXCACHE_LIVE_TIERS",
        },
    }
    assert "s3://bucket/y" in done.stderr
    assert done.stderr.count("credentials do not belong into a URL") == 2
    assert "PASSWORD" not in done.stdout + done.stderr
