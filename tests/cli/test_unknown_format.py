"""Entries in a format that a newer JAX may write are named, and neither moved away nor left out."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import CORPUS, RunCli
from ways import WAYS, names, old_copy

#: What a format that is not known may make of an entry.
FORMATS: dict[str, Callable[[bytes], bytes]] = {
    "a signature before it": lambda entry: hashlib.sha256(entry).digest() + entry,
    "another codec": lambda entry: b"JXC2" + bytes(byte ^ 0x5A for byte in entry),
}
HINT = "in a format that jaxcache does not know, left as it is: a newer JAX may have written it"


@pytest.fixture(params=FORMATS)
def unknown(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A cache whose entries are all in one unknown format."""
    return write_in(old_copy(tmp_path / "unknown"), FORMATS[request.param])


def write_in(cache: Path, change: Callable[[bytes], bytes], most: int = 100) -> Path:
    for path in sorted(cache.glob("*-cache"))[:most]:
        status = path.stat()
        path.write_bytes(change(path.read_bytes()))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return cache


def contents(cache: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in cache.glob("*-cache")}


@pytest.mark.parametrize(
    "options", [[], ["--fix"], ["--level", "quick"], ["--fix", "--delete", "--yes"]]
)
def test_verify_names_and_leaves_them(options: list[str], run_cli: RunCli, unknown: Path) -> None:
    before = contents(unknown)
    done = run_cli("verify", "-C", unknown, "--json", *options)
    document = json.loads(done.stdout)
    found = {p["file"]: (p["kind"], p["action"]) for p in document["problems"]}
    assert found == dict.fromkeys(before, ("unknown-format", None))
    assert (done.returncode, document["ok"]) == (0, 0)
    assert contents(unknown) == before
    told = run_cli("verify", "-C", unknown, *options).stderr
    assert f"{len(before)} in a format that jaxcache does not know" in told
    assert HINT in told.replace("\n", " ")


def test_a_zlib_stream_after_a_signature(run_cli: RunCli, tmp_path: Path) -> None:
    cache = Path(shutil.copytree(CORPUS / "0.4.38-cpu-zlib", tmp_path / "cache"))
    write_in(cache, FORMATS["a signature before it"], most=1)
    document = json.loads(run_cli("verify", "-C", cache, "--json").stdout)
    assert [p["kind"] for p in document["problems"]].count("unknown-format") == 1


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
    done = run_cli("verify", "-C", cache, "--json")
    assert done.returncode == 1
    kinds = [p["kind"] for p in json.loads(done.stdout)["problems"]]
    assert kinds.count("bad-codec") == min(most, len(names(cache)))
    assert run_cli("verify", "--fix", "-C", cache).returncode == 0


def test_one_is_compared_with_those_that_are_not_chosen(run_cli: RunCli, tmp_path: Path) -> None:
    cache = write_in(old_copy(tmp_path / "cache"), FORMATS["another codec"], most=2)
    for file in sorted(names(cache))[:2]:
        done = run_cli("verify", "--fix", "-C", cache, file.removesuffix("-cache"), "--json")
        assert [p["kind"] for p in json.loads(done.stdout)["problems"]] == ["unknown-format"]


@pytest.mark.parametrize("way", WAYS)
def test_they_travel_as_they_are(way: str, run_cli: RunCli, unknown: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    done = run_cli(*WAYS[way](unknown, here))
    assert done.returncode == 0, done.stderr
    if Path(f"{here}.jxb").exists():
        done = run_cli("import", f"{here}.jxb", "-C", here)
        assert done.returncode == 0, done.stderr
    told = done.stderr.replace("\n", " ")
    assert HINT in told or way == "save"
    assert contents(here) == contents(unknown)
    assert run_cli("verify", "-C", here).returncode == 0


@pytest.mark.parametrize("way", ["copy", "pull", "push", "import"])
def test_what_the_target_has_is_not_damaged(
    way: str, run_cli: RunCli, unknown: Path, tmp_path: Path
) -> None:
    source = old_copy(tmp_path / "source")
    command = ("import", f"{source}.jxb", "-C", unknown)
    if way == "import":
        assert run_cli("export", f"{source}.jxb", "-C", source).returncode == 0
    else:
        command = WAYS[way](source, unknown)
    before = contents(unknown)
    assert run_cli(*command).returncode == 0
    assert contents(unknown) == before


def test_a_bundle_cannot_call_a_known_format_unknown(run_cli: RunCli, tmp_path: Path) -> None:
    from jaxcache.cache.verify.check import check_unknown_pieces

    frame = memoryview(b"\x28\xb5\x2f\xfd" + bytes(90))
    assert check_unknown_pieces(iter([frame[:2], frame[2:]])) is not None
    assert check_unknown_pieces(iter([memoryview(b"JX"), frame])) is None


def test_the_other_commands(run_cli: RunCli, unknown: Path) -> None:
    before = contents(unknown)
    listed = json.loads(run_cli("ls", "-C", unknown, "--long", "--json").stdout)["entries"]
    assert {tuple(e["problems"]) for e in listed} == {("unknown-format",)}
    stats = json.loads(run_cli("stats", "-C", unknown, "--json").stdout)
    assert stats["problems"] == {"unknown-format": len(before)}
    shown = json.loads(run_cli("show", listed[0]["key"], "-C", unknown, "--json").stdout)
    assert [p["kind"] for p in shown["problems"]] == ["unknown-format"]
    findings = json.loads(run_cli("doctor", "-C", unknown, "--json").stdout)["findings"]
    assert "damaged-entries" not in {f["trap"] for f in findings}
    sealed = run_cli("seal", "-C", unknown, "--json")
    assert sealed.returncode == 0
    assert {s["reason"] for s in json.loads(sealed.stdout)["skipped"]} == {"unknown-format"}
    assert contents(unknown) == before


def test_they_come_back_from_quarantine(run_cli: RunCli, unknown: Path) -> None:
    before = contents(unknown)
    place = unknown / ".jaxcache/quarantine/20260101T000000Z-000000000"
    place.mkdir(parents=True)
    for path in unknown.glob("*-cache"):
        path.rename(place / path.name)
    assert run_cli("verify", "--restore", "-C", unknown).returncode == 0
    assert contents(unknown) == before
