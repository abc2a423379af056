"""Every way in which entries move: the same checks, the same exit codes, nothing lost unsaid."""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import zstandard
from bundling import first_entry, forged, make_bundle, padded, payload_of
from conftest import RunCli
from object_server import S3Server
from ways import MOVES, OLD_NS, WAYS, names, old_copy, told

import jaxcache
from jaxcache.cache.bundle.format import open_bundle
from jaxcache.cache.ledger.record import HIT, PAYLOAD, Event, digest_facts
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append, pinned_keys
from jaxcache.cache.move.plan import MoveTarget
from jaxcache.entry.names import key_of
from jaxcache.model import FileInfo
from jaxcache.store.base import NewFile, StoreError
from jaxcache.store.local import LocalStore


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return old_copy(tmp_path / "there")


def arrived(here: Path) -> set[str]:
    """The entries that are in a directory, or in the bundle beside it."""
    bundle = Path(f"{here}.jxb")
    if not bundle.exists():
        return names(here)
    with contextlib.closing(open_bundle(str(bundle))) as found:
        return {item.file for item in found.manifest.items}


@pytest.mark.parametrize("way", WAYS)
def test_a_payload_that_the_ledger_does_not_record_stays(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str
) -> None:
    entry = first_entry(there)
    facts = digest_facts("0" * 64, LocalStore(there).info(entry.name))
    append(LocalStore(there), [Event(key_of(entry.name) or "", PAYLOAD, OLD_NS, facts)])
    done = run_cli(*WAYS[way](there, tmp_path / "here"))
    assert done.returncode == (0 if way == "restore" else 3), done.stderr
    assert arrived(tmp_path / "here") == names(there) - {entry.name}


@pytest.mark.parametrize("way", ["push", "pull", "copy", "save"])
def test_what_cannot_come_in_is_named_and_counted(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str
) -> None:
    """A name that clashes, a directory in the way, a payload that inflates too far, and damage."""
    here = tmp_path / "here"
    here.mkdir()
    clash, directory, large, damaged, *rest = offered = sorted(names(there))
    (here / clash.replace("jit_", "JIT_")).write_bytes((there / clash).read_bytes())
    (here / directory).mkdir()
    content = bytes(4) + padded(payload_of(there / large), 300 << 20)
    (there / large).write_bytes(zstandard.ZstdCompressor(level=1).compress(content))
    (there / damaged).write_bytes(zstandard.compress(bytes(4) + b"no executable"))
    for name in (large, damaged):
        os.utime(there / name, ns=(OLD_NS, OLD_NS))
    done = run_cli(*WAYS[way](there, here), "--json")
    assert done.returncode == 3
    assert {n for n in names(here) if (here / n).is_file() and n.startswith(("jit", "pm"))} == {
        *rest
    }
    document = json.loads(done.stdout)
    if way == "copy":
        blocked = {e["file"] for e in document["entries"] if e["action"] == "blocked"}
        assert blocked == {clash, directory}
        assert {p["file"] for p in document["left_out"]} == {large, damaged}
        assert len(document["entries"]) + len(document["left_out"]) == len(offered)
    elif way == "save":
        assert set(document["left_out"]) == {clash, directory, large, damaged}
        assert document["entries"] == document["written"] + len(document["left_out"])
    else:
        assert {p["file"] for p in document["left_out"]} == {clash, directory, large, damaged}
        assert document["present"] == 0
        assert len(document["carried"]) + len(document["left_out"]) == len(offered)


@pytest.mark.parametrize("way", ["push", "pull", "copy", "save", "save-bundle"])
@pytest.mark.parametrize("trouble", ["damaged", "unsigned", "none"])
def test_a_dry_run_ends_with_the_exit_code_of_the_real_one(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str, trouble: str
) -> None:
    if trouble == "damaged":
        first_entry(there).write_bytes(zstandard.compress(bytes(4) + b"no executable"))
        os.utime(first_entry(there), ns=(OLD_NS, OLD_NS))
    if trouble == "unsigned":
        (tmp_path / ".config" / "jaxcache").mkdir(parents=True)
        (tmp_path / ".config/jaxcache/config.toml").write_text("require-signed = true\n")
    words = WAYS[way](there, tmp_path / "here")
    dry = run_cli(*words, "--dry-run")
    assert not (tmp_path / "here").exists()
    assert run_cli(*words).returncode == dry.returncode
    signs = way in ("save", "save-bundle")
    expected = {"damaged": 3, "unsigned": 0 if signs else 12, "none": 0}
    assert dry.returncode == expected[trouble]


@pytest.mark.parametrize("way", ["push", "pull", "copy", "restore", "save"])
def test_a_directory_that_takes_no_more_files_is_not_asked_again_and_every_entry_is_counted(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def refuse(store: LocalStore, files: Sequence[NewFile]) -> Iterator[FileInfo | StoreError]:
        for file in files:
            if file.name.endswith("-cache"):
                tries.append(file.name)
                yield StoreError(file.name, "no space left on device", code="io-error")
            else:
                yield from write_many(store, [file])

    write_many = LocalStore.write_many
    monkeypatch.setattr(LocalStore, "write_many", refuse)
    monkeypatch.setattr(MoveTarget, "batch", 1)
    monkeypatch.setattr(MoveTarget, "workers", 1)
    done = run_cli(*WAYS[way](there, tmp_path / "here"), "--json")
    assert (done.returncode, names(tmp_path / "here")) == (3, set())
    assert 0 < len(tries) < len(names(there))
    document = json.loads(done.stdout)
    if way == "copy":
        assert {e["action"] for e in document["entries"]} == {"write"}
        assert (len(document["entries"]), document["summary"]["written"]) == (len(names(there)), 0)
    elif way == "restore":
        assert (document["written"], document["present"], document["left_out"]) == (0, 0, 0)
    else:
        assert len(document["failed"]) == len(names(there))


def test_of_refused_entries_the_ledger_learns_nothing_and_no_pin_travels(
    run_cli: RunCli, there: Path, tmp_path: Path
) -> None:
    key = "jit_f-" + "a" * 64
    sound = key_of(first_entry(there).name) or ""

    def lie(document: dict[str, Any]) -> None:
        (entry,) = document["entries"]
        entry["ledger"] = [
            {"key": entry["key"], "kind": "pin", "at_ns": 5},
            {"key": entry["key"], "kind": PAYLOAD, "at_ns": 6, "payload_sha256": "1" * 64},
            {"key": entry["key"], "kind": HIT, "at_ns": 7, "count": 3},
        ]

    def lie_about_a_sound_one(document: dict[str, Any]) -> None:
        document["entries"][0]["key"] = sound
        lie(document)

    (tmp_path / "refused.jxb").write_bytes(forged(lie, content=b"no executable"))
    (tmp_path / "sound.jxb").write_bytes(
        forged(lie_about_a_sound_one, content=payload_of(first_entry(there)))
    )
    here = tmp_path / "here"
    assert run_cli("import", tmp_path / "refused.jxb", "-C", here).returncode == 3
    assert key not in Ledger.load(LocalStore(here))
    assert run_cli("import", tmp_path / "sound.jxb", "-C", here).returncode == 0
    record = Ledger.load(LocalStore(here)).record(sound)
    assert record is not None
    assert (record.pinned, record.hits, record.payload_sha256 == "1" * 64) == (False, 3, False)
    assert pinned_keys(Ledger.load(LocalStore(here))) == []


@pytest.mark.parametrize("way", MOVES)
@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("--include", "jit_mlp*"), lambda name: not name.startswith("jit_mlp")),
        (("--exclude", "jit_mlp*"), lambda name: name.startswith("jit_mlp")),
        (("--filter", "module=jit_mlp"), lambda name: not name.startswith("jit_mlp-")),
        (("--max-size", "1kB"), lambda name: True),
        (("--jobs", "1", "--no-ledger"), lambda name: False),
    ],
    ids=["include", "exclude", "filter", "max-size", "jobs"],
)
def test_a_selection_and_a_bound_choose_the_same_entries_every_way(
    run_cli: RunCli,
    there: Path,
    tmp_path: Path,
    way: str,
    words: Sequence[str],
    left: Callable[[str], bool],
) -> None:
    key = key_of(first_entry(there).name) or ""
    append(LocalStore(there), [Event(key, HIT, OLD_NS)])
    expected = {name for name in names(there) if not left(name)}
    for dry in (("--dry-run",), ()):
        done = run_cli(*WAYS[way](there, tmp_path / "here"), *words, *dry)
        assert done.returncode == 0, done.stderr
    assert names(tmp_path / "here") == expected
    if "--max-size" in words:
        assert "no room" in done.stderr
    if "--no-ledger" in words:
        record = Ledger.load(LocalStore(tmp_path / "here")).record(key)
        assert record is None or not record.hits


class Watched(LocalStore):
    """A store that notes the threads that write to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.threads: set[int] = set()

    def write_many(self, files: Sequence[NewFile]) -> Iterator[FileInfo | StoreError]:
        self.threads.add(threading.get_ident())
        return super().write_many(files)


@pytest.mark.parametrize(("jobs", "at_least"), [(1, 1), (7, 2)])
def test_an_import_writes_with_as_many_threads_as_it_is_told(
    there: Path, tmp_path: Path, jobs: int, at_least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MoveTarget, "batch", 1)
    (tmp_path / "b.jxb").write_bytes(make_bundle(there))
    cache = jaxcache.open(tmp_path / "here", create=True)
    store = Watched(tmp_path / "here")
    cache.existing = store
    cache.import_(tmp_path / "b.jxb", jobs=jobs)
    assert at_least <= len(store.threads) <= jobs
    assert names(tmp_path / "here") == names(there)


@pytest.mark.parametrize(
    "way", ["push", "pull", "copy", "save", "restore", "import", "restore-bundle"]
)
def test_what_travels_arrives_sealed_with_the_same_blocks(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str
) -> None:
    here, bundle = tmp_path / "here", tmp_path / "b.jxb"
    from_bundle = {
        "import": ("import", bundle, "-C", here),
        "restore-bundle": ("ci", "restore", bundle, "-C", here, "--everything"),
    }
    words = from_bundle.get(way) or WAYS[way](there, here)
    bundle.write_bytes(make_bundle(there))
    assert run_cli(*words).returncode == 0
    for name in names(there):
        old, new = (there / name).read_bytes(), (here / name).read_bytes()
        assert zstandard.get_frame_parameters(new).has_checksum
        assert not zstandard.get_frame_parameters(old).has_checksum
        if way not in from_bundle:
            assert new[5:-4] == old[5:]


def test_a_bucket_that_is_filled_by_an_import_gets_no_dates(
    run_cli: RunCli, there: Path, tmp_path: Path, bucket: str, s3_server: S3Server
) -> None:
    (tmp_path / "b.jxb").write_bytes(make_bundle(there))
    assert run_cli("import", tmp_path / "b.jxb", "-C", bucket).returncode == 0
    listed = json.loads(run_cli("verify", "-C", bucket, "--json").stdout)
    assert listed["checked"] == len(names(there))
    from jaxcache.store import open_store

    assert not [i.name for i in open_store(bucket).list() if i.name.endswith("-atime")]


def test_verify_agrees_with_a_pull_about_the_ledger_of_a_bucket(
    run_cli: RunCli, there: Path, tmp_path: Path, bucket: str, s3_server: S3Server
) -> None:
    """Anybody can have written it, so its digests accuse nothing, there or here."""
    assert run_cli("push", bucket, "-C", there).returncode == 0
    entry = first_entry(there)
    facts = digest_facts("0" * 64, LocalStore(there).info(entry.name))
    append(LocalStore(there), [Event(key_of(entry.name) or "", PAYLOAD, OLD_NS, facts)])
    (segment,) = (there / ".jaxcache" / "ledger").iterdir()
    s3_server.put(bucket, f".jaxcache/ledger/{segment.name}", segment.read_bytes())
    done = told(run_cli, "pull", bucket, "-C", tmp_path / "here")
    assert (len(done["carried"]), done["left_out"]) == (len(names(there)), [])
    assert run_cli("verify", "-C", tmp_path / "here").returncode == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="a file that cannot be read")
def test_an_entry_of_the_target_that_the_disk_cannot_read_stops_no_other(
    run_cli: RunCli, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = old_copy(tmp_path / "here")
    entry = first_entry(here)
    open_ = LocalStore.open
    unreadable = LocalStore("/proc/self")

    def fail(store: LocalStore, name: str) -> BinaryIO:
        broken = str(store.path) == str(here) and name == entry.name
        return open_(unreadable, "mem") if broken else open_(store, name)

    monkeypatch.setattr(LocalStore, "open", fail)
    for missing in sorted(names(here) - {entry.name})[:2]:
        (here / missing).unlink()
    document = told(run_cli, "copy", there, here, code=3)
    blocked = {e["file"]: e["detail"] for e in document["entries"] if e["action"] == "blocked"}
    assert blocked == {entry.name: "input/output error"}
    assert document["summary"]["written"] == 2
    assert names(here) == names(there)
