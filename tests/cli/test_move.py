"""Every way in which entries move: the same checks, the same exit codes, nothing lost unsaid."""

import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import zstandard
from bundling import SMALL, first_entry, forged, make_bundle, padded, payload_of
from conftest import CORPUS, GiveAway, RunCli
from object_server import S3Server
from ways import ALL_WAYS, FROM_BUNDLE, MOVES, OLD_NS, WAYS, bundled, names, old_copy, told

import jaxcache
from jaxcache.cache.ledger.record import HIT, PAYLOAD, Event, digest_facts
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.move.plan import MoveTarget
from jaxcache.cache.verify import check
from jaxcache.core import names as core_names
from jaxcache.core.names import AUTOTUNE_DIR, KERNEL_CACHE
from jaxcache.entry.decode import decode_payload
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
    return bundled(bundle) if bundle.exists() else names(here)


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a megabyte be as much as hundreds are."""
    for module in (check, core_names):
        monkeypatch.setattr(module, "FREE_PAYLOAD_BYTES", 1 << 20)


def rewrite(entry: Path, payload: bytes = b"no executable") -> None:
    """Give an entry another payload; it stays as old as it was."""
    entry.write_bytes(zstandard.compress(bytes(4) + payload))
    os.utime(entry, ns=(OLD_NS, OLD_NS))


@pytest.mark.parametrize("way", WAYS)
def test_damage_goes_nowhere(run_cli: RunCli, there: Path, here: Path, way: str) -> None:
    """A payload that is no executable, and another one than the ledger records."""
    spoilt, other, *sound = sorted(there.glob("*-cache"))
    rewrite(spoilt)
    facts = digest_facts("0" * 64, LocalStore(there).info(other.name))
    append(LocalStore(there), [Event(key_of(other.name) or "", PAYLOAD, OLD_NS, facts)])
    for dry in ((),) if way in ("restore", "export") else (("--dry-run",), ()):
        assert not here.exists()
        done = run_cli(*WAYS[way](there, here), *dry)
        assert done.returncode == (0 if way == "restore" else 3), done.stderr
    assert way == "restore" or all(bad.name in done.stderr for bad in (spoilt, other))
    assert arrived(here) == {path.name for path in sound}


@pytest.mark.parametrize("layout", ["jax", "torch"])
def test_copies_between_any_two_are_equal(
    run_cli: RunCli, there: Path, golden: Path, tmp_path: Path, layout: str
) -> None:
    cache = there if layout == "jax" else golden
    stops = [cache, tmp_path / "a", tmp_path / "b.jxb", tmp_path / "c.jxb", tmp_path / "d"]
    for source, target in itertools.pairwise(stops):
        assert run_cli("copy", source, target).returncode == 0
        assert run_cli("diff", cache, target).returncode == 0
    assert (tmp_path / "b.jxb").read_bytes() == (tmp_path / "c.jxb").read_bytes()


@pytest.mark.parametrize("way", [*MOVES, "export"])
def test_bad_names_stay_out(run_cli: RunCli, there: Path, here: Path, way: str) -> None:
    (entry,) = there.glob("jit_loss-*-cache")
    sound = names(there)
    for module in ("jit_loſs", "jit\x1b_loss", ".jit_loss"):  # "ſ" is "s" in another case
        shutil.copy2(entry, there / entry.name.replace("jit_loss", module))
    done = run_cli(*WAYS[way](there, here))
    assert done.returncode == 3, done.stderr
    assert f"differs from {entry.name} in case only" in done.stderr
    assert "holds characters that do not print" in done.stderr
    assert "is a path, not a name" in done.stderr
    assert arrived(here) == sound


def test_a_payload_is_decoded_again_unless_this_user_recorded_it(
    run_cli: RunCli, there: Path, give_away: GiveAway, monkeypatch: pytest.MonkeyPatch
) -> None:
    middle, own, other = (there.parent / name for name in ("middle", "own", "other"))
    assert run_cli("copy", there, middle).returncode == 0
    decoded: list[str] = []

    def decode(payload: bytes, module: str, **options: Any) -> Any:
        decoded.append(module)
        return decode_payload(payload, module, **options)

    monkeypatch.setattr(check, "decode_payload", decode)
    assert run_cli("copy", middle, own).returncode == 0
    assert decoded == []
    give_away(middle / ".jaxcache" / "ledger")
    assert run_cli("copy", middle, other).returncode == 0
    assert names(own) == names(other) == names(there)
    assert len(decoded) == len(names(there))


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("way", ["push", "pull", "copy", "save"])
def test_what_stays_out_is_counted(run_cli: RunCli, there: Path, here: Path, way: str) -> None:
    """A name that clashes, a directory in the way, a payload that inflates too far, and damage.

    What a killed writer left goes.
    """
    staged = here / ".jaxcache" / "incoming"
    staged.mkdir(parents=True)
    left = [here / ".jaxcache-tmp-1-a", staged / ".jaxcache-tmp-b", staged / "b-1"]
    for file in left:
        file.write_bytes(b"half")
    clash, directory, large, damaged, *rest = offered = sorted(names(there))
    (here / clash.replace("jit_", "JIT_")).write_bytes((there / clash).read_bytes())
    (here / directory).mkdir()
    rewrite(there / large, padded(payload_of(there / large), 4 << 20))
    rewrite(there / damaged)
    document = told(run_cli, *WAYS[way](there, here), code=3)
    assert not any(file.exists() for file in left)
    assert {n for n in names(here) if (here / n).is_file() and n.startswith(("jit", "pm"))} == {
        *rest
    }
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


def test_names_are_synced_once_and_before_the_ledger(
    run_cli: RunCli, there: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.mkdir()
    synced: list[bool] = []

    def fsync(file: int) -> None:
        if os.path.samestat(os.fstat(file), here.stat()):
            synced.append((here / ".jaxcache" / "ledger").exists())

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(MoveTarget, "batch", 1)
    assert run_cli("copy", str(there), str(here)).returncode == 0
    assert len(names(here)) > 1
    assert synced == [False]


@pytest.mark.parametrize("way", ["push", "pull", "copy", "restore", "save"])
def test_a_directory_that_takes_no_more_files_is_not_asked_again_and_every_entry_is_counted(
    run_cli: RunCli, there: Path, here: Path, way: str, monkeypatch: pytest.MonkeyPatch
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
    document = told(run_cli, *WAYS[way](there, here), code=3)
    assert names(here) == set()
    assert 0 < len(tries) < len(names(there))
    if way == "copy":
        assert {e["action"] for e in document["entries"]} == {"write"}
        assert (len(document["entries"]), document["summary"]["written"]) == (len(names(there)), 0)
    elif way == "restore":
        assert (document["written"], document["present"], document["left_out"]) == (0, 0, 0)
    else:
        assert len(document["failed"]) == len(names(there))


def test_of_refused_entries_the_ledger_learns_nothing_and_no_pin_travels(
    run_cli: RunCli, there: Path, here: Path, tmp_path: Path
) -> None:
    def lying(key: str, content: bytes) -> bytes:
        ledger = [
            {"key": key, "kind": "pin", "at_ns": 5},
            {"key": key, "kind": PAYLOAD, "at_ns": 6, "payload_sha256": "1" * 64},
            {"key": key, "kind": HIT, "at_ns": 7, "count": 3},
        ]
        return forged(lambda d: d["entries"][0].update(key=key, ledger=ledger), content)

    refused, sound = "jit_f-" + "a" * 64, key_of(first_entry(there).name) or ""
    bundle = tmp_path / "b.jxb"
    bundle.write_bytes(lying(refused, b"no executable"))
    assert run_cli("import", bundle, "-C", here).returncode == 3
    assert refused not in Ledger.load(LocalStore(here))
    bundle.write_bytes(lying(sound, payload_of(first_entry(there))))
    for _ in range(2):  # what a bundle records counts once
        assert run_cli("import", bundle, "-C", here).returncode == 0
    record = Ledger.load(LocalStore(here)).record(sound)
    assert record is not None
    assert (record.pinned, record.hits, record.payload_sha256 == "1" * 64) == (False, 3, False)


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
    tuned: Path,
    here: Path,
    way: str,
    words: Sequence[str],
    left: Callable[[str], bool],
) -> None:
    """Autotuning results stay where a filter chooses entries."""
    key = key_of(first_entry(tuned).name) or ""
    append(LocalStore(tuned), [Event(key, HIT, OLD_NS)])
    for dry in (("--dry-run",), ()):
        done = run_cli(*WAYS[way](tuned, here), *words, *dry)
        assert done.returncode == 0, done.stderr
    assert names(here) == {name for name in names(tuned) if not left(name)}
    assert (here / AUTOTUNE_DIR).exists() == ("--filter" not in words)
    if "--max-size" in words:
        assert "no room" in done.stderr
    if "--no-ledger" in words:
        record = Ledger.load(LocalStore(here)).record(key)
        assert record is None or not record.hits


def test_an_import_writes_with_as_many_threads_as_it_is_told(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def write(store: LocalStore, files: Sequence[NewFile]) -> Iterator[FileInfo | StoreError]:
        threads.add(threading.get_ident())
        return write_many(store, files)

    write_many = LocalStore.write_many
    monkeypatch.setattr(LocalStore, "write_many", write)
    monkeypatch.setattr(MoveTarget, "batch", 1)
    (tmp_path / "b.jxb").write_bytes(make_bundle(there))
    for jobs, least in ((1, 1), (7, 2)):
        threads.clear()
        here = tmp_path / f"{jobs}"
        jaxcache.open(here, create=True).import_(tmp_path / "b.jxb", jobs=jobs)
        assert least <= len(threads) <= jobs
        assert names(here) == names(there)


@pytest.mark.parametrize("way", [*MOVES, "save", "restore", *FROM_BUNDLE])
def test_what_travels_arrives_sealed(run_cli: RunCli, there: Path, here: Path, way: str) -> None:
    Path(f"{there}.jxb").write_bytes(make_bundle(there))
    assert run_cli(*ALL_WAYS[way](there, here)).returncode == 0
    for name in names(there):
        old, new = (there / name).read_bytes(), (here / name).read_bytes()
        assert zstandard.get_frame_parameters(new).has_checksum
        assert not zstandard.get_frame_parameters(old).has_checksum
        if way not in FROM_BUNDLE:
            assert new[5:-4] == old[5:]


def test_verify_agrees_with_a_pull_about_the_ledger_of_a_bucket(
    run_cli: RunCli, there: Path, here: Path, bucket: str, s3_server: S3Server
) -> None:
    """Anybody can have written it, so its digests accuse nothing, there or here."""
    assert run_cli("push", bucket, "-C", there).returncode == 0
    entry = first_entry(there)
    facts = digest_facts("0" * 64, LocalStore(there).info(entry.name))
    append(LocalStore(there), [Event(key_of(entry.name) or "", PAYLOAD, OLD_NS, facts)])
    (segment,) = (there / ".jaxcache" / "ledger").iterdir()
    s3_server.put(bucket, f".jaxcache/ledger/{segment.name}", segment.read_bytes())
    done = told(run_cli, "pull", bucket, "-C", here)
    assert (len(done["carried"]), done["left_out"]) == (len(names(there)), [])
    assert run_cli("verify", "-C", here).returncode == 0


def test_an_entry_of_the_target_that_cannot_be_read_stops_no_other(
    run_cli: RunCli, there: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = old_copy(here)
    entry = first_entry(here)
    open_ = LocalStore.open

    def fail(store: LocalStore, name: str) -> BinaryIO:
        if (store.url, name) == (str(here), entry.name):
            raise StoreError(name, "input/output error", code="io-error")
        return open_(store, name)

    monkeypatch.setattr(LocalStore, "open", fail)
    for missing in sorted(names(here) - {entry.name})[:2]:
        (here / missing).unlink()
    document = told(run_cli, "copy", there, here, code=3)
    blocked = {e["file"]: e["detail"] for e in document["entries"] if e["action"] == "blocked"}
    assert blocked == {entry.name: "input/output error"}
    assert document["summary"]["written"] == 2
    assert names(here) == names(there)


# Autotuning results travel in every way in which entries move, and kernel caches in none.


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
    (there / AUTOTUNE_DIR / "young.textproto").write_bytes(b"tile")
    return there


@pytest.mark.parametrize("way", WAYS)
def test_autotuning_results_travel(run_cli: RunCli, tuned: Path, here: Path, way: str) -> None:
    assert run_cli(*WAYS[way](tuned, here)).returncode == 0
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


# Entries that inflate far come only where that is allowed, in every way in which entries move.


@pytest.fixture
def large(there: Path, small_limit: None) -> Path:
    """One of the entries, made to inflate to more than comes in unless that is allowed."""
    entry = first_entry(there)
    rewrite(entry, padded(payload_of(entry), 4 << 20))
    return entry


@pytest.mark.parametrize("way", [*MOVES, "restore", "save", "import"])
def test_an_entry_that_inflates_far_comes_only_where_that_is_allowed(
    run_cli: RunCli, there: Path, large: Path, here: Path, way: str
) -> None:
    if way == "import":
        assert run_cli("export", f"{there}.jxb", "-C", there).returncode == 0
    words = ALL_WAYS[way](there, here)
    done = run_cli(*words)
    assert done.returncode == (0 if way == "restore" else 3)
    assert way == "restore" or "--allow-large" in done.stderr
    assert names(here) == names(there) - {large.name}
    done = run_cli(*words, "--allow-large")
    assert (done.returncode, names(here)) == (0, names(there)), done.stderr


def test_python_sends_what_the_command_sends(
    run_cli: RunCli, there: Path, large: Path, here: Path, bucket: str
) -> None:
    """All to a bundle and a bucket; to a directory, what inflates far only if that is allowed."""
    for dry in (("--dry-run",), ()):
        assert run_cli("ci", "save", f"{here}.jxb", "-C", there, *dry).returncode == 0
    cache, here = jaxcache.open(there), jaxcache.open(here, create=True)
    done = cache.push(jaxcache.open(f"{bucket}/python", create=True))
    assert done is not None and done.complete and len(done.carried) == len(names(there))
    assert len(told(run_cli, "push", bucket, "-C", there)["carried"]) == len(names(there))
    refused = cache.push(here)
    assert refused is not None and [p.file for p in refused.damaged] == [large.name]
    allowed = cache.push(here, allow_large=True)
    assert allowed is not None and [s.name for s in allowed.carried] == [large.name]


# Signatures on every way in which entries move: what is required, and what is signed there.


@pytest.fixture
def public(run_cli: RunCli) -> str:
    """The public half of the key ``me``, which nobody trusts yet."""
    pytest.importorskip("cryptography")
    return run_cli("trust", "keygen", "me").stdout.partition("\t")[2].strip()


@pytest.mark.parametrize("way", [*MOVES, "restore", *FROM_BUNDLE])
@pytest.mark.parametrize("required", ["option", "setting"])
def test_only_what_a_trusted_key_has_signed_comes_where_that_is_required(
    run_cli: RunCli, there: Path, here: Path, tmp_path: Path, public: str, way: str, required: str
) -> None:
    bundle, project = f"{there}.jxb", tmp_path / "project"
    export = ("ci", "save", bundle) if way == "restore-bundle" else ("export", bundle)
    assert run_cli(*export, "-C", there).returncode == 0
    project.mkdir()
    words = ALL_WAYS[way](there, here)
    if required == "option":
        words = (*words, "--require-signed")
    else:
        (project / "pyproject.toml").write_text("[tool.jaxcache]\nrequire-signed = true\n")
    for dry in (("--dry-run",), ()) if way in MOVES else ((),):
        refused = run_cli(*words, *dry, cwd=project)
        assert (refused.returncode, "signed" in refused.stderr) == (12, True)
    assert not names(here)
    assert run_cli("trust", "add", "me", public).returncode == 0
    assert run_cli("push", there, "-C", SMALL, "--sign", "me").returncode == 0
    assert run_cli(*export, "-C", there, "--sign", "me").returncode == 0
    signed = names(there)
    shutil.copy(min((CORPUS / "0.6.2-cpu-zstd").glob("*-cache")), there)  # by somebody else
    assert run_cli(*words, cwd=project).returncode == (12 if way in MOVES else 0)
    assert names(here) == signed


@pytest.mark.parametrize("way", [*MOVES, "save"])
@pytest.mark.parametrize("before", [False, True])
def test_what_is_signed_on_its_way_is_taken_where_signatures_are_required(
    run_cli: RunCli, there: Path, here: Path, tmp_path: Path, public: str, way: str, before: bool
) -> None:
    assert run_cli("trust", "add", "me", public).returncode == 0
    if before:
        assert run_cli(*WAYS[way](there, here)).returncode == 0
    signatures = []
    for _ in range(2):
        assert run_cli(*WAYS[way](there, here), "--sign", "me").returncode == 0
        signatures.append({*(here / ".jaxcache" / "signatures").iterdir()})
    assert signatures[0] == signatures[1], "nothing is signed twice"
    done = run_cli("pull", here, "-C", tmp_path / "last", "--require-signed")
    assert (done.returncode, names(tmp_path / "last")) == (0, names(there)), done.stderr


@pytest.mark.usefixtures("public")
@pytest.mark.parametrize(("way", "code"), [("pull", 12), ("save", 0), ("save-bundle", 0)])
def test_a_pull_that_signs_still_requires_it_and_a_save_signs_for_others(
    run_cli: RunCli, there: Path, here: Path, tmp_path: Path, way: str, code: int
) -> None:
    (tmp_path / ".config/jaxcache/config.toml").write_text("require-signed = true\n")
    for dry in (("--dry-run",), ()):
        words = (*WAYS[way](there, here), *dry)
        assert run_cli(*words, *(("--sign", "me") if code else ())).returncode == code
    assert arrived(here) == (set() if code else names(there))


def test_what_an_interrupted_push_has_brought_is_signed(
    run_cli: RunCli, there: Path, here: Path, public: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_cli("trust", "add", "me", public).returncode == 0
    one, two = here.parent / "one", here.parent / "two"
    write_many, written = LocalStore.write_many, itertools.count()

    def write(store: LocalStore, files: Sequence[NewFile]) -> Iterator[FileInfo | StoreError]:
        if any(file.name.endswith("-cache") for file in files) and next(written) == 3:
            raise KeyboardInterrupt
        yield from write_many(store, files)

    push = ("push", here, "-C", there, "--sign", "me")
    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "write_many", write)
        patched.setattr(MoveTarget, "batch", 1)
        patched.setattr(MoveTarget, "workers", 1)
        assert run_cli(*push).returncode == 130
    assert run_cli("pull", here, "-C", one, "--require-signed").returncode == 0
    assert names(one) == names(here) != names(there)
    assert run_cli(*push).returncode == 0
    assert run_cli("pull", here, "-C", two, "--require-signed").returncode == 0
    assert names(two) == names(there)


# What a move says of keys that contain the cache's path; the golden record has the sentences.


def test_a_large_cache_is_looked_at_in_part(run_cli: RunCli, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (entry,) = (CORPUS / "0.10.2-cpu-zstd").glob("jit_loss-*-cache")
    for number in range(100):
        shutil.copy(entry, cache / f"jit_loss-{number:064x}-cache")
    done = run_cli("push", tmp_path / "elsewhere", "-C", cache, "--dry-run")
    assert done.stderr.startswith("0 of 25 entries looked at (of 100) will hit at another path: ")
