"""The ledger of a live directory stays small and complete, and what cannot be its is not read."""

import json
import os
from pathlib import Path

import pytest
from conftest import RunCli
from ways import old_copy

from jaxcache.cache.ledger.record import COMPILE, HIT, PIN, Event
from jaxcache.cache.ledger.segments import MAX_SEGMENT_BYTES, Ledger, count_uses
from jaxcache.cache.ledger.write import append, compact
from jaxcache.cache.trust import TrustedKey, load_signed
from jaxcache.core.ledger import COMPACT_ABOVE, MAX_LEDGER_BYTES, EventFold, sum_uses
from jaxcache.core.names import LEDGER_DIR
from jaxcache.core.signing import MAX_SIGNATURES_BYTES, SIGNATURES_DIR
from jaxcache.errors import UntrustedError
from jaxcache.live.uses import UseLog, read_digests, read_ledger
from jaxcache.live.uses import compact as compact_live
from jaxcache.store import open_store
from jaxcache.store.local import LocalStore

KEYS = [f"jit_m{n}-{n:064x}" for n in range(8)]


def run_processes(root: Path, number: int) -> None:
    """Leave what so many processes leave: the first compiles, the others hit."""
    root.mkdir(exist_ok=True)
    for process in range(number):
        uses = UseLog(str(root), {"jax_version": "0.10.2"})
        for key in KEYS:
            if process:
                uses.hit(key)
            else:
                (root / f"{key}-cache").write_bytes(b"entry")
                uses.compiled(key, 2.5)
        uses.flush()
        compact_live(str(root))


def segments(root: Path) -> list[Path]:
    return list((root / ".jaxcache" / "ledger").glob("*.jsonl"))


def test_the_ledger_of_many_processes_is_small_and_complete(tmp_path: Path) -> None:
    run_processes(tmp_path, 301)
    assert len(segments(tmp_path)) <= COMPACT_ABOVE + 1
    assert sum(p.stat().st_size for p in segments(tmp_path)) < 150_000
    store = open_store(str(tmp_path))
    uses = count_uses(Ledger.load(store))
    assert (uses.hits, uses.misses, uses.saved_seconds) == (2400, 8, 6000.0)
    assert read_ledger(str(tmp_path))[KEYS[0]].hits == 300
    compact(store)
    assert count_uses(Ledger.load(store)) == uses


@pytest.mark.parametrize("by", ["live", "command"])
def test_compaction_keeps_totals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    monkeypatch.setattr("jaxcache.core.ledger.MIN_ABSENT", 0)
    store = open_store(str(tmp_path))
    for number in range(COMPACT_ABOVE):
        key = f"jit_old-{number:064x}"
        events = [Event(key, COMPILE, 1, {"compile_seconds": 2.0}), Event(key, HIT, 2)]
        append(store, [*events, Event(key, HIT, 3, {"count": 2})])
    append(store, [Event(KEYS[0], PIN, 4)])
    before = count_uses(Ledger.load(store))
    assert (before.hits, before.misses) == (192, 64)
    for _ in range(2):
        compact_live(str(tmp_path)) if by == "live" else compact(store)
        ledger = Ledger.load(store)
        assert list(ledger) == [KEYS[0]]
        assert count_uses(ledger) == before


def test_hits_save_what_was_timed_and_else_a_compile_less_the_fetching() -> None:
    timed = {"count": 3, "timed": 2, "saved_seconds": 5.0, "retrieval_seconds": 0.5}
    events = [Event(KEYS[0], COMPILE, 1, {"compile_seconds": 2.0}), Event(KEYS[0], HIT, 2, timed)]
    sums = {"hits": 3, "misses": 1, "saved_seconds": 5.0 + (3 - 2) * 2.0 - 0.5}
    assert sum_uses(events) == sums
    whole = Event(KEYS[1], HIT, 3, {"timed": 1, "saved_seconds": 1.0})
    assert sum_uses([*events, whole]) == {**sums, "hits": 4, "saved_seconds": 7.5}
    assert sum_uses([Event(KEYS[0], PIN, 1)]) == {}


def test_the_digest_of_a_later_event_comes_with_all_that_describes_its_file() -> None:
    fold = EventFold()
    some = {"payload_sha256": "a", "file_inode": 1}, {"payload_sha256": "b"}, {"file_inode": 3}
    for at_ns, facts in enumerate(some):
        fold.add(Event(KEYS[0], COMPILE, at_ns, facts))
    assert fold.kinds_of(KEYS[0])[COMPILE].facts == {"payload_sha256": "b", "count": 3}


def test_a_copy_of_a_replaced_segment_counts_once(tmp_path: Path) -> None:
    run_processes(tmp_path, 40)
    copies = {p.name: p.read_bytes() for p in segments(tmp_path)}
    run_processes(tmp_path, COMPACT_ABOVE)
    uses = count_uses(Ledger.load(open_store(str(tmp_path))))
    known = read_ledger(str(tmp_path))
    for name, data in copies.items():
        (tmp_path / LEDGER_DIR / name).write_bytes(data)
    assert count_uses(Ledger.load(open_store(str(tmp_path)))) == uses
    assert read_ledger(str(tmp_path)) == known


def test_segments_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_processes(tmp_path, COMPACT_ABOVE)
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    run_processes(tmp_path, 2)
    assert len(segments(tmp_path)) == COMPACT_ABOVE + 2
    assert all(json.loads(p.read_text().splitlines()[0])["key"] for p in segments(tmp_path))


# Many files of zeros that take no space on the disk, whatever they announce.
_FILES = 100


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = old_copy(tmp_path / "cache")
    key = min(path.glob("*-cache")).name.removesuffix("-cache")
    append(LocalStore(path), [Event(key, PIN, 10**18), Event(key, HIT, 10**18)])
    return path


def write_sparse(directory: Path, size_bytes: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(_FILES):
        path = directory / f"{10**17 + number:020d}-{number:016x}.jsonl"
        path.touch()
        os.truncate(path, size_bytes)


def read_bytes() -> int:
    """How much this process has read, as the system counts it."""
    return int(Path("/proc/self/io").read_text().split()[1])


_COUNTING = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts")


@_COUNTING
@pytest.mark.parametrize("command", [("ls",), ("stats",), ("verify", "--level", "quick")])
def test_sparse_files_are_ignored(run_cli: RunCli, cache: Path, command: tuple[str, ...]) -> None:
    expected = run_cli(*command, "-C", cache)
    write_sparse(cache / LEDGER_DIR, MAX_SEGMENT_BYTES)
    before = read_bytes()
    done = run_cli(*command, "-C", cache)
    assert read_bytes() - before < MAX_SEGMENT_BYTES
    assert (done.returncode, expected.returncode) == (0, 0), done.stderr
    assert "the ledger holds more than 256 MiB and is ignored" in done.stderr
    assert bool(done.stdout) == bool(expected.stdout)
    assert len(Ledger.load(LocalStore(cache))) == 0


def test_no_prune_goes_on_where_such_a_ledger_may_hold_pins(run_cli: RunCli, cache: Path) -> None:
    write_sparse(cache / LEDGER_DIR, MAX_SEGMENT_BYTES)
    done = run_cli("prune", "--max-size", "1KB", "--yes", "-C", cache)
    assert done.returncode != 0
    assert "it may hold pins, so nothing is removed [pins-unread]" in done.stderr
    assert len(list(cache.glob("*-cache"))) == 7


@_COUNTING
def test_a_live_program_reads_a_part_of_it(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sparse(cache / LEDGER_DIR, MAX_SEGMENT_BYTES)
    before = read_bytes()
    assert read_ledger(str(cache)) == {} and read_digests(str(cache)) == {}
    assert read_bytes() - before < 2 * (MAX_LEDGER_BYTES + 2 * MAX_SEGMENT_BYTES)
    assert "its ledger is too large" in capsys.readouterr().err


@_COUNTING
def test_a_live_program_compacts_no_more_than_a_moment_takes(cache: Path) -> None:
    write_sparse(cache / LEDGER_DIR, 4 << 20)
    before = read_bytes()
    compact_live(str(cache))
    assert read_bytes() - before < MAX_SEGMENT_BYTES


@_COUNTING
def test_such_signatures_count_for_nothing(cache: Path) -> None:
    write_sparse(cache / SIGNATURES_DIR, MAX_SIGNATURES_BYTES)
    before = read_bytes()
    with pytest.raises(UntrustedError, match="more signatures"):
        load_signed(LocalStore(cache), [TrustedKey("ci", bytes(32))])
    assert read_bytes() - before < MAX_SEGMENT_BYTES
