"""Sealing beside others: what changes, vanishes or is being written under its hands."""

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from jaxcache.cache.ledger.record import Event, digest_facts
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.seal import SealResult, execute_seal, plan_seal
from jaxcache.options import SealOptions
from jaxcache.store.base import StoreError
from jaxcache.store.local import LocalStore

NS = 1_000_000_000


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    """A cache of one entry."""
    target = tmp_path / "cache"
    target.mkdir()
    shutil.copy2(min((corpus / "0.12.0.1-cpu-zstd").glob("jit_mlp*-cache")), target)
    return target


def entry_of(cache: Path) -> Path:
    (path,) = cache.glob("*-cache")
    return path


def seal(cache: Path, meanwhile: Callable[[Path], object] = lambda path: None) -> SealResult:
    store = LocalStore(cache)
    planned = plan_seal(store)
    assert len(planned.todo) == 1
    meanwhile(entry_of(cache))
    return execute_seal(store, planned, jobs=1, now_ns=planned.todo[0].created_ns + 3600 * NS)


def longer(path: Path) -> None:
    content = zstandard.decompress(path.read_bytes()) + bytes(range(256)) * 100
    path.write_bytes(zstandard.compress(content))


@pytest.mark.parametrize(
    "meanwhile",
    [
        Path.unlink,
        lambda path: path.write_bytes(zstandard.compress(b"\0\0\0\1another")),
        lambda path: path.write_bytes(path.read_bytes() + b"more"),
        longer,
    ],
    ids=["vanished", "shorter", "extended", "longer"],
)
def test_an_entry_that_is_another_one_by_now_is_skipped(
    cache: Path, meanwhile: Callable[[Path], object]
) -> None:
    done = seal(cache, meanwhile)
    assert [reason for _, reason in done.skipped] == ["gone"]
    assert (done.sealed, done.problems) == ((), ())
    assert not list(cache.glob(".jaxcache-tmp-*"))


class ReplacedLate(LocalStore):
    """Another process writes the entry anew after it was read."""

    def read(self, name: str, *, limit: int) -> bytes:
        data = super().read(name, limit=limit)
        if name.endswith("-cache"):
            (self.path / name).write_bytes(b"theirs")
        return data


def test_what_is_replaced_after_it_was_read_stays_as_it_is(cache: Path) -> None:
    store = ReplacedLate(cache)
    done = execute_seal(store, plan_seal(store), jobs=1, now_ns=0)
    assert [reason for _, reason in done.skipped] == ["gone"]
    assert entry_of(cache).read_bytes() == b"theirs"


class BadDisk(LocalStore):
    """Entries cannot be read."""

    def read(self, name: str, *, limit: int) -> bytes:
        if name.endswith("-cache"):
            raise StoreError(name, "input/output error", code="io-error")
        return super().read(name, limit=limit)


def test_what_cannot_be_read_is_a_problem_of_its_own(cache: Path) -> None:
    store = BadDisk(cache)
    done = execute_seal(store, plan_seal(store), jobs=1, now_ns=0)
    assert [(p.kind, p.detail) for p in done.problems] == [("unreadable", "input/output error")]


@pytest.mark.parametrize(("age_seconds", "young"), [(59, True), (60, False)])
def test_an_unfinished_entry_is_young_for_a_minute(
    cache: Path, age_seconds: int, young: bool
) -> None:
    path = entry_of(cache)
    path.write_bytes(path.read_bytes()[:-9])
    store = LocalStore(cache)
    planned = plan_seal(store)
    now_ns = planned.todo[0].created_ns + age_seconds * NS
    done = execute_seal(store, planned, jobs=1, now_ns=now_ns)
    assert [reason for _, reason in done.skipped] == (["young"] if young else [])
    assert [p.kind for p in done.problems] == ([] if young else ["truncated"])


def test_what_the_ledger_knows_otherwise_is_not_sealed(cache: Path) -> None:
    path = entry_of(cache)
    before = path.read_bytes()
    facts = digest_facts("a" * 64, LocalStore(cache).info(path.name))
    append(LocalStore(cache), [Event(path.name.removesuffix("-cache"), "payload", 1, facts)])
    done = seal(cache)
    assert [p.kind for p in done.problems] == ["digest-mismatch"]
    assert path.read_bytes() == before


def test_what_gains_nothing_is_left_and_remembered(cache: Path) -> None:
    assert len(seal(cache).sealed) == 1
    store = LocalStore(cache)
    before = entry_of(cache).read_bytes()
    later_ns = time.time_ns() + 3600 * NS
    again = execute_seal(
        store, plan_seal(store, SealOptions(recompress=1)), jobs=1, now_ns=later_ns
    )
    assert [reason for _, reason in again.skipped] == ["no-gain"]
    assert entry_of(cache).read_bytes() == before
    record = Ledger.load(store).record(entry_of(cache).name.removesuffix("-cache"))
    assert record is not None and record.sealed_ns == later_ns


def test_a_payload_beyond_what_a_worker_may_hold_is_skipped(cache: Path) -> None:
    store = LocalStore(cache)
    planned = plan_seal(store)
    huge = replace(planned.todo[0], payload_bytes=(1 << 30) + 1)
    done = execute_seal(store, replace(planned, todo=(huge,)), jobs=1, now_ns=0)
    assert [reason for _, reason in done.skipped] == ["too-large"]


def test_progress_ends_with_the_last_entry(corpus: Path, tmp_path: Path) -> None:
    store = LocalStore(shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "seven"))
    seen: list[tuple[int, int]] = []
    done = execute_seal(
        store, plan_seal(store), jobs=2, now_ns=0, progress=lambda *told: seen.append(told)
    )
    assert seen == [(n, 7) for n in range(1, 8)]
    sizes = {s.entry.file: s.size_bytes_after for s in done.sealed}
    assert sizes == {n: (tmp_path / "seven" / n).stat().st_size for n in sizes} and len(sizes) == 7
    assert done.saved_bytes == sum(s.entry.size_bytes for s in done.sealed) - sum(sizes.values())
