"""Push and pull that are killed, that meet each other, and that run beside a writer."""

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

import pytest
from conftest import RunCli, clean_environment
from object_server import Proxy

from jaxcache.entry.codec import seal_entry
from jaxcache.store import open_store


@pytest.fixture
def local(corpus: Path, tmp_path: Path) -> Path:
    """Some fifty entries."""
    directory = tmp_path / "local"
    for version in ("0.12.0.1-cpu-zstd", "0.10.2-cpu-zstd", "0.12.0.1-cuda13-h200-zstd"):
        shutil.copytree(corpus / version, directory, dirs_exist_ok=True)
    for number in range(30):
        source = min(directory.glob("jit_mlp-*-cache"))
        shutil.copy2(source, directory / f"jit_mlp-{number:064x}-cache")
    return directory


def start(home: Path, *args: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "jaxcache", *map(str, args)],
        env=clean_environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupt_at(s3: Proxy, verb: str, count: int, send: int, started: threading.Event) -> None:
    """Have the process that announces itself signalled when it makes its ``count``-th request."""
    numbers = itertools.count(1)

    def fault(request: object) -> str | None:
        if request.verb != verb:  # type: ignore[attr-defined]
            return None
        if next(numbers) == count:
            started.wait()
            os.kill(s3.process, send)  # type: ignore[attr-defined]
        return "slow"

    s3.fault = fault


def run_interrupted(
    s3: Proxy, verb: str, send: int, home: Path, *args: str | Path
) -> tuple[int, str]:
    started = threading.Event()
    interrupt_at(s3, verb, 20, send, started)
    process = start(home, *args, "--jobs", "4")
    s3.process = process.pid  # type: ignore[attr-defined]
    started.set()
    _, said = process.communicate(timeout=120)
    time.sleep(0.5)  # what was under way arrives, as it would at a real server
    s3.forget()
    return process.returncode, said


ENDS = [(signal.SIGKILL, -9), (signal.SIGINT, 130)]


@pytest.mark.parametrize(("send", "code"), ENDS, ids=["kill", "interrupt"])
def test_an_interrupted_push_resumes(
    run_cli: RunCli, local: Path, bucket: str, s3: Proxy, tmp_path: Path, send: int, code: int
) -> None:
    ended, said = run_interrupted(s3, "put", send, tmp_path, "push", bucket, "-C", local)
    assert ended == code
    assert "Traceback" not in said
    if send == signal.SIGINT:
        assert "it skips the files that are complete" in said
    there = {i.name for i in open_store(bucket).list()}
    everything = {p.name for p in local.iterdir()}
    assert there
    assert there < everything
    s3.forget()
    done = run_cli("push", bucket, "-C", local, "--json")
    assert done.returncode == 0, done.stderr
    assert {n.rpartition("/")[2] for n in s3.names("put")} == everything - there
    assert s3.counts()["put"] == len(everything - there)
    assert s3.counts()["get"] == 0
    assert run_cli("diff", local, bucket).returncode == 0


@pytest.mark.parametrize(("send", "code"), ENDS, ids=["kill", "interrupt"])
def test_an_interrupted_pull_resumes(
    run_cli: RunCli, local: Path, bucket: str, s3: Proxy, tmp_path: Path, send: int, code: int
) -> None:
    assert run_cli("push", bucket, "-C", local).returncode == 0
    here = tmp_path / "here"
    ended, said = run_interrupted(s3, "get", send, tmp_path, "pull", bucket, "-C", here)
    assert ended == code
    assert "Traceback" not in said
    there = {p.name for p in here.glob("*-cache")}
    assert there
    for name in there:
        assert (here / name).read_bytes() == seal_entry((local / name).read_bytes())
    done = run_cli("pull", bucket, "-C", here, "--json")
    assert done.returncode == 0, done.stderr
    assert s3.counts()["get"] == len(list(local.iterdir())) - len(there)
    assert run_cli("diff", local, here).returncode == 0


def test_two_pushers_end_up_with_what_both_have(
    run_cli: RunCli, local: Path, bucket: str, tmp_path: Path
) -> None:
    names = sorted(p.name for p in local.iterdir())
    directories = [tmp_path / "one", tmp_path / "two"]
    for directory, some in zip(directories, (names[:40], names[10:]), strict=True):
        directory.mkdir()
        for name in some:
            shutil.copy2(local / name, directory / name)
    pushers = [
        start(tmp_path, "push", bucket, "-C", directory, "--json") for directory in directories
    ]
    told = []
    for pusher in pushers:
        out, said = pusher.communicate(timeout=120)
        assert pusher.returncode == 0, said
        told.append(json.loads(out))
    assert sum(len(t["carried"]) for t in told) >= len(names)
    assert not any(t["failed"] for t in told)
    assert run_cli("diff", local, bucket).returncode == 0


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


def test_a_pusher_beside_a_writer_sends_nothing_torn(
    run_cli: RunCli, local: Path, bucket: str, tmp_path: Path
) -> None:
    target = tmp_path / "written"
    target.mkdir()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(local), str(target)])
    pushes = 0
    while writer.poll() is None or pushes == 0:
        done = run_cli("push", bucket, "-C", target, "--json")
        assert done.returncode == 0, done.stderr  # torn ones are young, and wait
        pushes += 1
    assert writer.returncode == 0
    store = open_store(bucket)
    for info in store.list():
        assert store.read(info.name, limit=1 << 24) == seal_entry((local / info.name).read_bytes())
    assert run_cli("push", bucket, "-C", target).returncode == 0
    assert run_cli("diff", local, bucket).returncode == 0
