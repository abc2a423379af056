"""What a pull makes of a bucket that is slow, torn, cut short or pruned meanwhile."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from object_server import Proxy, S3Server
from ways import names

from jaxcache.entry.codec import seal_entry

ENTRIES = 7


def told(done: "subprocess.CompletedProcess[str]", code: int = 0) -> Any:
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object is too slow after seconds, at less than 200 bytes."""
    from jaxcache.store.object import retry

    monkeypatch.setattr(retry, "SPEED_SECONDS", 2.0)
    monkeypatch.setattr(retry, "SLOWEST_BYTES", 200)


@pytest.mark.usefixtures("impatient")
def test_an_object_that_arrives_too_slowly_stays_behind(
    run_cli: RunCli, local: Path, bucket: str, s3: Proxy, tmp_path: Path
) -> None:
    assert run_cli("push", bucket, "-C", local).returncode == 0
    slow = min(names(local))
    s3.fault = lambda seen: "drip" if seen.verb == "get" and seen.name.endswith(slow) else None
    done = run_cli("pull", bucket, "-C", tmp_path / "new")
    assert done.returncode == 3, done.stderr
    assert "arrives too slowly" in done.stdout + done.stderr
    assert names(tmp_path / "new") == names(local) - {slow}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("command", "code"), [("pull", 10), ("verify", 10), ("ci restore", 0)])
def test_a_bucket_of_slow_objects_is_given_up(
    run_cli: RunCli,
    local: Path,
    bucket: str,
    s3: Proxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    code: int,
) -> None:
    """A job of CI goes on without its cache."""
    from jaxcache.store.object import retry

    monkeypatch.setattr(retry, "SLOW_OBJECTS", 3)
    assert run_cli("push", bucket, "-C", local).returncode == 0
    s3.forget()
    s3.fault = lambda seen: "drip" if seen.verb == "get" else None
    places = (bucket,) if command != "verify" else ()
    into = bucket if command == "verify" else tmp_path / "new"
    done = run_cli(*command.split(), *places, "-C", into)
    assert done.returncode == code, done.stderr
    assert "were too slow; the last one" in done.stderr
    assert s3.counts()["get"] <= 2 * ENTRIES


def test_pull_verifies_and_heals_and_keeps(
    run_cli: RunCli, remote: str, local: Path, tmp_path: Path, s3_server: S3Server
) -> None:
    torn, rotten, other, *_ = sorted(names(local))
    here = Path(shutil.copytree(local, tmp_path / "here"))
    data = (here / torn).read_bytes()
    (here / torn).write_bytes(data[: len(data) // 2])
    os.utime(here / torn, ns=(10**18, 10**18))
    (here / rotten).unlink()
    s3_server.put(remote, rotten, b"\x28\xb5\x2f\xfdnot an entry at all")
    s3_server.put(remote, other, (local / rotten).read_bytes())
    kept = (here / other).read_bytes()
    done = run_cli("pull", remote, "-C", here, "--json")
    assert done.returncode == 3
    told_ = json.loads(done.stdout)
    assert [(c["file"], c["replaces_damaged"]) for c in told_["carried"]] == [(torn, True)]
    assert [p["file"] for p in told_["left_out"]] == [rotten]
    assert (here / torn).read_bytes() == seal_entry(data)
    assert (here / other).read_bytes() == kept
    assert not (here / rotten).exists()


def test_what_is_pruned_under_a_pull_is_gone_and_not_there_already(
    spawn_cli: RunCli, remote: str, s3: Proxy, s3_server: S3Server, local: Path, tmp_path: Path
) -> None:
    direct = {"AWS_ENDPOINT_URL": s3_server.endpoint}
    pruned: list[str] = []

    def fault(seen: Any) -> None:
        if seen.verb == "get" and seen.name.endswith("-cache") and not pruned:
            done = spawn_cli(
                "prune",
                "-C",
                remote,
                "--max-entries",
                "0",
                "--grace",
                "0s",
                "-y",
                "--json",
                env=direct,
            )
            pruned.extend(r["key"] for r in told(done)["removed"])

    s3.fault = fault
    done = told(spawn_cli("pull", remote, "-C", tmp_path / "here", "-j", "1", "--json"))
    assert len(pruned) == ENTRIES
    assert len(done["gone"]) == ENTRIES
    assert (done["present"], done["failed"], done["left_out"]) == (0, [], [])


def test_an_answer_that_is_cut_off_and_says_nothing_of_it(
    run_cli: RunCli, remote: str, s3: Proxy, tmp_path: Path
) -> None:
    """A cache in between that kept half an object serves it with a length that fits."""
    victim = min(e["file"] for e in told(run_cli("ls", "-C", remote, "--json"))["entries"])
    s3.fault = lambda seen: "shorten" if seen.name.endswith(victim) else None
    done = told(run_cli("pull", remote, "-C", tmp_path / "here", "--json"), 3)
    assert [f["file"] for f in done["failed"]] == [victim]
    assert not (tmp_path / "here" / victim).exists()
    assert len(names(tmp_path / "here")) == ENTRIES - 1
