"""Commands on URLs: what they do there, and what they ask for."""

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from object_server import Proxy, S3Server, times

from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.segments import LEDGER_DIR, Ledger, append
from jaxcache.store import open_store

ENTRIES = 7


@pytest.fixture
def local(corpus: Path, tmp_path: Path) -> Path:
    """A cache that may be changed."""
    return Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "local"))


@pytest.fixture
def remote(run_cli: RunCli, local: Path, bucket: str, s3: Proxy) -> str:
    """The same in a bucket."""
    assert run_cli("push", bucket, "-C", local).returncode == 0
    s3.forget()
    return bucket


def told(done: Any) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.glob("*-cache")}


def test_a_bucket_is_listed_without_reading(run_cli: RunCli, remote: str, s3: Proxy) -> None:
    found = told(run_cli("ls", "-C", remote, "--json", "--stats"))
    assert found["cache_dir"] == remote
    assert len(found["entries"]) == ENTRIES
    assert {e["compile_seconds"] for e in found["entries"]} == {None}
    assert {e["platform"] for e in found["entries"]} == {"unknown"}
    assert found["remote"]["requests"] == {"list": 1} == s3.counts()
    long = told(run_cli("ls", "-C", remote, "--json", "--long", "--stats"))
    assert {e["platform"] for e in long["entries"]} == {"cpu"}
    # The index knows them from now on, and so a plain listing tells them, too.
    s3.forget()
    again = told(run_cli("ls", "-C", remote, "--json"))
    assert again["entries"] == long["entries"]
    assert s3.counts() == {"list": 1}


def test_a_listing_of_ten_thousand_takes_ten_requests(
    run_cli: RunCli, bucket: str, s3: Proxy, s3_server: S3Server
) -> None:
    s3_server.fill(bucket, [f"jit_f-{i:064x}-cache" for i in range(10_000)])
    for command in ("ls", "stats"):
        s3.forget()
        found = told(run_cli(command, "-C", bucket, "--json", "--stats"))
        assert len(found.get("entries", range(10_000))) == 10_000
        assert found["remote"]["requests"] == s3.counts() == {"list": 10}
    s3.forget()
    shown = run_cli("show", f"jit_f-{7_777:064x}", "-C", bucket, "--json")
    assert json.loads(shown.stdout)["entry"]["key"] == f"jit_f-{7_777:064x}"
    assert s3.counts()["list"] == 2  # for a whole key not all of it: a page, and the ledger
    s3.forget()
    done = run_cli("prune", "-C", bucket, "--max-entries", "9000", "--policy", "lru",
                   "--grace", "0s", "--yes", "--stats", "--json")  # fmt: skip
    assert len(told(done)["removed"]) == 1_000
    # The ledger, the cache, once more the stretch of names that goes, and one for all of them.
    assert s3.counts()["delete"] == 1
    assert s3.counts()["list"] <= 10 + 1 + 10
    assert set(s3.counts()) == {"list", "delete"}


@pytest.mark.parametrize(
    ("command", "most"),
    [
        (("ls", "-q"), {"list": 1}),
        (("stats",), {"list": 1}),
        (("stats", "--long"), {"list": 1, "get": 2 * ENTRIES + 1}),
        (("show", "jit_mlp*"), {"list": 2, "get": 2}),
        (("verify",), {"list": 4, "get": ENTRIES}),
        (("rm", "jit_mlp*", "-y"), {"list": 2, "head": 1, "delete": 1}),
        (("prune", "--unused-for", "1d", "-y"), {"list": 2}),
        (("pull", "URL"), {"list": 2, "get": ENTRIES}),
        (("export", "out.jxb"), {"list": 2, "get": ENTRIES}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_each_command_costs(
    run_cli: RunCli, remote: str, s3: Proxy, command: tuple[str, ...], most: dict[str, int]
) -> None:
    place = () if "URL" in command else ("-C", remote)
    done = run_cli(*(remote if a == "URL" else a for a in command), *place, "--stats")
    assert done.returncode == 0, done.stderr
    assert all(s3.counts()[verb] <= most.get(verb, 0) for verb in s3.counts()), s3.counts()
    line = re.search(r"(\d+) requests? \((.*?)\), .* sent, .* received", done.stderr)
    assert line, done.stderr
    counted = {v: int(n) for n, v in (w.split() for w in line[2].split(", "))}
    assert (int(line[1]), counted) == (s3.counts().total(), dict(s3.counts()))


def test_a_local_cache_costs_nothing(run_cli: RunCli, local: Path) -> None:
    assert told(run_cli("ls", "-C", local, "--json", "--stats"))["remote"]["requests_total"] == 0
    assert "remote" not in told(run_cli("ls", "-C", local, "--json"))


def test_show_diff_export_and_copy(
    run_cli: RunCli, remote: str, local: Path, tmp_path: Path
) -> None:
    here = told(run_cli("show", "jit_mlp*", "-C", local, "--json"))
    there = told(run_cli("show", "jit_mlp*", "-C", remote, "--json"))
    assert there["program"] == here["program"]
    assert run_cli("diff", local, remote).returncode == 0
    assert run_cli("export", tmp_path / "b.jxb", "-C", remote).returncode == 0
    assert run_cli("diff", tmp_path / "b.jxb", remote).returncode == 0
    copied = f"{remote}-copy"
    assert run_cli("copy", remote, copied).returncode == 0
    assert run_cli("copy", copied, tmp_path / "back").returncode == 0
    assert run_cli("diff", local, tmp_path / "back").returncode == 0
    assert run_cli("import", tmp_path / "b.jxb", "-C", f"{remote}-import").returncode == 0
    assert run_cli("diff", local, f"{remote}-import").returncode == 0
    assert run_cli("rm", "jit_mlp*", "-C", copied, "--yes").returncode == 0
    assert run_cli("diff", local, copied).returncode == 1


def test_a_rotten_object_is_found_and_put_away(
    run_cli: RunCli, remote: str, local: Path, s3_server: S3Server
) -> None:
    victim = min(names(local))
    s3_server.put(remote, victim, (local / victim).read_bytes()[:-9])
    found = run_cli("verify", "-C", remote, "--json", "--grace", "0s")
    assert found.returncode == 1
    assert {p["kind"] for p in json.loads(found.stdout)["problems"]} == {"truncated", "unsealed"}
    fixed = run_cli("verify", "-C", remote, "--fix", "--grace", "0s")
    assert fixed.returncode == 0, fixed.stderr
    assert run_cli("verify", "-C", remote).returncode == 0
    assert len(told(run_cli("ls", "-C", remote, "--json"))["entries"]) == ENTRIES - 1
    # What is missing comes back with the next push.
    assert told(run_cli("push", remote, "-C", local, "--json"))["carried"][0]["file"] == victim
    assert run_cli("diff", local, remote).returncode == 0


def test_seal_and_pins_in_a_bucket(run_cli: RunCli, remote: str, local: Path) -> None:
    assert run_cli("seal", "-C", remote).returncode == 0
    assert "7 intact" in run_cli("verify", "-C", remote).stderr
    assert run_cli("diff", local, remote).returncode == 0  # the same payloads
    assert run_cli("pin", "jit_mlp*", "-C", remote).returncode == 0
    done = run_cli("prune", "-C", remote, "--max-entries", "1", "--grace", "0s", "--yes")
    assert done.returncode == 0, done.stderr
    (left,) = told(run_cli("ls", "-C", remote, "--json"))["entries"]
    assert left["module"] == "jit_mlp"


def test_errors_are_sentences_and_have_codes(
    run_cli: RunCli, remote: str, local: Path, s3: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code(*args: str | Path, **env: str) -> tuple[int, str]:
        done = run_cli(*args, "--json", env=env)
        assert "Traceback" not in done.stderr
        error = json.loads(done.stderr.splitlines()[-1])["error"]
        assert error["exit_code"] == done.returncode
        return done.returncode, error["code"]

    assert code("ls", "-C", "s3://no-such-bucket") == (10, "no-bucket")
    assert code("push", "s3://no-such-bucket", "-C", local) == (10, "no-bucket")
    assert code("pull", f"{remote}-nothing") == (10, "no-cache")
    with monkeypatch.context() as patch:
        patch.delenv("AWS_SECRET_ACCESS_KEY")
        assert code("ls", "-C", remote) == (10, "no-credentials")
    assert code("ls", "-C", remote, AWS_ENDPOINT_URL="http://127.0.0.1:9") == (10, "no-network")
    s3.fault = times(99, 403, "list")
    assert code("ls", "-C", remote) == (10, "permission-denied")
    s3.fault = times(99, 403, "put")
    assert code("push", f"{remote}-new", "-C", local) == (1, "read-only")
    assert code("push", "https://127.0.0.1:9/x", "-C", local) == (1, "read-only")


def test_throttling_is_told(run_cli: RunCli, remote: str, s3: Proxy) -> None:
    s3.fault = times(2, 503, "list")
    done = run_cli("ls", "-C", remote, "-q", "--stats")
    assert done.returncode == 0
    assert f"{remote} asks to slow down; waiting" in done.stderr
    assert "3 requests (3 list)" in done.stderr
    assert "2 sent again, 2 throttled" in done.stderr


def test_push_sends_what_is_missing_and_nothing_else(
    run_cli: RunCli, local: Path, bucket: str, s3: Proxy
) -> None:
    junk = ["x_gstmp", "jit_f-12_.gstmp", "_temp_x", ".jaxcache-tmp-1-x", "notes.txt", "a-cache"]
    for name in junk:
        (local / name).write_text("junk")
    (local / "jit_mlp*").mkdir()
    first = told(run_cli("push", bucket, "-C", local, "--json", "--dry-run"))
    assert (len(first["carried"]), first["dry_run"]) == (ENTRIES, True)
    assert s3.counts()["put"] == 0
    done = told(run_cli("push", bucket, "-C", local, "--json"))
    assert {c["file"] for c in done["carried"]} == names(local) - {"a-cache"}
    assert {n.rpartition("/")[2] for n in s3.names("put")} == names(local) - {"a-cache"}
    s3.forget()
    again = told(run_cli("push", bucket, "-C", local, "--json"))
    assert (again["carried"], again["present"]) == ([], ENTRIES)
    assert s3.counts() == {"list": 1}


def test_globs_choose(run_cli: RunCli, local: Path, bucket: str, tmp_path: Path) -> None:
    def sent(*options: str) -> list[str]:
        done = told(run_cli("push", bucket, "-C", local, "--json", "-n", *options))
        return sorted(c["key"].rpartition("-")[0] for c in done["carried"])

    assert sent("--include", "jit_l*") == ["jit_loss"]
    assert sent("--include", "jit_l*", "--include", "jit_m*") == ["jit_loss", "jit_mlp"]
    assert "jit_loss" not in sent("--exclude", "*loss*")
    key = min(names(local)).removesuffix("-cache")
    assert len(sent("--include", key)) == 1
    assert sent("--include", "jit_l*", "--exclude", "*") == []


def test_a_torn_entry_does_not_travel(run_cli: RunCli, local: Path, bucket: str) -> None:
    victim, young = sorted(names(local))[:2]
    for name in (victim, young):
        path = local / name
        path.write_bytes(path.read_bytes()[:-7])
    os.utime(local / victim, ns=(10**18, 10**18))
    done = run_cli("push", bucket, "-C", local, "--json")
    assert done.returncode == 3
    told_ = json.loads(done.stdout)
    assert [(p["file"], p["kind"]) for p in told_["left_out"]] == [(victim, "truncated")]
    assert [t["file"] for t in told_["unfinished"]] == [young]
    assert len(told_["carried"]) == ENTRIES - 2


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
    assert (here / torn).read_bytes() == data
    assert (here / other).read_bytes() == kept
    assert not (here / rotten).exists()


def test_a_bound_reads_what_is_there_once(
    run_cli: RunCli, remote: str, local: Path, s3: Proxy
) -> None:
    time.sleep(2)  # the index does not trust files that are younger
    push = ("push", remote, "-C", local)
    for command, most in ((push, ENTRIES + 1), (push, 0), (("prune", "-C", remote, "-n"), 0)):
        s3.forget()
        assert run_cli(*command, "--max-size", "1MB").returncode == 0
        assert s3.counts()["get"] <= most


def test_many_ledger_segments_become_few(
    run_cli: RunCli, remote: str, local: Path, s3: Proxy
) -> None:
    store = open_store(str(local))
    for number in range(70):
        assert append(store, [Event("k", "hit", 10**18 + number)])
    assert told(run_cli("push", remote, "-C", local, "--json"))["ledger_segments"] == 70
    bucket = open_store(remote)
    assert len(list(bucket.list(LEDGER_DIR))) == 1
    record = Ledger.load(bucket).record("k")
    assert record is not None
    assert record.hits == 70
    # What was compacted away does not come again, from here or from the bucket.
    assert told(run_cli("push", remote, "-C", local, "--json"))["ledger_segments"] == 0
    assert told(run_cli("pull", remote, "-C", local, "--json"))["ledger_segments"] == 1
    record = Ledger.load(store).record("k")
    assert record is not None
    assert record.hits == 70


def test_a_bound_keeps_the_most_valuable(run_cli: RunCli, local: Path, bucket: str) -> None:
    sizes = {p.name: p.stat().st_size for p in local.glob("*-cache")}
    room = sum(sizes.values()) - 1
    done = told(run_cli("push", bucket, "-C", local, "--json", "--max-size", str(room)))
    assert len(done["no_room"]) == 1
    assert len(done["carried"]) == ENTRIES - 1
    again = told(run_cli("push", bucket, "-C", local, "--json", "--max-size", str(room)))
    assert (len(again["carried"]), len(again["no_room"])) == (0, 1)
    full = run_cli("push", bucket, "-C", local, "--json", "--max-size", "10kB")
    assert full.returncode == 3
    assert json.loads(full.stdout)["max_size_unmet"]


def test_prune_remote_asks_and_never_takes_a_pin(
    run_cli: RunCli, remote: str, corpus: Path, tmp_path: Path
) -> None:
    newer = tmp_path / "newer"
    shutil.copytree(corpus / "0.10.2-cpu-zstd", newer, copy_function=shutil.copyfile)
    assert run_cli("pin", "jit_bigconst*", "-C", remote).returncode == 0
    options = ("--prune-remote", "--max-size", "60kB", "-C", newer)
    assert run_cli("push", remote, *options).returncode == 2  # nobody to ask
    assert run_cli("push", remote, "--prune-remote", "-C", newer).returncode == 2
    planned = told(run_cli("push", remote, *options, "--json", "-n"))
    done = told(run_cli("push", remote, *options, "--json", "-y"))
    assert done["removed"] == planned["removed"] != []
    found = told(run_cli("ls", "-C", remote, "--json"))
    assert found["summary"]["size_bytes"] <= 60_000
    assert "jit_bigconst" in {e["module"] for e in found["entries"]}


def test_ledgers_become_one(
    run_cli: RunCli, local: Path, bucket: str, tmp_path: Path, s3: Proxy
) -> None:
    assert run_cli("pin", "jit_mlp*", "-C", local).returncode == 0
    assert told(run_cli("push", bucket, "-C", local, "--json"))["ledger_segments"] == 1
    assert told(run_cli("push", bucket, "-C", local, "--json"))["ledger_segments"] == 0
    other = tmp_path / "other"
    assert told(run_cli("pull", bucket, "-C", other, "--json"))["ledger_segments"] == 1
    done = run_cli("rm", "jit_mlp*", "-C", other, "--yes", "--json")
    assert json.loads(done.stderr)["error"]["code"] == "pinned"
    bare = tmp_path / "bare"
    assert told(run_cli("pull", bucket, "-C", bare, "--json", "--no-ledger"))["carried"]
    assert not (bare / ".jaxcache").exists()


def test_dates_travel_and_atimes_only_where_there_are_some(
    run_cli: RunCli, bucket: str, corpus: Path, tmp_path: Path
) -> None:
    capped = Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd-maxsize", tmp_path / "capped"))
    name = min(names(capped))
    os.utime(capped / name, ns=(10**18, 10**18))
    assert run_cli("push", bucket, "-C", capped).returncode == 0
    found = told(run_cli("ls", "-C", bucket, "--json"))
    assert {e["last_used_from"] for e in found["entries"]} == {"mtime"}
    plain = tmp_path / "plain"
    assert run_cli("pull", bucket, "-C", plain).returncode == 0
    assert (plain / name).stat().st_mtime_ns == 10**18
    assert not list(plain.glob("*-atime"))
    (capped / name).unlink()
    (capped / name.replace("-cache", "-atime")).unlink()
    assert run_cli("pull", bucket, "-C", capped).returncode == 0
    assert (capped / name.replace("-cache", "-atime")).stat().st_size == 8


def test_paths_will_do_as_well(run_cli: RunCli, local: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared" / "cache"
    assert run_cli("push", shared, "-C", local).returncode == 0
    assert names(shared) == names(local)
    assert run_cli("pull", f"file://{shared}", "-C", tmp_path / "third").returncode == 0
    assert names(tmp_path / "third") == names(local)
    fifth = tmp_path / "a fifth"
    pushed = told(run_cli("push", f"file://{tmp_path}/a%20fifth", "-C", local, "--json"))
    assert (pushed["cache_dir"], names(fifth)) == (str(fifth), names(local))
    dry = run_cli("pull", shared, "-C", tmp_path / "fourth", "-n")
    assert dry.returncode == 0, dry.stderr
    assert not (tmp_path / "fourth").exists()


def test_only_what_a_trusted_key_has_signed(
    run_cli: RunCli, local: Path, bucket: str, tmp_path: Path, s3_server: S3Server
) -> None:
    pytest.importorskip("cryptography")
    mine = run_cli("trust", "keygen", "me").stdout.strip().partition("\t")[2]
    assert run_cli("trust", "keygen", "other").returncode == 0
    one, two, *rest = sorted(names(local))
    assert (
        run_cli("push", bucket, "-C", local, "--sign", "me", "--exclude", two[:-6]).returncode == 0
    )
    assert run_cli("push", bucket, "-C", local, "--sign", "other").returncode == 0
    forged = (local / rest[0]).read_bytes()
    s3_server.put(bucket, one, forged)
    place = tmp_path / "place"
    nobody = run_cli("pull", bucket, "-C", place, "--json", "--require-signed")
    assert nobody.returncode == 12
    assert len(json.loads(nobody.stdout)["untrusted"]) == ENTRIES
    assert not list(place.glob("*-cache"))
    assert run_cli("trust", "add", "me", mine).returncode == 0
    some = run_cli("pull", bucket, "-C", place, "--json", "--require-signed")
    assert some.returncode == 12
    assert {t["file"] for t in json.loads(some.stdout)["untrusted"]} == {one, two}
    assert names(place) == set(rest)
    # Sealing in the bucket changes bytes and no payload.
    assert "sealed 6 entries" in run_cli("seal", "-C", bucket).stderr  # not the forged one
    (tmp_path / ".config" / "jaxcache" / "config.toml").write_text("require-signed = true\n")
    again = tmp_path / "again"
    assert run_cli("pull", bucket, "-C", again).returncode == 12
    assert names(again) == set(rest)
