"""Every way in which entries move: the same checks, the same exit codes, nothing lost unsaid."""

import contextlib
import io
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard
from bundling import forged, make_bundle, opened, padded, payload_of
from conftest import CORPUS, RunCli
from object_server import S3Server

import jaxcache
from jaxcache.cache.bundle.format import open_bundle
from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.ledger.record import HIT, PAYLOAD, Event, digest_facts
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append, pinned_keys
from jaxcache.cache.move.export_plan import plan_export
from jaxcache.cache.move.import_bundle import execute_import, plan_import, receive
from jaxcache.cache.move.items import MoveAction
from jaxcache.cache.move.plan import MoveTarget, Outcome
from jaxcache.cache.move.stores import make_source
from jaxcache.cache.move.sync import execute, plan_copy, plan_sync
from jaxcache.core.names import AUTOTUNE_DIR, KERNEL_CACHE
from jaxcache.entry.names import key_of
from jaxcache.errors import JaxcacheError
from jaxcache.model import FileInfo
from jaxcache.store.base import NewFile, StoreError
from jaxcache.store.local import LocalStore
from jaxcache.warm.delivery import Delivery

SOURCE = CORPUS / "0.4.38-cpu-zstd"
OLD_NS = 10**18
#: Every command that brings entries of one directory into another, or into a bundle.
WAYS: dict[str, Callable[[Path, Path], tuple[object, ...]]] = {
    "copy": lambda there, here: ("copy", there, here),
    "pull": lambda there, here: ("pull", there, "-C", here),
    "push": lambda there, here: ("push", here, "-C", there),
    "restore": lambda there, here: ("ci", "restore", there, "-C", here, "--everything"),
    "save": lambda there, here: ("ci", "save", here, "-C", there),
    "export": lambda there, here: ("export", f"{here}.jxb", "-C", there),
    "save-bundle": lambda there, here: ("ci", "save", f"{here}.jxb", "-C", there),
}


@pytest.fixture
def there(tmp_path: Path) -> Path:
    path = tmp_path / "there"
    shutil.copytree(SOURCE, path, copy_function=shutil.copyfile)
    for file in path.iterdir():
        os.utime(file, ns=(OLD_NS, OLD_NS))
    return path


def names(cache: Path) -> set[str]:
    return {p.name for p in cache.glob("*-cache")}


def first(cache: Path) -> Path:
    return min(cache.glob("*-cache"))


def arrived(here: Path) -> set[str]:
    """The entries that are in a directory, or in the bundle beside it."""
    bundle = Path(f"{here}.jxb")
    if not bundle.exists():
        return names(here)
    with contextlib.closing(open_bundle(str(bundle))) as found:
        return {item.file for item in found.manifest.items}


def told(run_cli: RunCli, *words: object, code: int = 0) -> Any:
    done = run_cli(*words, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", WAYS)
def test_a_payload_that_the_ledger_does_not_record_stays(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str
) -> None:
    entry = first(there)
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
        first(there).write_bytes(zstandard.compress(bytes(4) + b"no executable"))
        os.utime(first(there), ns=(OLD_NS, OLD_NS))
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


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("on_conflict", ["keep", "replace", "fail"])
def test_an_import_replaces_nothing_that_came_since_its_plan(
    there: Path, tmp_path: Path, on_conflict: str, atomic: bool
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    old = here / first(there).name
    if on_conflict == "replace":
        content = bytes(4) + padded(payload_of(first(there)), 1 << 15)
        old.write_bytes(zstandard.compress(content))
    store, bundle = LocalStore(here), verify_bundle(opened(make_bundle(there)))
    plan = plan_import(store, bundle, cache_dir=str(here), on_conflict=on_conflict)
    old.write_bytes(b"written by JAX meanwhile")
    os.utime(old, ns=(OLD_NS, OLD_NS + 1))
    done = execute_import(store, bundle, plan, atomic=atomic)
    assert old.read_bytes() == b"written by JAX meanwhile"
    assert [step.name for step in done.failed] == [old.name]
    assert done.exit_code == 3
    assert done.rolled_back == atomic
    assert_adds_up(done)


def assert_adds_up(done: Outcome) -> None:
    """Each step ended once, as exactly one of these."""
    assert [s.name for s in done.steps] == [s.name for s in done.plan.steps]
    written = len(done.written)
    others = [
        a for a in MoveAction if a not in (MoveAction.WRITE, MoveAction.HEAL, MoveAction.REPLACE)
    ]
    assert written + done.count(*others) == len(done.plan.steps)


class InterruptedCommit(LocalStore):
    """A store that is interrupted while the files of an atomic import get their names."""

    left = 3

    def rename(self, name: str, new_name: str, *, replace: bool = False) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        super().rename(name, new_name, replace=replace)


def test_an_interrupted_atomic_import_puts_back_what_was_there(there: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    old = here / first(there).name
    old.write_bytes(zstandard.compress(bytes(4) + b"other"))
    before = old.read_bytes()
    store, bundle = InterruptedCommit(here), verify_bundle(opened(make_bundle(there)))
    plan = plan_import(store, bundle, cache_dir=str(here), on_conflict="replace")
    with pytest.raises(KeyboardInterrupt):
        execute_import(store, bundle, plan, atomic=True)
    assert {p.name: p.read_bytes() for p in here.glob("*-*")} == {old.name: before}


class Unreadable(LocalStore):
    """A store of which one entry cannot be read."""

    def fetch(self, name: str, **options: Any) -> Any:
        if name == first(Path(self.path)).name:
            raise StoreError(name, "input/output error", code="io-error")
        return super().fetch(name, **options)


def test_an_atomic_copy_leaves_out_what_cannot_be_read(there: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    source, target = Unreadable(there), LocalStore(tmp_path / "here")
    plan = plan_copy(source, plan_export(source, now_ns=OLD_NS), target, cache_dir="here")
    done = receive(target, make_source(source, plan), plan, now_ns=OLD_NS, atomic=True)
    assert (done.exit_code, done.rolled_back) == (3, False)
    assert names(tmp_path / "here") == names(there) - {first(there).name}


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
    sound = key_of(first(there).name) or ""

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
        forged(lie_about_a_sound_one, content=payload_of(first(there)))
    )
    here = tmp_path / "here"
    assert run_cli("import", tmp_path / "refused.jxb", "-C", here).returncode == 3
    assert key not in Ledger.load(LocalStore(here))
    assert run_cli("import", tmp_path / "sound.jxb", "-C", here).returncode == 0
    record = Ledger.load(LocalStore(here)).record(sound)
    assert record is not None
    assert (record.pinned, record.hits, record.payload_sha256 == "1" * 64) == (False, 3, False)
    assert pinned_keys(Ledger.load(LocalStore(here))) == []


class Interrupted(LocalStore):
    """A store that is interrupted after some entries were written."""

    left = 3

    def write_many(self, files: Sequence[NewFile]) -> Any:
        for file in files:
            if file.name.endswith("-cache"):
                self.left -= 1
                if self.left < 0:
                    raise KeyboardInterrupt
            yield from super().write_many([file])


MOVES = ["push", "pull", "copy"]


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
    key = key_of(first(there).name) or ""
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


@pytest.mark.parametrize("way", [*MOVES, "restore", "import", "restore-bundle"])
def test_only_what_a_trusted_key_has_signed_comes_where_that_is_required(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str
) -> None:
    pytest.importorskip("cryptography")
    here, bundle = tmp_path / "here", tmp_path / "b.jxb"
    ways = {
        **WAYS,
        "import": lambda there, here: ("import", bundle, "-C", here),
        "restore-bundle": lambda there, here: ("ci", "restore", bundle, "-C", here, "--everything"),
    }
    public = run_cli("trust", "keygen", "me").stdout.partition("\t")[2].strip()
    assert run_cli("export", bundle, "-C", there).returncode == 0
    words = (*ways[way](there, here), "--require-signed")
    assert run_cli(*words).returncode == 12
    assert not names(here)
    assert run_cli("trust", "add", "me", public).returncode == 0
    assert run_cli("push", there, "-C", SOURCE, "--sign", "me").returncode == 0
    assert run_cli("export", bundle, "-C", there, "--sign", "me").returncode == 0
    done = run_cli(*words)
    assert (done.returncode, names(here)) == (0, names(there)), done.stderr


@pytest.mark.parametrize("way", [*MOVES, "save"])
@pytest.mark.parametrize("before", [False, True])
def test_what_is_signed_on_its_way_is_taken_where_signatures_are_required(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str, before: bool
) -> None:
    pytest.importorskip("cryptography")
    here = tmp_path / "here"
    public = run_cli("trust", "keygen", "me").stdout.partition("\t")[2].strip()
    assert run_cli("trust", "add", "me", public).returncode == 0
    if before:
        assert run_cli(*WAYS[way](there, here)).returncode == 0
    assert run_cli(*WAYS[way](there, here), "--sign", "me").returncode == 0
    done = run_cli("pull", here, "-C", tmp_path / "last", "--require-signed")
    assert (done.returncode, names(tmp_path / "last")) == (0, names(there)), done.stderr


@pytest.mark.parametrize("way", [*MOVES, "restore", "save"])
def test_an_entry_that_inflates_far_comes_only_where_that_is_allowed(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str
) -> None:
    large = first(there)
    content = bytes(4) + padded(payload_of(large), 300 << 20)
    large.write_bytes(zstandard.ZstdCompressor(level=1).compress(content))
    os.utime(large, ns=(OLD_NS, OLD_NS))
    words = WAYS[way](there, tmp_path / "here")
    assert run_cli(*words).returncode == (0 if way == "restore" else 3)
    assert names(tmp_path / "here") == names(there) - {large.name}
    done = run_cli(*words, "--allow-large")
    assert (done.returncode, names(tmp_path / "here")) == (0, names(there)), done.stderr


def test_a_dry_save_into_a_bundle_takes_a_large_entry_as_the_real_one_does(
    run_cli: RunCli, there: Path, tmp_path: Path
) -> None:
    content = bytes(4) + padded(payload_of(first(there)), 300 << 20)
    first(there).write_bytes(zstandard.ZstdCompressor(level=1).compress(content))
    os.utime(first(there), ns=(OLD_NS, OLD_NS))
    for dry in (("--dry-run",), ()):
        assert run_cli("ci", "save", tmp_path / "b.jxb", "-C", there, *dry).returncode == 0


def test_a_configured_requirement_of_signatures_binds_a_pull_that_signs(
    run_cli: RunCli, there: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    assert run_cli("trust", "keygen", "me").returncode == 0
    (tmp_path / ".config/jaxcache/config.toml").write_text("require-signed = true\n")
    done = run_cli("pull", there, "-C", tmp_path / "here", "--sign", "me")
    assert (done.returncode, names(tmp_path / "here")) == (12, set())


def test_what_an_interrupted_push_has_brought_is_signed(
    run_cli: RunCli, there: Path, tmp_path: Path
) -> None:
    trust = pytest.importorskip("jaxcache.cache.trust")
    pytest.importorskip("cryptography")
    public = trust.public_key_text(trust.generate_key(tmp_path / "me.key"))
    trust.add_trusted(tmp_path / ".config" / "jaxcache", "me", public)
    here = tmp_path / "here"
    here.mkdir()
    target, source, key = Interrupted(here), LocalStore(there), tmp_path / "me.key"
    plan = plan_sync(source, target, now_ns=time.time_ns())
    with pytest.raises(KeyboardInterrupt):
        signers = [trust.read_private_key(key)]
        execute(source, target, plan, now_ns=time.time_ns(), jobs=1, signers=signers)
    pulled = told(run_cli, "pull", here, "-C", tmp_path / "one", "--require-signed")
    assert names(tmp_path / "one") == names(here) != names(there)
    assert pulled["untrusted"] == []
    assert run_cli("push", here, "-C", there, "--sign", key).returncode == 0
    assert told(run_cli, "pull", here, "-C", tmp_path / "two", "--require-signed")
    assert names(tmp_path / "two") == names(there)


def test_what_was_there_unsigned_is_signed_by_the_next_push(
    run_cli: RunCli, there: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    made = run_cli("trust", "keygen", "me").stdout.split("\t")[1].strip()
    assert run_cli("trust", "add", "me", made).returncode == 0
    here = tmp_path / "here"
    assert run_cli("push", here, "-C", there).returncode == 0
    assert told(run_cli, "push", here, "-C", there, "--sign", "me")["carried"] == []
    signatures = set((here / ".jaxcache" / "signatures").iterdir())
    assert run_cli("push", here, "-C", there, "--sign", "me").returncode == 0
    assert set((here / ".jaxcache" / "signatures").iterdir()) == signatures
    done = told(run_cli, "pull", here, "-C", tmp_path / "place", "--require-signed")
    assert len(done["carried"]) == len(names(there))


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


def test_python_and_the_command_send_the_same_to_a_bucket(
    run_cli: RunCli, there: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = first(there)
    content = bytes(4) + padded(payload_of(entry), 300 << 20)
    entry.write_bytes(zstandard.ZstdCompressor(level=1).compress(content))
    os.utime(entry, ns=(OLD_NS, OLD_NS))
    plan = plan_sync(LocalStore(there), Remote(there.parent), now_ns=time.time_ns())
    (there.parent / "far").mkdir()
    done = execute(LocalStore(there), Remote(there.parent / "far"), plan, now_ns=time.time_ns())
    assert done.complete and len(done.carried) == len(names(there))
    assert len(told(run_cli, "push", bucket, "-C", there)["carried"]) == len(names(there))


class Remote(LocalStore):
    """A directory that counts as a bucket."""

    remote = True


def test_python_takes_what_a_directory_refuses_only_if_told_so(there: Path, tmp_path: Path) -> None:
    entry = first(there)
    content = bytes(4) + padded(payload_of(entry), 300 << 20)
    entry.write_bytes(zstandard.ZstdCompressor(level=1).compress(content))
    os.utime(entry, ns=(OLD_NS, OLD_NS))
    here = jaxcache.open(tmp_path / "here", create=True)
    refused = jaxcache.open(there).push(here)
    assert refused is not None and [p.file for p in refused.damaged] == [entry.name]
    allowed = jaxcache.open(there).push(here, allow_large=True)
    assert allowed is not None and [s.name for s in allowed.carried] == [entry.name]


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
    entry = first(there)
    facts = digest_facts("0" * 64, LocalStore(there).info(entry.name))
    append(LocalStore(there), [Event(key_of(entry.name) or "", PAYLOAD, OLD_NS, facts)])
    (segment,) = (there / ".jaxcache" / "ledger").iterdir()
    s3_server.put(bucket, f".jaxcache/ledger/{segment.name}", segment.read_bytes())
    done = told(run_cli, "pull", bucket, "-C", tmp_path / "here")
    assert (len(done["carried"]), done["left_out"]) == (len(names(there)), [])
    assert run_cli("verify", "-C", tmp_path / "here").returncode == 0


@pytest.fixture
def tuned(there: Path) -> Path:
    """A cache with autotuning results of both formats, and everything that must not travel."""
    device = "a4baa03864db7cfb"
    files = {
        f"{AUTOTUNE_DIR}/QUJD.textproto": b"tile",
        f"{AUTOTUNE_DIR}/{device}/{'1' * 32}.pb": b"tile",
        f"{AUTOTUNE_DIR}/{device}/0.12.0/{'2' * 32}.pb": b"tile",
        f"{AUTOTUNE_DIR}/empty.textproto": b"",
        f"{AUTOTUNE_DIR}/tmp_results_123": b"half",
        f"{AUTOTUNE_DIR}/{device}/.tmp_{'1' * 32}_7_9": b"half",
        f"{AUTOTUNE_DIR}/evil.sh": b"rm",
        KERNEL_CACHE: b"kernels",
    }
    for name, data in files.items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(data)
        os.utime(there / name, ns=(OLD_NS, OLD_NS))
    young = there / AUTOTUNE_DIR / "young.textproto"
    young.write_bytes(b"tile")
    return there


@pytest.mark.parametrize("way", [*WAYS, "import"])
def test_autotuning_results_of_both_formats_travel_and_nothing_else(
    run_cli: RunCli, tuned: Path, tmp_path: Path, way: str
) -> None:
    here, bundle = tmp_path / "here", tmp_path / "b.jxb"
    words = WAYS[way](tuned, here) if way in WAYS else ("import", bundle, "-C", here)
    if way == "import":
        assert run_cli("export", bundle, "-C", tuned).returncode == 0
    assert run_cli(*words).returncode == 0
    if Path(f"{here}.jxb").exists():
        assert run_cli("import", f"{here}.jxb", "-C", here).returncode == 0
    found = {
        str(p.relative_to(here))
        for p in here.rglob("*")
        if p.is_file() and (AUTOTUNE_DIR in str(p) or p.name == KERNEL_CACHE)
    }
    device = f"{AUTOTUNE_DIR}/a4baa03864db7cfb"
    assert found == {
        f"{AUTOTUNE_DIR}/QUJD.textproto",
        f"{device}/{'1' * 32}.pb",
        f"{device}/0.12.0/{'2' * 32}.pb",
    }


def test_an_old_bundle_keeps_the_kernel_cache_to_itself_and_says_why(
    run_cli: RunCli, tmp_path: Path
) -> None:
    def with_kernels(document: dict[str, Any]) -> None:
        document["entries"] = []
        document["files"] = [
            {
                "name": KERNEL_CACHE,
                "size_bytes": 7,
                "sha256": "239f59ed55e737c77147cf55ad0c1b030b6d7ee748a7426952f9b852d5a935e5",
                "created_ns": OLD_NS,
            }
        ]

    (tmp_path / "old.jxb").write_bytes(forged(with_kernels))
    done = run_cli("import", tmp_path / "old.jxb", "-C", tmp_path / "here", "--json")
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(done.stdout)["entries"]
    assert (entry["action"], "any GPU" in entry["detail"]) == ("left", True)
    assert not (tmp_path / "here" / KERNEL_CACHE).exists()


def test_a_truncated_entry_is_none_that_compile_may_keep(there: Path) -> None:
    torn, empty, *_ = sorted(there.glob("*-cache"))
    good = {path: path.read_bytes() for path in (torn, empty)}
    torn.write_bytes(good[torn][:-20])
    empty.write_bytes(b"")
    for path in good:
        os.utime(path, ns=(OLD_NS, OLD_NS))
    delivery = Delivery(LocalStore(there))
    for path, data in good.items():
        key = key_of(path.name) or ""
        assert not delivery.has(key)
        assert delivery.take(path.name, io.BytesIO(data), key) is not None
        assert delivery.has(key)
        assert payload_of(path) == zstandard.decompress(data, max_output_size=1 << 24)[4:]


def test_a_directory_is_no_entry_that_compile_may_keep(there: Path, tmp_path: Path) -> None:
    entry, here = first(there), tmp_path / "here"
    (here / entry.name).mkdir(parents=True)
    delivery, key = Delivery(LocalStore(here)), key_of(entry.name) or ""
    assert not delivery.has(key)
    with pytest.raises(JaxcacheError, match="a dir has its name"):
        delivery.take(entry.name, io.BytesIO(entry.read_bytes()), key)
    (here / entry.name).rmdir()
    shutil.copy(entry, here)
    assert delivery.take(entry.name, io.BytesIO(entry.read_bytes()), key) is None
