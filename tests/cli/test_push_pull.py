"""``push`` and ``pull``: what goes over, what stays behind, and what neither ever does."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard
from bundling import padded, payload_of
from conftest import CORPUS, RunCli
from object_server import Proxy, S3Server
from processes import begin
from ways import names, told

from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.core.names import LEDGER_DIR
from jaxcache.entry.codec import seal_entry
from jaxcache.store import open_store
from jaxcache.store.base import Store
from jaxcache.store.object import retry

ENTRIES = 7


def test_push_sends_what_is_missing(run_cli: RunCli, local: Path, bucket: str, s3: Proxy) -> None:
    junk = ["x_gstmp", "jit_f-12_.gstmp", "_temp_x", ".jaxcache-tmp-1-x", "notes.txt", "a-cache"]
    for name in junk:
        (local / name).write_text("junk")
    (local / "jit_mlp*").mkdir()
    first = told(run_cli, "push", bucket, "-C", local, "--dry-run")
    assert (len(first["carried"]), first["dry_run"]) == (ENTRIES, True)
    assert s3.counts()["put"] == 0
    done = told(run_cli, "push", bucket, "-C", local)
    assert {c["file"] for c in done["carried"]} == names(local) - {"a-cache"}
    assert {n.rpartition("/")[2] for n in s3.names("put")} == names(local) - {"a-cache"}
    s3.forget()
    again = told(run_cli, "push", bucket, "-C", local)
    assert (again["carried"], again["present"]) == ([], ENTRIES)
    assert s3.counts() == {"list": 1}


def test_a_torn_entry_does_not_travel(run_cli: RunCli, local: Path, bucket: str) -> None:
    victim, young = sorted(names(local))[:2]
    for name in (victim, young):
        path = local / name
        path.write_bytes(path.read_bytes()[:-7])
    os.utime(local / victim, ns=(10**18, 10**18))
    done = told(run_cli, "push", bucket, "-C", local, code=3)
    assert [(p["file"], p["kind"]) for p in done["left_out"]] == [(victim, "truncated")]
    assert [t["file"] for t in done["unfinished"]] == [young]
    assert len(done["carried"]) == ENTRIES - 2
    (local / victim).unlink()
    done = run_cli("push", bucket, "-C", local)  # JAX may be writing the other one
    assert done.returncode == 3, "a script must see that it did not go over"
    assert f"left out {young}: still being written; run it again" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "push {} -C here",
        "pull here -C {}",
        "copy here {}",
        "ci save {}/x.jxb -C here",
        "ci save {} -C here",
    ],
)
def test_a_dry_run_into_a_closed_place(run_cli: RunCli, unprivileged: Path, line: str) -> None:
    """It ends as the real one does, and for the same reason."""
    shutil.copytree(CORPUS / "0.12.0.1-cpu-zstd", unprivileged / "here")
    (unprivileged / "closed").mkdir(mode=0o555)
    for place, reason in (("closed", "cannot be written"), ("closed/new", "closed cannot be")):
        words = line.format(place).split()
        real, dry = (
            run_cli(*words, *more, cwd=unprivileged, env={"HOME": str(unprivileged)})
            for more in ((), ("--dry-run",))
        )
        code = 1 if "jxb" in line else 10
        assert (real.returncode, dry.returncode) == (code, code)
        assert dry.stderr == real.stderr
        assert reason in real.stderr


def test_many_ledger_segments_become_few(
    run_cli: RunCli, remote: str, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hits(side: Store) -> int | None:
        record = Ledger.load(side).record("k")
        return record and record.hits

    monkeypatch.setattr("jaxcache.cache.move.stores.COMPACT_ABOVE", 9)
    store = open_store(str(local))
    bucket = open_store(remote)
    for number in range(12):  # a local ledger is compacted as it is written
        assert append(store if number < 6 else bucket, [Event("k", "hit", 10**18 + number)])
    assert told(run_cli, "push", remote, "-C", local)["ledger_segments"] == 6
    assert len(list(bucket.list(LEDGER_DIR))) == 1
    assert hits(bucket) == 12
    # What was compacted away does not come again, from here or from the bucket.
    assert told(run_cli, "push", remote, "-C", local)["ledger_segments"] == 0
    # Of a bucket, only the records of entries that were carried are taken over.
    assert told(run_cli, "pull", remote, "-C", local)["ledger_segments"] == 0
    assert hits(store) == 6


def test_a_bound_keeps_the_most_valuable(run_cli: RunCli, local: Path, bucket: str) -> None:
    room = str(sum(p.stat().st_size for p in local.glob("*-cache")) - 1)
    for carried in (ENTRIES - 1, 0):
        done = told(run_cli, "push", bucket, "-C", local, "--max-size", room)
        assert (len(done["carried"]), len(done["no_room"])) == (carried, 1)
    full = told(run_cli, "push", bucket, "-C", local, "--max-size", "10kB", code=3)
    assert full["max_size_unmet"]


def test_prune_remote_asks(run_cli: RunCli, remote: str, corpus: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    shutil.copytree(corpus / "0.10.2-cpu-zstd", newer, copy_function=shutil.copyfile)
    assert run_cli("pin", "jit_bigconst*", "-C", remote).returncode == 0
    options = ("--prune-remote", "--max-size", "60kB", "-C", newer)
    assert run_cli("push", remote, *options).returncode == 2  # nobody to ask
    assert run_cli("push", remote, "--prune-remote", "-C", newer).returncode == 2
    planned = told(run_cli, "push", remote, *options, "-n")
    done = told(run_cli, "push", remote, *options, "-y")
    assert done["removed"] == planned["removed"] != []
    found = told(run_cli, "ls", "-C", remote)
    assert found["summary"]["size_bytes"] <= 60_000
    assert "jit_bigconst" in {e["module"] for e in found["entries"]}


def test_records_come_with_entries_and_pins_stay(
    run_cli: RunCli, local: Path, bucket: str, tmp_path: Path, s3: Proxy
) -> None:
    assert run_cli("pin", "jit_mlp*", "-C", local).returncode == 0
    keys = [path.name.removesuffix("-cache") for path in local.glob("jit_mlp*-cache")]
    facts = {"compile_seconds": 1.25, "payload_sha256": "a" * 64}
    assert append(open_store(str(local)), [Event(key, "compile", 5, facts) for key in keys])
    assert told(run_cli, "push", bucket, "-C", local)["ledger_segments"] == 1
    assert told(run_cli, "push", bucket, "-C", local)["ledger_segments"] == 0
    other = tmp_path / "other"
    s3.forget()
    assert told(run_cli, "pull", bucket, "-C", other)["ledger_segments"] == 1
    # The cache, jaxcache's own files, the records of runs, each entry and the ledger's one segment,
    # nothing twice.
    assert s3.counts() == {"list": 3, "get": len(list(other.glob("*-cache"))) + 1}
    record = Ledger.load(open_store(str(other))).record(keys[0])
    assert record is not None
    facts = (record.compile_seconds, record.payload_sha256, record.extra["imported"])
    assert facts == (1.25, None, True)
    assert run_cli("rm", "jit_mlp*", "-C", other, "--yes", "--json").returncode == 0
    bare = tmp_path / "bare"
    assert told(run_cli, "pull", bucket, "-C", bare, "--no-ledger")["carried"]
    assert not (bare / ".jaxcache").exists()


def test_dates_travel(run_cli: RunCli, bucket: str, corpus: Path, tmp_path: Path) -> None:
    capped = Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd-maxsize", tmp_path / "capped"))
    name = min(names(capped))
    os.utime(capped / name, ns=(10**18, 10**18))
    assert run_cli("copy", capped, tmp_path / "copied").returncode == 0
    for stamp in capped.glob("*-atime"):  # of a new directory as of the one that fills it
        assert (tmp_path / "copied" / stamp.name).read_bytes() == stamp.read_bytes()
    assert run_cli("push", bucket, "-C", capped).returncode == 0
    found = told(run_cli, "ls", "-C", bucket)
    assert {e["last_used_from"] for e in found["entries"]} == {"mtime"}
    plain = tmp_path / "plain"
    assert run_cli("pull", bucket, "-C", plain).returncode == 0
    assert (plain / name).stat().st_mtime_ns == 10**18
    assert not list(plain.glob("*-atime"))
    (capped / name).unlink()
    (capped / name.replace("-cache", "-atime")).unlink()
    assert run_cli("pull", bucket, "-C", capped).returncode == 0
    assert (capped / name.replace("-cache", "-atime")).stat().st_size == 8


def test_only_what_a_trusted_key_has_signed(
    run_cli: RunCli, local: Path, bucket: str, here: Path, s3_server: S3Server
) -> None:
    pytest.importorskip("cryptography")
    mine = run_cli("trust", "keygen", "me").stdout.strip().partition("\t")[2]
    assert run_cli("trust", "keygen", "other").returncode == 0
    one, two, *rest = sorted(names(local))
    run_cli("pin", "-C", local, one[:-6])
    push = ("push", bucket, "-C", local)
    assert run_cli(*push, "--sign", "me", "--exclude", two[:-6]).returncode == 0
    assert run_cli(*push, "--sign", "other").returncode == 0
    forged = zstandard.compress(bytes(4) + padded(payload_of(local / one), 1 << 15))
    s3_server.put(bucket, one, forged)
    assert run_cli("trust", "add", "me", mine).returncode == 0
    # What was pushed is sealed; that changes bytes and no payload.
    assert "sealed 1 entry" in run_cli("seal", "-C", bucket).stderr
    done = told(run_cli, "pull", bucket, "--require-signed", "-C", here, code=12)
    assert {t["file"] for t in done["untrusted"]} == {one, two}
    assert names(here) == set(rest)
    ledger = Ledger.load(open_store(str(here)))  # anybody can have written that of the bucket
    assert {event.kind for event in ledger.events()} == {"arrived"}


ODD = [
    *("sp ace", "per%41", "per%", "plus+", "hash#", "quest?", "br[a]{e}", "café", "e\u0301"),
    *("quo'te\"", "back\\sl", "st*r", "-dash", "~tilde", "<b>&amp;", "..dots"),
]


def test_odd_names_travel(run_cli: RunCli, local: Path, bucket: str, here: Path) -> None:
    (source,) = local.glob("jit_bigconst-*-cache")
    payload, odd = payload_of(source), set()
    for number, name in enumerate(ODD):
        module = "jit_" + name + "_" * (8 - len(name.encode()))
        renamed = payload.replace(b"jit_bigconst", module.encode())
        odd.add(file := f"{module}-{number:064x}-cache")
        (local / file).write_bytes(zstandard.compress(bytes(4) + renamed))
    unprintable = f"jit_\x1b[31m-{0:064x}-cache"
    shutil.copyfile(source, local / unprintable)
    (left,) = told(run_cli, "push", bucket, "-C", local, code=3)["left_out"]
    assert (left["file"], left["kind"]) == (f"jit_\\x1b[31m-{0:064x}-cache", "stray-file")
    assert {e["file"] for e in told(run_cli, "ls", "-C", bucket)["entries"]} >= odd
    assert len(told(run_cli, "pull", bucket, "-C", here)["carried"]) == ENTRIES + len(ODD)
    assert names(here) == names(local) - {unprintable}
    again = told(run_cli, "push", bucket, "-C", here)
    assert (again["carried"], again["present"]) == ([], ENTRIES + len(ODD))
    keys = [name.removesuffix("-cache") for name in odd if not set("*?[") & set(name)]
    assert len(told(run_cli, "rm", *keys, "-C", bucket, "-y")["removed"]) == len(keys)


# What a pull makes of a bucket that is slow, torn, cut short or pruned meanwhile.


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object is too slow after seconds, at less than 200 bytes."""
    monkeypatch.setattr(retry, "SPEED_SECONDS", 2.0)
    monkeypatch.setattr(retry, "SLOWEST_BYTES", 200)


@pytest.mark.usefixtures("impatient")
def test_an_object_that_arrives_too_slowly_stays_behind(
    run_cli: RunCli, local: Path, remote: str, s3: Proxy, tmp_path: Path
) -> None:
    slow = min(names(local))
    s3.fault = lambda seen: "drip" if seen.verb == "get" and seen.name.endswith(slow) else None
    done = run_cli("pull", remote, "-C", tmp_path / "new")
    assert done.returncode == 3, done.stderr
    assert "arrives too slowly" in done.stdout + done.stderr
    assert names(tmp_path / "new") == names(local) - {slow}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("line", "code"),
    [("pull {} -C new", 10), ("verify -C {}", 10), ("ci restore {} -C new", 0)],
)
def test_a_bucket_of_slow_objects_is_given_up(
    run_cli: RunCli, remote: str, s3: Proxy, monkeypatch: pytest.MonkeyPatch, line: str, code: int
) -> None:
    """A job of CI goes on without its cache."""
    monkeypatch.setattr(retry, "SLOW_OBJECTS", 3)
    s3.fault = lambda seen: "drip" if seen.verb == "get" else None
    done = run_cli(*line.format(remote).split())
    assert done.returncode == code, done.stderr
    assert "were too slow; the last one" in done.stderr
    assert s3.counts()["get"] <= 2 * ENTRIES


def test_pull_verifies_and_heals_and_keeps(
    run_cli: RunCli, remote: str, local: Path, here: Path, s3_server: S3Server
) -> None:
    torn, rotten, other, *_ = sorted(names(local))
    here = Path(shutil.copytree(local, here))
    data = (here / torn).read_bytes()
    (here / torn).write_bytes(data[: len(data) // 2])
    os.utime(here / torn, ns=(10**18, 10**18))
    (here / rotten).unlink()
    s3_server.put(remote, rotten, b"\x28\xb5\x2f\xfdnot an entry at all")
    s3_server.put(remote, other, (local / rotten).read_bytes())
    kept = (here / other).read_bytes()
    done = told(run_cli, "pull", remote, "-C", here, code=3)
    assert [(c["file"], c["replaces_damaged"]) for c in done["carried"]] == [(torn, True)]
    assert [p["file"] for p in done["left_out"]] == [rotten]
    assert (here / torn).read_bytes() == seal_entry(data)
    assert (here / other).read_bytes() == kept
    assert not (here / rotten).exists()


def test_what_is_pruned_under_a_pull_is_gone_and_not_there_already(
    run_cli: RunCli, spawn_cli: RunCli, remote: str, s3: Proxy, s3_server: S3Server, here: Path
) -> None:
    direct = {"AWS_ENDPOINT_URL": s3_server.endpoint}
    pruned: list[str] = []

    def fault(seen: Any) -> None:
        if seen.verb == "get" and seen.name.endswith("-cache") and not pruned:
            prune = ("prune", "--max-entries", "0", "--grace", "0s", "-y", "-C", remote, "--json")
            done = json.loads(spawn_cli(*prune, env=direct).stdout)
            pruned.extend(r["key"] for r in done["removed"])

    s3.fault = fault
    done = told(run_cli, "pull", remote, "-C", here, "-j", "1")
    assert len(pruned) == ENTRIES
    assert len(done["gone"]) == ENTRIES
    assert (done["present"], done["failed"], done["left_out"]) == (0, [], [])


def test_an_answer_that_is_cut_off(run_cli: RunCli, remote: str, s3: Proxy, here: Path) -> None:
    """A cache in between that kept half an object serves it with a length that fits."""
    victim = min(e["file"] for e in told(run_cli, "ls", "-C", remote)["entries"])
    s3.fault = lambda seen: "shorten" if seen.name.endswith(victim) else None
    done = told(run_cli, "pull", remote, "-C", here, code=3)
    assert [f["file"] for f in done["failed"]] == [victim]
    assert not (here / victim).exists()
    assert len(names(here)) == ENTRIES - 1


# Push and pull that are killed, that meet each other, and that run beside a writer.


@pytest.fixture
def fifty(corpus: Path, tmp_path: Path) -> Path:
    """Some fifty entries."""
    directory = tmp_path / "local"
    for version in ("0.12.0.1-cpu-zstd", "0.10.2-cpu-zstd", "0.12.0.1-cuda13-h200-zstd"):
        shutil.copytree(corpus / version, directory, dirs_exist_ok=True)
    for number in range(30):
        source = min(directory.glob("jit_mlp-*-cache"))
        shutil.copy2(source, directory / f"jit_mlp-{number:064x}-cache")
    return directory


def run_interrupted(s3: Proxy, send: int, home: Path, *args: str | Path) -> tuple[int, str]:
    """Run a command that is signalled when it makes its 20th request."""
    verb = "put" if args[0] == "push" else "get"
    numbers = itertools.count(1)
    started = threading.Event()

    def fault(request: Any) -> str | None:
        if request.verb != verb:
            return None
        if next(numbers) == 20:
            started.wait()
            process.send_signal(send)
        return "slow"

    s3.fault = fault
    process = begin(home, *args, "--jobs", "4")
    started.set()
    _, said = process.communicate(timeout=120)
    time.sleep(0.5)  # what was under way arrives, as it would at a real server
    s3.forget()
    return process.returncode, said


@pytest.mark.parametrize(
    ("command", "send"),
    [
        ("push", signal.SIGINT),
        ("pull", signal.SIGKILL),
        pytest.param("push", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("pull", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_what_was_interrupted_resumes(
    run_cli: RunCli, fifty: Path, bucket: str, s3: Proxy, here: Path, command: str, send: int
) -> None:
    everything = {p.name for p in fifty.iterdir()}
    if command == "pull":
        assert run_cli("push", bucket, "-C", fifty).returncode == 0
    line = (command, bucket, "-C", fifty if command == "push" else here)
    ended, said = run_interrupted(s3, send, here.parent, *line)
    assert ended == (-9 if send == signal.SIGKILL else 130)
    assert "Traceback" not in said
    if (command, send) == ("push", signal.SIGINT):
        assert "it skips the files that are complete" in said
    there = names(here) if command == "pull" else {i.name for i in open_store(bucket).list()}
    assert set() < there < everything
    for path in here.glob("*-cache"):
        assert path.read_bytes() == seal_entry((fifty / path.name).read_bytes())
    told(run_cli, *line)
    verb = "put" if command == "push" else "get"
    missing = {n.rpartition("/")[2] for n in s3.names(verb)}
    assert missing & everything == everything - there
    assert s3.counts()[verb] == len(everything - there)
    assert s3.counts()["get"] == 0 or command == "pull"
    assert run_cli("diff", fifty, bucket if command == "push" else here).returncode == 0


WRITER = """
import pathlib, sys, time
source, target = map(pathlib.Path, sys.argv[1:])
for path in sorted(source.iterdir()):
    data = path.read_bytes()
    with open(target / path.name, "wb", buffering=0) as file:  # as JAX does: in place
        for start in range(0, len(data), 1 + len(data) // 8):
            file.write(data[start : start + 1 + len(data) // 8])
            time.sleep(0.002)
"""


def test_a_pusher_beside_a_writer(
    run_cli: RunCli, fifty: Path, bucket: str, tmp_path: Path
) -> None:
    target = tmp_path / "written"
    target.mkdir()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(fifty), str(target)])
    pushes = 0
    while writer.poll() is None or pushes == 0:
        done = run_cli("push", bucket, "-C", target)
        assert done.returncode in (0, 3), done.stderr  # torn ones are young, and wait
        pushes += 1
    assert writer.returncode == 0
    store = open_store(bucket)
    for info in store.list():
        assert store.read(info.name, limit=1 << 24) == seal_entry((fifty / info.name).read_bytes())
    assert run_cli("push", bucket, "-C", target).returncode == 0
    assert run_cli("diff", fifty, bucket).returncode == 0
