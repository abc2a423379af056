"""Sealing beside others: what changes, vanishes or is being written under its hands."""

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from bundling import contents
from failing import let_fail

from jaxcache.cache.ledger.record import Event, digest_facts
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.seal import SealResult, execute_seal, plan_seal
from jaxcache.model import reporting_to
from jaxcache.options import SealOptions
from jaxcache.store import open_store
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
            Path(self.url, name).write_bytes(b"theirs")
        return data


def test_what_is_replaced_after_it_was_read_stays_as_it_is(cache: Path) -> None:
    store = ReplacedLate(cache)
    done = execute_seal(store, plan_seal(store), jobs=1, now_ns=0)
    assert [reason for _, reason in done.skipped] == ["gone"]
    assert entry_of(cache).read_bytes() == b"theirs"


def test_what_cannot_be_read_is_a_problem_of_its_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_fail(monkeypatch, "read", "-cache")
    store = LocalStore(cache)
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
    plan = plan_seal(store)
    with reporting_to(lambda *told: seen.append(told)):
        done = execute_seal(store, plan, jobs=2, now_ns=0)
    assert seen == [(n, 7) for n in range(1, 8)]
    sizes = {s.entry.file: s.size_bytes_after for s in done.sealed}
    assert sizes == {n: (tmp_path / "seven" / n).stat().st_size for n in sizes} and len(sizes) == 7
    assert done.saved_bytes == sum(s.entry.size_bytes for s in done.sealed) - sum(sizes.values())


# kill -9 at random instants while entries are sealed.


#: Seals the whole cache over and over, at levels that give different bytes.
_SEALER = """
import sys, time
from jaxcache.cache.seal import execute_seal, plan_seal
from jaxcache.options import SealOptions
from jaxcache.store import open_store
for n in range(10_000):
    if n == 1:
        print("ready", flush=True)
    store = open_store(sys.argv[1])
    plan = plan_seal(store, SealOptions(recompress=(None, 1, 9, 19)[n % 4]))
    # Levels that gain nothing are skipped, so every other turn starts from unsealed entries.
    execute_seal(store, plan, jobs=2, now_ns=time.time_ns())
    for name, data in ORIGINALS.items():
        store.write(name, [data])
"""


@pytest.mark.parametrize("times", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_seals_lose_nothing(corpus: Path, tmp_path: Path, times: int) -> None:
    cache = Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd-maxsize", tmp_path / "cache"))
    before = contents(cache)
    originals = {p.name: p.read_bytes() for p in cache.glob("*-cache")}
    script = tmp_path / "sealer.py"
    script.write_text(f"ORIGINALS = {originals!r}\n{_SEALER}")
    chance = random.Random(times)
    left = 0  # how often a temporary file was left
    for _ in range(times):
        process = subprocess.Popen([sys.executable, script, cache], stdout=subprocess.PIPE)
        with process:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0, 0.25))
            process.kill()
        assert process.returncode == -signal.SIGKILL  # it was at work until then
        assert contents(cache) == before
        left += any(cache.rglob(".jaxcache-tmp-*"))
    assert left or times < 200
    store = open_store(str(cache))
    execute_seal(store, plan_seal(store), jobs=2, now_ns=time.time_ns())
    assert not list(cache.rglob(".jaxcache-tmp-*"))
    assert contents(cache) == before
    assert not plan_seal(store).todo
