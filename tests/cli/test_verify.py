"""``jaxcache verify``: every kind of damage is named, put away, and comes back if asked."""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import CORPUS, RunCli
from ways import ALL_WAYS, MOVES, WAYS, names, old_copy, told

from jaxcache.cache.ledger.record import PAYLOAD, Event, digest_facts
from jaxcache.cache.ledger.write import append
from jaxcache.cache.verify import run_checks
from jaxcache.layouts import load_layout
from jaxcache.options import VerifyOptions
from jaxcache.store import open_store

LONG_AGO = time.time() - 3600


def age(cache: Path) -> None:
    for path in cache.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, (LONG_AGO, LONG_AGO))


def entry(cache: Path, module: str) -> Path:
    (path,) = cache.glob(f"{module}-*-cache")
    return path


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    """Seven entries of JAX 0.12, none of which has an -atime file."""
    return old_copy(tmp_path / "cache", corpus / "0.12.0.1-cpu-zstd")


def verify(run_cli: RunCli, cache: Path, *args: str, code: int = 0) -> Any:
    return told(run_cli, "verify", "-C", cache, *args, code=code)


def examine(cache: Path, wait: Callable[[float], None]) -> run_checks.Verification:
    """Verify in this process, with another way to wait for what may still be written."""
    store, layout = open_store(str(cache)), load_layout("jax")
    return run_checks.verify(store, layout, VerifyOptions(), now_ns=time.time_ns(), wait=wait)


def kinds(document: Any) -> dict[str, str]:
    return {p["file"]: p["kind"] for p in document["problems"] if p["kind"] != "unsealed"}


def test_a_sound_unsealed_cache_is_never_called_intact(run_cli: RunCli, cache: Path) -> None:
    document = verify(run_cli, cache)
    assert [document[n] for n in ("checked", "ok", "proven", "not_provable")] == [7, 7, 0, 7]
    assert {p["kind"] for p in document["problems"]} == {"unsealed"}
    done = run_cli("verify", "-C", cache)
    assert done.stdout == ""  # a pipe gets what is wrong; --jsonl gets every finding
    assert "7 without visible damage (no checksum)" in done.stderr
    assert "7 intact" not in done.stderr
    for options, dates in (((), 0), (("--atimes",), 7)):
        verify(run_cli, cache, "--fix", *options)
        assert len(list(cache.glob("*-atime"))) == dates


def bad_checksum(path: Path) -> None:
    content = zstandard.decompress(path.read_bytes())
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(content)
    path.write_bytes(frame[:-1] + bytes([frame[-1] ^ 1]))


def other_content(path: Path, content: bytes) -> None:
    path.write_bytes(zstandard.ZstdCompressor().compress(content))


DAMAGE = {
    "empty": (lambda p: p.write_bytes(b""), "quick"),
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-1]), "quick"),
    "bad-codec": (lambda p: p.write_bytes(b"junk" + p.read_bytes()[4:]), "quick"),
    "trailing-bytes": (lambda p: p.write_bytes(p.read_bytes() + b"x"), "quick"),
    "bad-header": (lambda p: other_content(p, b"\xff" * 90), "full"),
    "bad-payload": (lambda p: other_content(p, bytes(4) + b"\x0a\xff\x01nothing"), "full"),
    "checksum-mismatch": (bad_checksum, "full"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_and_put_away(run_cli: RunCli, cache: Path, kind: str) -> None:
    damage, level = DAMAGE[kind]
    path = entry(cache, "jit_mlp")
    whole = path.read_bytes()
    damage(path)
    age(cache)
    assert kinds(verify(run_cli, cache, "--level", level, code=1)) == {path.name: kind}
    if level == "full" and kind != "bad-header":
        assert not kinds(verify(run_cli, cache, "--level", "quick"))
    for dry in (["--dry-run"], []):
        fixed = verify(run_cli, cache, "--fix", *dry, code=len(dry))
        assert [p["action"] for p in fixed["problems"] if p["kind"] == kind] == ["quarantine"]
        assert path.exists() == fixed["dry_run"] == bool(dry)
    assert not kinds(verify(run_cli, cache))
    planned = run_cli("verify", "-C", cache, "--restore", "--dry-run", "--jsonl").stdout
    assert [x["outcome"] for x in map(json.loads, planned.splitlines())] == ["left"]
    restored = verify(run_cli, cache, "--restore", code=3)
    assert [r["reason"].partition(":")[0] for r in restored["left"]] == [kind]
    assert not path.exists()
    path.write_bytes(whole)  # JAX writes it again
    restored = verify(run_cli, cache, "--restore", code=3)
    assert (restored["restored"], len(restored["left"])) == ([], 1)
    assert path.read_bytes() == whole


def test_an_entry_under_another_modules_name(run_cli: RunCli, cache: Path) -> None:
    wrong = entry(cache, "jit_mlp").rename(cache / f"jit_other-{'0' * 64}-cache")
    assert kinds(verify(run_cli, cache, code=1)) == {wrong.name: "module-mismatch"}
    done = run_cli("verify", "-C", cache, "--fix")
    assert (done.returncode, wrong.exists()) == (1, True), "JAX loads it, whatever its name says"
    assert f" -C {cache}" in done.stderr.partition("to have one compiled again: jaxcache rm ")[2]
    away = cache / ".jaxcache/quarantine/20260101T000000Z-000000000" / wrong.name
    away.parent.mkdir(parents=True)
    wrong.rename(away)
    assert len(verify(run_cli, cache, "--restore")["restored"]) == 1 and wrong.exists()
    assert run_cli("rm", wrong.name[:-6], "-C", cache, "--yes").returncode == 0
    assert not kinds(verify(run_cli, cache))


def test_a_file_with_two_problems_is_moved_once(run_cli: RunCli, cache: Path) -> None:
    wrong = entry(cache, "jit_mlp").rename(cache / f"jit_other-{'0' * 64}-cache")
    facts = digest_facts("ab" * 32, open_store(str(cache)).info(wrong.name))
    key = wrong.name.removesuffix("-cache")
    append(open_store(str(cache)), [Event(key, PAYLOAD, time.time_ns(), facts)])
    found = [p for p in verify(run_cli, cache, code=1)["problems"] if p["file"] == wrong.name]
    assert {"digest-mismatch", "module-mismatch"} <= {p["kind"] for p in found}
    assert "1 file moved to quarantine" in run_cli("verify", "-C", cache, "--fix").stderr


def test_a_recorded_digest_proves_or_accuses(run_cli: RunCli, cache: Path) -> None:
    path = entry(cache, "jit_mlp")
    key = path.name.removesuffix("-cache")
    for digest, found in (("ab" * 32, {path.name: "digest-mismatch"}), (None, {})):
        if digest is None:
            digest = hashlib.sha256(zstandard.decompress(path.read_bytes())[4:]).hexdigest()
        facts = digest_facts(digest, open_store(str(cache)).info(path.name))
        append(open_store(str(cache)), [Event(key, PAYLOAD, time.time_ns(), facts)])
        document = verify(run_cli, cache, code=1 if found else 0)
        assert kinds(document) == found
        assert document["proven"] == (0 if found else 1)
    # A file that was written anew may hold another payload: that is told, and no failure.
    os.utime(path, (LONG_AGO + 5, LONG_AGO + 5))
    assert verify(run_cli, cache)["proven"] == 1
    (other,) = (CORPUS / "0.10.2-cpu-zstd").glob("jit_mlp-*-cache")
    path.write_bytes(other.read_bytes())
    os.utime(path, (LONG_AGO + 5, LONG_AGO + 5))
    document = verify(run_cli, cache)
    assert (kinds(document), document["proven"]) == ({path.name: "changed-since-recorded"}, 0)
    assert run_cli("verify", "-C", cache, "--fix").returncode == 0
    assert path.exists()
    # Rot leaves inode, size and time of the file.
    store = open_store(str(cache))
    bound = digest_facts(digest, store.info(path.name))
    append(store, [Event(key, PAYLOAD, time.time_ns(), bound)])
    assert kinds(verify(run_cli, cache, code=1)) == {path.name: "digest-mismatch"}
    before = path.read_bytes()
    assert run_cli("seal", "-C", cache, "-q").returncode == 1
    assert path.read_bytes() == before
    for name in ("file_mtime_ns", "file_size_bytes", "file_inode"):  # of another file: no accuser
        append(store, [Event(key, PAYLOAD, time.time_ns(), {**bound, name: 1})])
        assert kinds(verify(run_cli, cache)) == {path.name: "changed-since-recorded"}
    assert run_cli("seal", "-C", cache, "-q").returncode == 0
    assert verify(run_cli, cache)["proven"] == document["checked"]
    # One that cannot be decoded is damaged, whoever wrote it.
    path.write_bytes(zstandard.compress(bytes([0, 0, 0, 1]) + b"no executable"))
    os.utime(path, (LONG_AGO + 9, LONG_AGO + 9))
    (found,) = [p for p in verify(run_cli, cache, code=1)["problems"] if p["file"] == path.name]
    assert found["kind"] == "bad-payload"


def test_atimes_are_filled_in_where_the_cache_uses_them(
    run_cli: RunCli, capped_cache: Path
) -> None:
    path = entry(capped_cache, "jit_mlp")
    stamp = path.with_name(path.name.replace("-cache", "-atime"))
    stamp.unlink()
    other = entry(capped_cache, "jit_loss")
    other.with_name(other.name.replace("-cache", "-atime")).write_bytes(b"12")
    orphan = capped_cache / f"jit_gone-{'1' * 64}-atime"
    orphan.write_bytes(bytes(8))
    age(capped_cache)
    verify(run_cli, capped_cache, code=1)
    problems = verify(run_cli, capped_cache, "--fix")["problems"]
    assert {p["file"]: (p["kind"], p["action"]) for p in problems if p["kind"] != "unsealed"} == {
        path.name: ("missing-atime", "back-fill"),
        other.name: ("bad-atime", "back-fill"),
        orphan.name: ("orphan-atime", "delete"),
    }
    assert int.from_bytes(stamp.read_bytes(), "little") == path.stat().st_mtime_ns
    assert not orphan.exists()
    assert not kinds(verify(run_cli, capped_cache))


def test_quarantine_takes_the_atime_along_and_brings_it_back(
    run_cli: RunCli, capped_cache: Path
) -> None:
    path = entry(capped_cache, "jit_mlp")
    stamp = path.with_name(path.name.replace("-cache", "-atime"))
    sound = path.read_bytes()
    path.write_bytes(b"")
    age(capped_cache)
    before = stamp.read_bytes()
    verify(run_cli, capped_cache, "--fix")
    assert not path.exists() and not stamp.exists()
    (away,) = (capped_cache / ".jaxcache" / "quarantine").glob("*/jit_mlp*-cache")
    away.write_bytes(sound)  # as if it had been judged wrongly
    planned = run_cli("verify", "-C", capped_cache, "--restore", "--dry-run", "--jsonl").stdout
    assert [json.loads(x)["outcome"] for x in planned.splitlines()] == ["restored"]
    assert not path.exists()
    verify(run_cli, capped_cache, "--restore", path.name[:20])
    assert path.read_bytes() == sound and stamp.read_bytes() == before


def test_young_files_are_left_and_reported(run_cli: RunCli, cache: Path) -> None:
    path = entry(cache, "jit_mlp")
    path.write_bytes(path.read_bytes()[:-5])
    young = "1 file younger than 60 s, left because JAX may still be writing"
    assert young in run_cli("verify", "-C", cache).stderr  # before it is tried
    assert young not in run_cli("verify", "-C", cache, "--grace", "0s").stderr
    assert young in run_cli("verify", "-C", cache, "--fix").stderr
    problems = verify(run_cli, cache, "--fix", code=1)["problems"]
    assert {p["action"] for p in problems if p["kind"] == "truncated"} == {"leave-young"}
    assert path.exists()
    verify(run_cli, cache, "--fix", "--grace", "0s")
    assert not path.exists()


def test_young_files_that_are_whole_and_wrong(run_cli: RunCli, cache: Path) -> None:
    flipped, longer, short, *sound = sorted(cache.glob("*-cache"))
    run_cli("seal", "-C", cache)
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8] = b"\xff" * 8
    flipped.write_bytes(data)
    longer.write_bytes(longer.read_bytes() + b"more")
    short.write_bytes(short.read_bytes()[:-9])
    done = run_cli("verify", "-C", cache, "--fix")
    assert (done.returncode, sorted(cache.glob("*-cache"))) == (1, [short, *sound])
    assert "2 files moved to quarantine" in done.stderr
    assert "1 file younger than 60 s, left because JAX may still be writing" in done.stderr
    assert names(next((cache / ".jaxcache" / "quarantine").iterdir())) == {
        flipped.name,
        longer.name,
    }


def test_a_young_wrong_file_that_changes_between_two_looks_is_left(cache: Path) -> None:
    path = entry(cache, "jit_mlp")
    path.write_bytes(path.read_bytes() + b"more")
    looks: list[float] = []

    def touch(seconds: float) -> None:
        looks.append(seconds)
        path.chmod(0o640)  # its content and date stay

    found = examine(cache, touch)
    assert (found.young, looks) == ({path.name}, [1.0])
    age(cache)
    examine(cache, touch)
    assert looks == [1.0]  # nothing young, nothing to wait for


def test_what_is_cut_short_anywhere_is_never_proven_wrong(cache: Path) -> None:
    path = entry(cache, "jit_mlp")
    data = path.read_bytes()
    for size in [*range(40), *range(40, len(data), 397)]:
        path.write_bytes(data[:size])
        assert examine(cache, lambda _: None).young == {path.name}, size


@pytest.mark.parametrize("grows", [True, False])
def test_a_file_from_the_future(run_cli: RunCli, cache: Path, grows: bool) -> None:
    """As on a server whose clock is ahead."""
    path = entry(cache, "jit_mlp")
    whole = path.read_bytes()
    later = time.time() + 86_400

    def write(data: bytes) -> None:
        path.write_bytes(data)
        os.utime(path, (later, later + len(data)))

    write(whole[:-50])
    found = examine(cache, lambda _: write(whole[:-5]) if grows else None)
    assert [p.kind for p in found.failures] == ["truncated"]
    assert found.young == ({path.name} if grows else set())
    if not grows:
        verify(run_cli, cache, "--fix")
        assert not path.exists()


def test_delete_asks_and_deletes(run_cli: RunCli, capped_cache: Path) -> None:
    path = entry(capped_cache, "jit_mlp")
    path.write_bytes(b"")
    age(capped_cache)
    refused = run_cli("verify", "-C", capped_cache, "--fix", "--delete", "--json")
    assert refused.returncode == 2 and "needs-yes" in refused.stderr
    verify(run_cli, capped_cache, "--fix", "--delete", "--yes")
    assert not path.exists() and not (capped_cache / ".jaxcache" / "quarantine").exists()
    assert not kinds(verify(run_cli, capped_cache))


def test_what_others_may_write_is_named_and_left(run_cli: RunCli, cache: Path) -> None:
    path = entry(cache, "jit_mlp")
    path.chmod(0o666)
    cache.chmod(0o777)
    problems = verify(run_cli, cache, "--fix", code=1)["problems"]
    found = sorted(p["file"] for p in problems if p["kind"] == "unsafe-permissions")
    assert found == [".", path.name]
    assert path.stat().st_mode & 0o777 == 0o666


def test_keys_choose_what_is_verified(run_cli: RunCli, cache: Path) -> None:
    entry(cache, "jit_mlp").write_bytes(b"")
    (cache / "stray").write_text("")
    assert verify(run_cli, cache, "jit_loss*")["checked"] == 1
    assert run_cli("verify", "-C", cache, "jit_nothing*").returncode == 1


def test_unusable_combinations(run_cli: RunCli, cache: Path) -> None:
    for args in (["--delete"], ["--restore", "--fix"], ["--level", "half"], ["--grace", "soon"]):
        assert run_cli("verify", "-C", cache, *args).returncode == 2
    done = run_cli("verify", "-C", cache, "--level", "load", "--python", "/bin/false")
    assert done.returncode == 13


# Commands over GPU entries where cramjam, which decompresses parts of them, is not installed.


def test_without_cramjam_a_snappy_entry_is_unreadable_stays_and_is_copied_as_it_is(
    run_cli: RunCli, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = old_copy(tmp_path / "cache", corpus / "0.12.0.1-cuda13-h200-zstd")
    with monkeypatch.context() as blocked:
        blocked.setitem(sys.modules, "cramjam", None)
        problems = verify(run_cli, cache, "--fix", code=1)["problems"]
        assert {p["kind"] for p in problems} == {"unreadable"}
        assert all("jaxcache[gpu]" in p["detail"] for p in problems)
        listed = told(run_cli, "ls", "-C", cache)["entries"]
        assert [e["problems"] for e in listed] == [["unreadable"]] * 8
        assert told(run_cli, "show", "jit_mlp*", "-C", cache, code=1)["program"] is None
        refused = run_cli("show", "jit_mlp*", "-C", cache, "--hlo")
        assert (refused.returncode, "jaxcache[gpu]" in refused.stderr) == (1, True)
        assert run_cli("export", tmp_path / "cache.jxb", "-C", cache).returncode == 0
        assert run_cli("import", tmp_path / "cache.jxb", "-C", tmp_path / "new").returncode == 0
        assert run_cli("push", tmp_path / "pushed", "-C", cache).returncode == 0
    # Nothing of this is remembered.
    listed = told(run_cli, "ls", "-C", cache)["entries"]
    assert [(e["platform"], e["problems"]) for e in listed] == [("gpu", [])] * 8
    for copy in ("new", "pushed"):
        assert run_cli("diff", cache, tmp_path / copy).returncode == 0
        assert run_cli("verify", "-C", tmp_path / copy).returncode == 0


# Entries in a format that a newer JAX may write are named, and neither moved away nor left out.


#: What a format that is not known may make of an entry.
FORMATS: dict[str, Callable[[bytes], bytes]] = {
    "a signature before it": lambda entry: hashlib.sha256(entry).digest() + entry,
    "another codec": lambda entry: b"JXC2" + bytes(byte ^ 0x5A for byte in entry),
}
HINT = "in a format that jaxcache does not know, left as it is: a newer JAX may have written it"


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    """A cache whose entries are all in one unknown format."""
    return write_in(old_copy(tmp_path / "unknown"), FORMATS["another codec"])


def write_in(cache: Path, change: Callable[[bytes], bytes], most: int = 100) -> Path:
    for path in sorted(cache.glob("*-cache"))[:most]:
        status = path.stat()
        path.write_bytes(change(path.read_bytes()))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return cache


def entries_of(cache: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in cache.glob("*-cache")}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("options", [["--level", "quick"], ["--fix", "--delete", "--yes"]])
def test_verify_names_and_leaves_them(
    options: list[str], form: str, run_cli: RunCli, tmp_path: Path
) -> None:
    unknown = write_in(old_copy(tmp_path / "unknown"), FORMATS[form])
    before = entries_of(unknown)
    document = verify(run_cli, unknown, *options)
    found = {p["file"]: (p["kind"], p["action"]) for p in document["problems"]}
    assert found == dict.fromkeys(before, ("unknown-format", None))
    assert document["ok"] == 0
    assert entries_of(unknown) == before
    told = run_cli("verify", "-C", unknown, *options).stderr
    assert f"{len(before)} in a format that jaxcache does not know" in told
    assert HINT in told.replace("\n", " ")


def test_a_zlib_stream_after_a_signature(run_cli: RunCli, tmp_path: Path) -> None:
    cache = old_copy(tmp_path / "cache", CORPUS / "0.4.38-cpu-zlib")
    write_in(cache, FORMATS["a signature before it"], most=1)
    assert list(kinds(verify(run_cli, cache)).values()) == ["unknown-format"]


@pytest.mark.parametrize(
    ("most", "change"),
    [
        (1, lambda entry: bytes([entry[0] ^ 4]) + entry[1:]),
        (9, lambda entry: bytes([entry[0] ^ 4]) + entry[1:]),
        (1, FORMATS["another codec"]),
        (1, lambda entry: bytes(len(entry))),
        (9, lambda entry: bytes(len(entry))),
    ],
    ids=["a flipped magic", "every magic", "one alone", "a file of zeros", "files of zeros"],
)
def test_damage_is_damage(
    most: int, change: Callable[[bytes], bytes], run_cli: RunCli, tmp_path: Path
) -> None:
    cache = write_in(old_copy(tmp_path / "cache"), change, most)
    problems = verify(run_cli, cache, code=1)["problems"]
    assert [p["kind"] for p in problems].count("bad-codec") == min(most, len(names(cache)))
    assert run_cli("verify", "--fix", "-C", cache).returncode == 0


def test_one_is_compared_with_those_that_are_not_chosen(run_cli: RunCli, tmp_path: Path) -> None:
    cache = write_in(old_copy(tmp_path / "cache"), FORMATS["another codec"], most=2)
    for file in sorted(names(cache))[:2]:
        problems = verify(run_cli, cache, "--fix", file.removesuffix("-cache"))["problems"]
        assert [p["kind"] for p in problems] == ["unknown-format"]


@pytest.mark.parametrize("way", WAYS)
def test_they_travel_as_they_are(way: str, run_cli: RunCli, unknown: Path, here: Path) -> None:
    here.mkdir()
    done = run_cli(*WAYS[way](unknown, here))
    assert done.returncode == 0, done.stderr
    if Path(f"{here}.jxb").exists():
        done = run_cli("import", f"{here}.jxb", "-C", here)
        assert done.returncode == 0, done.stderr
    assert HINT in done.stderr.replace("\n", " ") or way == "save"
    assert entries_of(here) == entries_of(unknown)
    assert run_cli("verify", "-C", here).returncode == 0


@pytest.mark.parametrize("way", [*MOVES, "import"])
def test_those_of_a_target_stay(way: str, run_cli: RunCli, unknown: Path, tmp_path: Path) -> None:
    source = old_copy(tmp_path / "source")
    assert run_cli("export", f"{source}.jxb", "-C", source).returncode == 0
    before = entries_of(unknown)
    assert run_cli(*ALL_WAYS[way](source, unknown)).returncode == 0
    assert entries_of(unknown) == before


def test_the_other_commands(run_cli: RunCli, unknown: Path) -> None:
    before, place = entries_of(unknown), ("-C", unknown)
    listed = told(run_cli, "ls", *place, "--long")["entries"]
    assert {tuple(e["problems"]) for e in listed} == {("unknown-format",)}
    assert told(run_cli, "stats", *place)["problems"] == {"unknown-format": len(before)}
    shown = told(run_cli, "show", listed[0]["key"], *place, code=1)
    assert [p["kind"] for p in shown["problems"]] == ["unknown-format"]
    doctor = run_cli("doctor", *place, "--json", "--python", "/nowhere/python")
    findings = json.loads(doctor.stdout)["findings"]
    assert "damaged-entries" not in {f["trap"] for f in findings}
    assert {s["reason"] for s in told(run_cli, "seal", *place)["skipped"]} == {"unknown-format"}
    assert entries_of(unknown) == before
    away = unknown / ".jaxcache/quarantine/20260101T000000Z-000000000"
    away.mkdir(parents=True)
    for path in unknown.glob("*-cache"):
        path.rename(away / path.name)
    assert run_cli("verify", "--restore", *place).returncode == 0
    assert entries_of(unknown) == before
