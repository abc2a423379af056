"""``verify`` from Python: what cannot be read, what is repaired and restored, and processes."""

import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import zstandard
from failing import let_fail

import jaxcache
from jaxcache.cache.files import remove_leftovers, staging
from jaxcache.cache.ledger.record import PAYLOAD, Event, digest_facts
from jaxcache.cache.ledger.write import append
from jaxcache.cache.seal import execute_seal, plan_seal
from jaxcache.cache.verify import check
from jaxcache.cache.verify.repair import (
    execute_repair,
    plan_repair,
    quarantine_directory,
    restore,
)
from jaxcache.cache.verify.run_checks import Verification, verify
from jaxcache.core.names import AUTOTUNE_DIR
from jaxcache.layouts import load_layout
from jaxcache.model import reporting_to
from jaxcache.options import SealOptions, VerifyOptions
from jaxcache.store.base import MissingError, StoreError
from jaxcache.store.local import LocalStore
from jaxcache.warm.crosshost.cross_target import Delivery

JAX = load_layout("jax")
NOW_NS = 4 * 10**18
ENTRIES = 7


LEFT = ".jaxcache-tmp-1-left"


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "cache"))


def look(store: LocalStore, **options: object) -> Verification:
    return verify(store, JAX, VerifyOptions(**options), now_ns=NOW_NS)  # type: ignore[arg-type]


def seal(cache: Path) -> None:
    store = LocalStore(cache)
    execute_seal(store, plan_seal(store, SealOptions()), jobs=1, now_ns=NOW_NS)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreError("x", "input/output error", code="io-error"), "unreadable"),
        (StoreError("x", "not what was sent", code="checksum-mismatch"), "checksum-mismatch"),
        (MissingError("x"), None),
    ],
)
def test_an_entry_that_cannot_be_read_is_a_finding(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: StoreError, kind: str | None
) -> None:
    """One that goes meanwhile is none."""
    let_fail(monkeypatch, "open", error=error)
    found = look(LocalStore(cache))
    bad = ENTRIES if kind else 0
    assert [(p.kind, p.detail) for p in found.problems] == [(kind, error.reason)] * bad
    assert str(found) == f"{bad} entries checked: " + ("7 with problems" if bad else "none there")


def test_an_entry_that_is_replaced_while_it_is_checked_is_checked_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next(cache.glob("jit_mlp-*"))
    new = cache.parent / "new"
    path.rename(new)
    path.write_bytes(new.read_bytes()[:-9])
    open_ = LocalStore.open

    def replace(store: LocalStore, name: str) -> BinaryIO:
        opened = open_(store, name)
        if name == path.name and new.exists():
            new.replace(path)
        return opened

    monkeypatch.setattr(LocalStore, "open", replace)
    found = look(LocalStore(cache))
    assert (found.failures, found.ok) == ((), ENTRIES)


def test_of_two_in_quarantine_the_later_comes_back(cache: Path) -> None:
    path = next(cache.glob("jit_mlp-*"))
    content = zstandard.decompress(path.read_bytes())
    path.unlink()
    for level in (1, 9):
        away = cache / quarantine_directory(level * 10**18) / path.name
        away.parent.mkdir(parents=True)
        away.write_bytes(zstandard.ZstdCompressor(level).compress(content))
    later = away.read_bytes()
    done = jaxcache.open(cache).restore()
    assert (len(done.restored), len(done.left)) == (1, 1)
    assert path.read_bytes() == later


def test_a_new_entry_is_not_held_to_the_digest_of_its_damaged_one(cache: Path) -> None:
    path = next(cache.glob("jit_mlp-*"))
    whole = path.read_bytes()
    os.utime(path, (1e9, 1e9))
    facts = digest_facts("ab" * 32, LocalStore(cache).info(path.name))
    append(LocalStore(cache), [Event(path.name.removesuffix("-cache"), PAYLOAD, 5, facts)])
    opened = jaxcache.open(cache)
    opened.execute(opened.plan_repair(opened.verify()))
    assert not path.exists()
    path.write_bytes(whole)  # as JAX compiles it anew, by chance as large
    assert {p.kind for p in opened.verify().problems} == {"unsealed"}
    path.unlink()
    opened.restore()  # keeps its time, so it is reported again
    assert [p.kind for p in opened.verify().failures] == ["digest-mismatch"]


# Repairs and restorations beside others, and after a kill.


@pytest.mark.parametrize(
    "name",
    [
        LEFT,
        f"{AUTOTUNE_DIR}/{LEFT}",
        ".jaxcache/incoming/0a-3",
        f".jaxcache/incoming/{LEFT}",
    ],
)
def test_what_a_killed_writer_left_is_found_and_removed(cache: Path, name: str) -> None:
    """By ``--fix``, by the next command that writes, and by the next compile."""
    left, store = cache / name, LocalStore(cache)
    left.parent.mkdir(parents=True, exist_ok=True)

    def fix(store: LocalStore) -> None:
        found = look(store)
        assert [p.file for p in found.failures] == [name]
        done = execute_repair(store, JAX, plan_repair(found, now_ns=NOW_NS, delete=False))
        assert done.actions == {name: "delete"}

    for remove in (fix, remove_leftovers, lambda store: Delivery(store).known_keys()):
        left.write_bytes(b"half")
        remove(store)
        assert not left.exists()


def test_what_is_being_staged_is_left_alone(cache: Path) -> None:
    store = LocalStore(cache)
    with staging(store) as stage:
        store.write(f"{stage}-0", [b"entry"], mtime_ns=0)
        done = execute_repair(store, JAX, plan_repair(look(store), now_ns=NOW_NS, delete=False))
        assert set(done.actions.values()) == {"leave-young"}
        remove_leftovers(LocalStore(cache))
        assert store.read(f"{stage}-0", limit=9) == b"entry"
    remove_leftovers(store)
    assert not list((cache / ".jaxcache" / "incoming").iterdir())


def test_what_was_written_anew_stays(capped_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here JAX writes it right before it is deleted."""
    name = next(capped_cache.glob("jit_mlp-*-cache")).name
    (capped_cache / name).write_bytes(b"")
    os.utime(capped_cache / name, (1e9, 1e9))
    store = LocalStore(capped_cache)
    plan = plan_repair(look(store), now_ns=NOW_NS, delete=False)
    (capped_cache / name).write_bytes(b"another")
    assert execute_repair(store, JAX, plan).actions == {name: "leave-changed"}
    plan = plan_repair(look(store), now_ns=NOW_NS, delete=True)
    delete = LocalStore.delete

    def overtaken(store: LocalStore, name: str, **options: Any) -> bool:
        if options:
            Path(store.url, name).write_bytes(b"anew")
        return delete(store, name, **options)

    monkeypatch.setattr(LocalStore, "delete", overtaken)
    assert execute_repair(store, JAX, plan).actions == {name: "leave-changed"}
    assert (capped_cache / name.replace("-cache", "-atime")).exists()


def test_a_killed_restoration_is_finished_and_a_lost_date_made_again(capped_cache: Path) -> None:
    path = next(capped_cache.glob("jit_mlp-*-cache"))
    away = capped_cache / quarantine_directory(10**18) / path.name
    away.parent.mkdir(parents=True)
    stamp = path.with_name(path.name.replace("-cache", "-atime"))
    stamp.unlink()
    path.rename(away)
    for _ in range(2):
        done = restore(LocalStore(capped_cache), JAX)
        assert ([r.file for r in done.restored], done.left) == ([path.name], ())
        assert (path.exists(), away.exists()) == (True, False)
        assert int.from_bytes(stamp.read_bytes(), "little") == path.stat().st_mtime_ns
        os.link(path, away)  # as a restoration leaves it that is killed between two calls


# ``verify`` in several processes finds what it finds in one.


def test_processes_find_the_same(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does this one, where there can be no other, and with entries too large to send."""
    paths = sorted(cache.glob("*-cache"))
    data = bytearray(paths[0].read_bytes())
    data[len(data) // 2] ^= 0x40
    paths[0].write_bytes(data)
    paths[1].write_bytes(paths[1].read_bytes()[:-3])
    facts = digest_facts("0" * 64, LocalStore(cache).info(paths[2].name))
    append(LocalStore(cache), [Event(paths[2].name.removesuffix("-cache"), PAYLOAD, 5, facts)])
    alone = look(LocalStore(cache), jobs=1)
    assert {p.kind for p in alone.failures} >= {"truncated", "digest-mismatch"}
    monkeypatch.setattr(check, "SPREAD_ABOVE", 2)

    def refused(*args: object, **options: object) -> None:
        raise OSError(os.strerror(11))

    with monkeypatch.context() as patched:
        patched.setattr("concurrent.futures.ProcessPoolExecutor", refused)
        assert look(LocalStore(cache), jobs=2) == alone
    with monkeypatch.context() as patched:
        patched.setattr(check, "MAX_FILE_BYTES", 10)
        patched.setattr(check, "spread", None)
        assert look(LocalStore(cache), jobs=2) == alone
    monkeypatch.setattr(check, "check_entry", None)  # what is checked here would end this process
    told: list[tuple[int, int]] = []
    with reporting_to(lambda *n: told.append(n)):
        assert look(LocalStore(cache), jobs=2) == alone
    assert told[-1] == (alone.checked, alone.checked)
