"""``ci restore`` and ``ci save`` against a real S3 server, and through a proxy that fails."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import RunCli

from jaxcache.store import open_store

if TYPE_CHECKING:
    from object_server import Proxy

CPU, SECOND = "0.10.2-cpu-zstd", "0.8.3-cpu-zstd"


@pytest.fixture
def job(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / CPU, tmp_path / "job"))


def step(run_cli: RunCli, verb: str, place: str, job: Path, *options: str) -> Any:
    everything = ["--everything"] if verb == "restore" else []
    done = run_cli("ci", verb, place, "-C", job, "--json", *everything, *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def names(cache: Path) -> set[str]:
    return {p.name for p in cache.glob("*-cache")}


def test_there_and_back(
    run_cli: RunCli, s3: "Proxy", bucket: str, job: Path, corpus: Path, tmp_path: Path
) -> None:
    told = step(run_cli, "save", bucket, job)
    assert (told["saved"], told["written"]) == (True, 7)
    fresh = tmp_path / "fresh"
    told = step(run_cli, "restore", bucket, fresh)
    assert (told["cache_hit"], told["written"], told["entries"]) == (True, 7, 7)
    assert names(fresh) == names(job)
    verified = json.loads(run_cli("verify", "-C", fresh, "--grace", "0s", "--json").stdout)
    assert (verified["ok"], verified["problems"]) == (7, [])
    (new,) = (corpus / SECOND).glob("jit_mlp-*-cache")
    shutil.copyfile(new, fresh / new.name)
    told = step(run_cli, "save", bucket, fresh)
    assert (told["why"], told["written"]) == ("new", 1)
    listed = json.loads(run_cli("ls", "-C", bucket, "--json").stdout)["entries"]
    assert {e["file"] for e in listed} == names(job) | {new.name}
    told = step(run_cli, "restore", bucket, fresh)
    assert (told["cache_hit"], told["present"], told["written"]) == (True, 8, 0)


def test_what_is_here_is_not_fetched(run_cli: RunCli, s3: "Proxy", bucket: str, job: Path) -> None:
    step(run_cli, "save", bucket, job)
    s3.forget()
    step(run_cli, "restore", bucket, job)
    assert not [s for s in s3.seen if s.name.endswith("-cache")]
    s3.forget()
    assert step(run_cli, "save", bucket, job)["saved"] is False
    assert not [s for s in s3.seen if s.name.endswith("-cache")], "nothing new, nothing sent"


def test_a_bundle_as_one_object(
    run_cli: RunCli, s3: "Proxy", bucket: str, job: Path, tmp_path: Path
) -> None:
    url = f"{bucket}/main.jxb"
    assert step(run_cli, "restore", url, tmp_path / "fresh")["cache_hit"] is False
    told = step(run_cli, "save", url, job)
    assert (told["why"], told["written"]) == ("new", 7)
    looked = run_cli("ci", "restore", url, "-C", tmp_path / "fresh", "--lookup-only")
    assert f"warning: {url}: it is not signed" in looked.stderr
    assert step(run_cli, "restore", url, tmp_path / "fresh")["written"] == 7
    assert names(tmp_path / "fresh") == names(job)
    told = step(run_cli, "save", url, tmp_path / "fresh")
    assert (told["saved"], told["why"]) == (False, "nothing-new")


def test_a_bucket_out_of_reach_is_a_miss(
    run_cli: RunCli, bucket: str, job: Path, tmp_path: Path
) -> None:
    env = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    done = run_cli("ci", "restore", bucket, "-C", tmp_path / "fresh", "--json", env=env)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["cache_hit"], bool(told["trouble"])) == (False, True)
    assert run_cli("ci", "save", bucket, "-C", job, env=env).returncode in (3, 10)


def test_damage_in_a_bucket_stays_there(
    run_cli: RunCli, bucket: str, job: Path, tmp_path: Path
) -> None:
    step(run_cli, "save", bucket, job)
    victim = min(job.glob("*-cache"))
    open_store(bucket).write(victim.name, [victim.read_bytes()[:-20]])
    told = step(run_cli, "restore", bucket, tmp_path / "fresh")
    assert (told["entries"], told["left_out"]) == (6, 1)
    assert victim.name not in names(tmp_path / "fresh")


def test_an_entry_that_cannot_be_read_is_not_called_damaged(
    run_cli: RunCli, s3: "Proxy", bucket: str, job: Path, tmp_path: Path
) -> None:
    step(run_cli, "save", bucket, job)
    victim = min(job.glob("*-cache")).name
    s3.fault = lambda seen: 400 if seen.name.endswith(victim) else None
    told = step(run_cli, "restore", bucket, tmp_path / "fresh")
    assert (told["left_out"], [f["file"] for f in told["failed"]]) == (0, [victim])
    assert names(tmp_path / "fresh") == names(job) - {victim}


def test_a_shared_cache_needs_no_bucket_for_jax(run_cli: RunCli, bucket: str) -> None:
    done = run_cli("ci", "restore", bucket, "-C", bucket)
    assert (done.returncode, "[not-local]" in done.stderr) == (2, True)
