"""What others can do to a program through its tiers and leases: little, and once."""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import RunCli
from mount_without_links import can_mount, mounted_without_links

from jaxcache.live.frame import decode
from jaxcache.live.helper import BucketStore, TierClient
from jaxcache.live.loading import Leases
from jaxcache.live.process import Counters
from jaxcache.live.tier import Tier
from live.conftest import PROGRAM, RunLive, entries, live_environment

KEY = "jit_f-" + "a" * 64
DEFINITIONS = PROGRAM.partition("x = jax")[0]


def layer_with(**settings: float) -> Any:
    """As much of a layer as a tier needs."""
    said: list[str] = []
    settings = {"timeout": 0.3, "miss-budget": 0.5, **settings}
    return SimpleNamespace(settings=settings, counters=Counters(), say=said.append, said=said)


@pytest.fixture
def hanging_server() -> Iterator[Any]:
    """A server that answers every second request, and hangs over the others."""
    end = threading.Event()
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            if len(requests) % 2 == 0:
                end.wait(60)
                return
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(b"entry")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_address[1]}", requests=requests)
    end.set()
    server.shutdown()
    server.server_close()


def test_a_tier_that_answers_every_second_request_is_given_up(hanging_server: Any) -> None:
    layer = layer_with()
    tier = Tier(f"{hanging_server.url}:ro", layer)
    answers = [tier.read(f"entry-{number}") for number in range(32)]
    assert len(hanging_server.requests) <= 4
    assert answers[-1] is None
    assert len(layer.said) == 1
    assert layer.counters["tier_skipped"] >= 28


def test_a_name_that_no_entry_has_is_not_kept(bucket: str) -> None:
    """A bucket takes names of 1,024 bytes, and a listing keeps 200,000."""
    store = BucketStore(bucket, 10.0)
    store.write(f"{KEY}-cache", b"entry", replace=True)
    store.write("n" * 512, b"", replace=True)
    assert store.names() == {f"{KEY}-cache"}


def test_a_request_needs_no_new_thread(
    hanging_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Python 3.12 and later, once the main thread has ended."""

    start_of_python = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("jaxcache"):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start_of_python(thread)

    tier = Tier(f"{hanging_server.url}:ro", layer_with(timeout=5.0))
    monkeypatch.setattr(threading.Thread, "start", start)
    assert tier.read("entry-1") == b"entry"


class StubTiers:
    """Tiers that have no entries, and count how often somebody looks."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self.looks = 0

    def last_writable(self) -> Tier:
        return self._tier

    def lookup(self, _: str, *, fresh: bool) -> tuple[None, str]:
        self.looks += fresh
        return None, ""


def forge_lease(directory: Path, key: str, until: object) -> Path:
    leases = directory / ".jaxcache/live/leases"
    leases.mkdir(parents=True, exist_ok=True)
    path = leases / key
    path.write_text(json.dumps({"owner": "nobody:1", "until": until}))
    return path


def test_forged_leases_cost_their_limit_once(tmp_path: Path) -> None:
    tiers = StubTiers(Tier(str(tmp_path / "tier"), layer_with(timeout=30.0)))
    leases = Leases(str(tmp_path / "cache"), 0.7, Counters())
    looks = []
    for number in range(3):
        key = f"jit_f{number}-" + "a" * 64
        forge_lease(tmp_path / "tier", key, time.time() + 3600)
        before = tiers.looks
        assert leases.take_or_wait(key, lambda: None, tiers) is None
        looks.append(tiers.looks - before)
    assert looks[0] >= 1
    assert looks[1:] == [0, 0]


@pytest.mark.parametrize("until", [4e18, float("inf"), float("nan"), "soon", None, [1]])
def test_a_lease_without_a_plausible_date_counts_for_nothing(tmp_path: Path, until: object) -> None:
    tiers = StubTiers(Tier(str(tmp_path / "tier"), layer_with(timeout=30.0)))
    path = forge_lease(tmp_path / "tier", KEY, until)
    leases = Leases(str(tmp_path / "cache"), 600.0, Counters())
    assert leases.take_or_wait(KEY, lambda: None, tiers) is None
    assert json.loads(path.read_text())["owner"] != "nobody:1"


@pytest.mark.jax
def test_credentials_in_a_url_are_refused_and_never_printed(
    run_live: RunLive, tmp_path: Path
) -> None:
    ran = run_live(
        JAXCACHE_LIVE_TIERS="https://user:PASSWORD@127.0.0.1:9/x:ro,s3://bucket/y?key=PASSWORD:ro",
        JAXCACHE_LIVE_SUMMARY="true",
        AWS_ENDPOINT_URL="http://user:PASSWORD@127.0.0.1:9",
    )
    assert "PASSWORD" not in ran.err
    assert ran.err.count("credentials do not belong into a URL") == 2
    assert len(entries(tmp_path / "cache")) > 1


#: Nothing is sent: the layer refuses such a tier.
ASKS_FOR_A_TIER = """
import jax
import jaxcache
tier = "s3://user:PASSWORD@bucket/y:ro"
jaxcache.enable(tiers=[tier])  # Python 3.13 shows this line with a warning
jax.jit(lambda x: x + 1)(1.0)
"""


@pytest.mark.jax
def test_what_describes_the_settings_shows_no_credentials(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    """``where`` and the warning of ``enable()`` name the tiers."""
    env = live_environment(jax_python, tmp_path, tmp_path / "cache")
    env |= {
        "JAXCACHE_LIVE_TIERS": "https://user:PASSWORD@127.0.0.1:9/x:ro",
        "PYTHONWARNINGS": "default",
    }
    done = run_cli("where", "--json", "--", jax_python, "-c", ASKS_FOR_A_TIER, env=env)
    assert done.returncode == 0, done.stderr
    assert "https://127.0.0.1:9/x:ro" in done.stdout
    assert "s3://bucket/y" in done.stderr
    assert "PASSWORD" not in done.stdout + done.stderr


@pytest.mark.jax
def test_an_entry_that_was_damaged_on_disk_is_not_uploaded(
    run_live: RunLive, tmp_path: Path
) -> None:
    tier, environment = tmp_path / "tier", {"JAXCACHE_LIVE_TIERS": str(tmp_path / "tier")}
    tier.write_text("no directory yet: the uploads wait")
    run_live(**environment)
    tier.unlink()
    (second,) = entries(tmp_path / "cache", "second")
    second.write_bytes(second.read_bytes()[:-30])
    run_live(f"{DEFINITIONS}\nresult = first(jnp.ones((2, 2))).tolist()", **environment)
    uploaded = entries(tier)
    assert uploaded
    for entry in uploaded:
        decode(entry.read_bytes())
    assert not entries(tier, "second")


@pytest.fixture
def hanging_mount(tmp_path: Path) -> Iterator[Path]:
    """A mounted directory over which every system call hangs until the test has ended."""
    if not can_mount():
        pytest.skip("only root can mount a FUSE file system")
    (tmp_path / "behind").mkdir()
    (tmp_path / "mount").mkdir()
    with contextlib.ExitStack() as stack:
        try:
            mount = mounted_without_links(tmp_path / "behind", tmp_path / "mount")
            stack.enter_context(mount)
        except OSError as error:
            pytest.skip(str(error))
        (server,) = servers_of(tmp_path / "mount")
        os.kill(server, signal.SIGSTOP)
        stack.callback(os.kill, server, signal.SIGCONT)
        yield tmp_path / "mount"


def servers_of(mountpoint: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(mountpoint) in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


@pytest.mark.jax
def test_a_program_ends_while_a_directory_tier_hangs(
    run_live: RunLive, tmp_path: Path, hanging_mount: Path
) -> None:
    """It computes, writes, ends, and leaves its uploads to the next process."""
    ran = run_live(
        JAXCACHE_LIVE_TIERS=str(hanging_mount),
        JAXCACHE_LIVE_TIMEOUT="0.5s",
        JAXCACHE_LIVE_MISS_BUDGET="0.5s",
        JAXCACHE_LIVE_FLUSH="1s",
        timeout=120,
    )
    assert ran["tier_errors"] >= 1
    assert ran["troubles"] == 0
    assert len(entries(tmp_path / "cache")) > 1
    assert f"cannot read {hanging_mount}" in ran.err
    assert list((tmp_path / "cache/.jaxcache/live/spool").rglob("jit_*"))


def test_a_directory_tier_does_what_a_directory_does(tmp_path: Path) -> None:
    layer = layer_with(timeout=30.0)
    tier = Tier(str(tmp_path / "tier"), layer)
    data = os.urandom(3 << 20)
    assert tier.read("entry") is None
    assert layer.counters["tier_misses"] == 1
    assert tier.write("entry", data, replace=False)
    assert tier.write("entry", b"another", replace=False)
    assert tier.read("entry") == data
    assert tier.write("entry", b"another", replace=True)
    assert tier.read("entry") == b"another"
    assert tier.attempt("create", "a/b", b"1") is True
    assert tier.attempt("create", "a/b", b"2") is False
    assert tier.attempt("names", "a") == ["b"]
    tier.attempt("delete", "a/b")
    assert tier.read("a/b") is None
    assert tier.read("entry", limit=3) is None
    assert (layer.counters["tier_errors"], layer.said) == (1, [])


def test_the_process_of_a_directory_tier_ends_with_the_last_connection(tmp_path: Path) -> None:
    directory = TierClient(str(tmp_path), 30.0)
    assert directory.ask("names", "", seconds=30.0) == []
    (process,) = servers_of(tmp_path)
    directory.close()
    deadline = time.monotonic() + 60
    while servers_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process not in servers_of(tmp_path)
