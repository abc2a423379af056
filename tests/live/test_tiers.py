"""Tiers behind the local directory: a real bucket, shared directories, and servers that fail."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_server import CREDENTIALS, S3Server, make_bucket, run_proxy, run_s3_server

from live.conftest import RunLive, entries

pytestmark = pytest.mark.jax
#: Leaves everything to ``enable()``.
FREE = {"JAXCACHE_LIVE": None, "JAX_COMPILATION_CACHE_DIR": None}

#: Three machines are three directories of one process; ``on`` goes to another one.
MACHINES = """
import json, os, sys, time
import jax, jax.numpy as jnp
import jaxcache

@jax.jit
def first(x):
    return jnp.sin(x) @ x.T + 1

@jax.jit
def second(x):
    return jax.lax.fori_loop(0, 3, lambda i, y: jnp.cos(y) * i, x)

def on(machine, tiers, seconds=5.0, **settings):
    jaxcache.enable(machine, tiers=tiers, portable=True, flush=seconds, **settings)
    layer = sys.modules["jaxcache.live.layer"].LAYER
    layer.counters.forget()
    jax.clear_caches()
    x = jax.device_put(jnp.asarray([[0.5, 1.5], [2.5, 3.5]]))
    started = time.perf_counter()
    values = [first(x).tolist(), second(x).tolist()]
    took = time.perf_counter() - started
    return {"values": values, "seconds": took, **layer.counters.snapshot()}

def leave():
    "Flush, as the end of the process does."
    layer = sys.modules["jaxcache.live.layer"].LAYER
    started = time.monotonic()
    for directory in list(layer.directories.values()):
        directory.close(started + layer.settings["flush"])
    layer.directories.clear()
    layer.adapter.reset()
    return {"flushed_in": time.monotonic() - started, **layer.counters.snapshot()}

result = {}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """An S3 server process."""
    with run_s3_server() as running:
        yield running


def bucket(endpoint: str) -> dict[str, str]:
    """The environment for a bucket there."""
    return {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}


def test_the_second_machine_hits_what_the_first_has_compiled(
    run_live: RunLive, server: S3Server, tmp_path: Path
) -> None:
    make_bucket(server.endpoint, "team")
    shared = tmp_path / "nfs"
    program = f"""
tiers = [{str(shared)!r}, "s3://team/jax"]
result["first"] = on({str(tmp_path / "one")!r}, tiers)
result["left"] = leave()
result["second"] = on({str(tmp_path / "two")!r}, ["s3://team/jax"])
leave()
result["third"] = on({str(tmp_path / "three")!r}, tiers, prefetch=False)
leave()
result["local"] = on({str(tmp_path / "three")!r}, tiers, prefetch=False)
"""
    with run_proxy(server.endpoint) as proxy:
        ran = run_live(MACHINES + program, **FREE, **bucket(proxy.endpoint))
    told = ran.result
    number = len(entries(tmp_path / "one"))
    assert told["first"]["written"] == number
    assert told["left"]["uploaded"] == 2 * number
    for machine in ("second", "third"):
        assert told[machine]["values"] == told["first"]["values"]
        assert "misses" not in told[machine]
        assert told[machine].get("hits_tier", 0) + told[machine].get("hits_local", 0) == number
    assert told["local"]["hits_local"] == number
    assert told["second"].get("prefetched", 0) > 0
    assert len(entries(shared)) == len(entries(tmp_path / "two")) == number
    # The run's keys and nothing else lies beside the entries.
    assert len(list((shared / ".jaxcache" / "live" / "runs").iterdir())) == 1


class BadServer:
    """A server that answers every request in one wrong way."""

    def __init__(self, how: str) -> None:
        self._how = how
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.endpoint = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._socket.accept()[0]
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        self._kept.append(client)
        if self._how == "black hole":
            return
        with contextlib.suppress(OSError), client:
            while True:
                head = b""
                while b"\r\n\r\n" not in head:
                    part = client.recv(65536)
                    if not part:
                        return
                    head += part
                length = 0
                for line in head.split(b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                rest = length - len(head.partition(b"\r\n\r\n")[2])
                while rest > 0:
                    rest -= len(client.recv(65536)) or rest
                self._reply(client)
                if self._how in ("truncated", "reset"):
                    return

    def _reply(self, client: socket.socket) -> None:
        body, status, announced = b"<Error><Code>X</Code></Error>", "404 Not Found", None
        if self._how == "reset":
            return
        if self._how in ("500", "403", "507"):
            status = f"{self._how} Trouble"
        if self._how == "slow misses":
            threading.Event().wait(0.6)
        if self._how == "garbage":
            status, body = "200 OK", b"\x28\xb5\x2f\xfd" + b"junk" * 100
        if self._how == "truncated":
            status, body, announced = "200 OK", b"x" * 100, 5000
        client.sendall(
            f'HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nETag: "a"\r\n'
            f"Last-Modified: Tue, 15 Nov 1994 12:45:26 GMT\r\n"
            f"Content-Length: {announced or len(body)}\r\n\r\n".encode()
            + body
        )

    def close(self) -> None:
        """Stop."""
        self._socket.close()
        for client in self._kept:
            client.close()


#: How a tier fails, and how many seconds that may cost a program of a dozen look-ups.
FAILURES = {
    "refused": 1.0,
    "500": 1.0,
    "403": 1.0,
    "507": 1.0,
    "reset": 1.0,
    "garbage": 1.0,
    "truncated": 1.0,
    "black hole": 4.0,
    "slow misses": 4.0,
}


def test_a_tier_that_fails_costs_a_bounded_delay(run_live: RunLive, tmp_path: Path) -> None:
    servers = {how: BadServer(how) for how in FAILURES if how != "refused"}
    addresses = {how: s.endpoint for how, s in servers.items()}
    addresses["refused"] = "http://127.0.0.1:9"
    program = f"""
addresses = {addresses!r}
os.environ["AWS_ENDPOINT_URL"] = addresses["refused"]
on({str(tmp_path / "warmup")!r}, [])
plain = on({str(tmp_path / "plain")!r}, [])
result["plain"] = plain
for how, address in addresses.items():
    os.environ["AWS_ENDPOINT_URL"] = address
    folder = os.path.join({str(tmp_path)!r}, how)
    told = on(folder, ["s3://team/jax"], seconds=1.0, timeout=1.0, miss_budget=1.0)
    result[how] = {{**told, **leave()}}
"""
    try:
        ran = run_live(MACHINES + program, **FREE, **bucket("http://127.0.0.1:9"))
    finally:
        for running in servers.values():
            running.close()
    told = ran.result
    print(f"{'tier':12} {'look-ups lost':>14} {'exit':>6}")
    for how, allowed in FAILURES.items():
        lost = told[how].get("miss_seconds", 0.0)
        print(f"{how:12} {lost:12.2f} s {told[how]['flushed_in']:4.1f} s")
        assert told[how]["values"] == told["plain"]["values"]
        assert told[how]["written"] == told["plain"]["written"]
        assert told[how].get("hits_tier", 0) == 0
        assert lost < allowed, how
        assert told[how]["flushed_in"] < 3.0, how
        # Nothing of what could not be uploaded is forgotten.
        spool = next((tmp_path / how / ".jaxcache" / "live" / "spool").glob("*/"))
        waiting = {p.name for p in spool.iterdir()}
        uploaded = told[how].get("uploaded", 0)
        assert len(waiting) + uploaded == told[how]["written"], how


def test_what_was_not_uploaded_goes_up_with_the_next_process(
    run_live: RunLive, server: S3Server, tmp_path: Path
) -> None:
    make_bucket(server.endpoint, "later")
    tiers = {"JAXCACHE_LIVE_TIERS": "s3://later/jax", "JAXCACHE_LIVE_SUMMARY": "1"}
    down = run_live(**tiers, **bucket("http://127.0.0.1:9"))
    written = down["written"]
    assert "going on without it" in down.err
    up = run_live(**tiers, **bucket(server.endpoint))
    assert (up["hits_local"], up["written"]) == (written, 0)
    assert f"{written} uploaded" in up.err
    spool = tmp_path / "cache" / ".jaxcache" / "live" / "spool"
    assert [p for p in spool.rglob("*-*") if p.is_file()] == []


def test_a_bucket_as_the_directory_of_jax_is_a_tier(
    run_live: RunLive, server: S3Server, tmp_path: Path
) -> None:
    make_bucket(server.endpoint, "own")
    env = {**bucket(server.endpoint), "JAX_COMPILATION_CACHE_DIR": "s3://own/jax"}
    first = run_live(**env, XDG_CACHE_HOME=str(tmp_path / "one"))
    second = run_live(**env, XDG_CACHE_HOME=str(tmp_path / "two"), JAXCACHE_LIVE_SUMMARY="1")
    assert first["written"] > 0
    assert second["misses"] == 0
    assert second["hits_tier"] + second["hits_local"] == first["written"]
    assert second.result == first.result


def test_only_what_a_trusted_key_signed_is_taken(
    run_live: RunLive, server: S3Server, tmp_path: Path
) -> None:
    from jaxcache.cache.trust import add_trusted, generate_key, public_key_text

    make_bucket(server.endpoint, "signed")
    key = generate_key(tmp_path / "key")
    stranger = tmp_path / "stranger"
    generate_key(stranger)
    add_trusted(tmp_path / "config" / "jaxcache", "ci", public_key_text(key))
    program = f"""
os.environ["XDG_CONFIG_HOME"] = {str(tmp_path / "config")!r}
folder = {str(tmp_path)!r}
for name, where in (("ci", "good"), ("unsigned", "none"), ("stranger", "bad")):
    keys = {{"ci": folder + "/key", "stranger": folder + "/stranger", "unsigned": None}}
    on(folder + "/from-" + name, ["s3://signed/" + where], signing_key=keys[name])
    leave()
    told = on(folder + "/to-" + name, ["s3://signed/" + where], require_signed=True)
    leave()
    result[name] = told
"""
    ran = run_live(MACHINES + program, **FREE, **bucket(server.endpoint))
    told = ran.result
    assert "misses" not in told["ci"]
    for name in ("unsigned", "stranger"):
        assert told[name]["unsigned"] >= told[name]["misses"] > 0
        assert told[name].get("hits_tier", 0) == 0
    json.dumps(told)
