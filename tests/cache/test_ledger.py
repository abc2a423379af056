"""The ledger: append, fold, merge, compact; damage is skipped and counted."""

import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import clean_environment
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcache.cache.ledger.record import (
    COMPILE,
    HIT,
    PAYLOAD,
    PIN,
    SEALED,
    UNPIN,
    Event,
    LedgerRecord,
)
from jaxcache.cache.ledger.segments import MAX_SEGMENT_BYTES, Ledger
from jaxcache.cache.ledger.write import append, compact, pin, unpin
from jaxcache.core.ledger import COMPACT_ABOVE, is_compacted
from jaxcache.core.names import LEDGER_DIR
from jaxcache.layouts import load_layout
from jaxcache.live.uses import read_ledger
from jaxcache.store import open_store
from jaxcache.store.base import Store

KEY = "jit_step-" + "a" * 64


def segments(cache: Path) -> list[Path]:
    return sorted((cache / LEDGER_DIR).glob("*"))


def load(cache: Path) -> Ledger:
    return Ledger.load(open_store(str(cache)))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def test_nothing_known_is_an_empty_ledger(tmp_path: Path) -> None:
    ledger = load(tmp_path)
    assert not ledger and ledger.record(KEY) is None and ledger.damaged == 0
    assert not (tmp_path / ".jaxcache").exists()


def test_events_fold_into_a_record(tmp_path: Path, store: Store) -> None:
    assert append(
        store,
        [
            Event(
                KEY,
                COMPILE,
                10,
                {
                    "compile_seconds": 1.25,
                    "jax_version": "0.12.0",
                    "components": {"computation": "ab"},
                    "host": "node7",
                },
            ),
            Event(KEY, PAYLOAD, 11, {"payload_sha256": "cd", "file_mtime_ns": 9}),
        ],
    )
    assert append(store, [Event(KEY, HIT, 20), Event(KEY, HIT, 30, {"count": 3})])
    assert append(store, [Event(KEY, SEALED, 40), Event(KEY, PIN, 41)])
    assert load(tmp_path).record(KEY) == LedgerRecord(
        key=KEY,
        payload_sha256="cd",
        file_mtime_ns=9,
        compile_seconds=1.25,
        jax_version="0.12.0",
        components={"computation": "ab"},
        hits=4,
        last_hit_ns=30,
        compiled_ns=10,
        sealed_ns=40,
        pinned=True,
        extra={"host": "node7"},
    )


def test_the_later_fact_counts_whatever_the_order_of_writing(tmp_path: Path, store: Store) -> None:
    append(store, [Event(KEY, UNPIN, 30), Event(KEY, COMPILE, 30, {"compile_seconds": 2.0})])
    append(store, [Event(KEY, PIN, 20), Event(KEY, COMPILE, 20, {"compile_seconds": 1.0})])
    record = load(tmp_path).record(KEY)
    assert record is not None and not record.pinned and record.compile_seconds == 2.0


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"key":"k"}',
        b'{"key":"k","kind":"hit","at_ns":-1}',
        b'{"key":"k","kind":"hit","at_ns":1e3}',
        b'{"key":7,"kind":"hit","at_ns":1}',
        b"[" * 100_000,
        b'{"key":"k","kind":"hit","at_ns":' + b"9" * 5000 + b"}",
    ],
)
def test_a_damaged_line_is_skipped_and_counted(tmp_path: Path, store: Store, line: bytes) -> None:
    append(store, [Event(KEY, HIT, 1)])
    with segments(tmp_path)[0].open("ab") as file:
        file.write(line + b"\n" + json.dumps(Event(KEY, HIT, 2).to_json()).encode())
    ledger = load(tmp_path)
    assert ledger.damaged == 1
    assert (record := ledger.record(KEY)) and record.hits == 2


def test_facts_of_the_wrong_type_are_left_out(tmp_path: Path, store: Store) -> None:
    facts = {
        "compile_seconds": "fast",
        "components": {"a": 1},
        "payload_sha256": 7,
        "file_mtime_ns": True,
        "hits": 9,
        "pinned": True,
        "count": 5,
    }
    append(store, [Event(KEY, COMPILE, 1, facts)])
    assert load(tmp_path).record(KEY) == LedgerRecord(KEY, compiled_ns=1)


def test_a_damaged_segment_hides_no_other(tmp_path: Path, store: Store) -> None:
    append(store, [Event(KEY, HIT, 1)])
    directory = tmp_path / LEDGER_DIR
    (directory / "0-big.jsonl").write_bytes(b"")
    with (directory / "0-big.jsonl").open("r+b") as file:
        file.truncate(MAX_SEGMENT_BYTES + 1)
    (directory / "0-link.jsonl").symlink_to("/etc/passwd")
    (directory / "0-dir.jsonl").mkdir()
    ledger = load(tmp_path)
    assert ledger.damaged == 1 and list(ledger) == [KEY]


def test_a_cache_that_cannot_be_written_learns_nothing(tmp_path: Path, store: Store) -> None:
    (tmp_path / ".jaxcache").write_text("a file where the directory should be")
    assert not append(store, [Event(KEY, HIT, 1)])
    assert not load(tmp_path)
    compact(store)


def test_a_random_name_is_not_taken_for_a_compaction(store: Store) -> None:
    """One name in sixteen has a random part that begins as those of compactions do."""
    for number in range(300):
        assert append(store, [Event("k", HIT, number)])
    assert len(Ledger.load(store).segments) <= COMPACT_ABOVE + 1
    assert sum(is_compacted(name) for name in Ledger.load(store).segments) == 1
    assert not is_compacted(f"{7:020d}-c{'0' * 15}.jsonl")


def test_merging_with_a_compacted_copy_counts_no_hit_twice(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    left.mkdir()
    for at in range(5):
        append(open_store(str(left)), [Event(KEY, HIT, at)])
    shutil.copytree(left, right)
    compact(open_store(str(left)))
    assert len(segments(left)) == 1
    append(open_store(str(right)), [Event(KEY, HIT, 9)])
    for segment in segments(right):
        shutil.copy2(segment, left / LEDGER_DIR)
    assert (record := load(left).record(KEY)) and record.hits == 6
    compact(open_store(str(left)))
    assert (record := load(left).record(KEY)) and record.hits == 6
    assert len(segments(left)) == 1


def test_of_two_compactions_the_one_that_holds_both_counts(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    left.mkdir()
    append(open_store(str(left)), [Event(KEY, HIT, 1)])
    append(open_store(str(left)), [Event(KEY, HIT, 2)])
    shutil.copytree(left, right)
    compact(open_store(str(left)))
    append(open_store(str(right)), [Event(KEY, HIT, 3)])
    compact(open_store(str(right)))
    for segment in segments(right):
        shutil.copy2(segment, left / LEDGER_DIR)
    assert len(segments(left)) == 2
    assert (record := load(left).record(KEY)) and record.hits == 3


def test_compacting_drops_what_is_not_to_be_kept(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(store, [Event(KEY, HIT, 2), Event("other", HIT, 1)])
    monkeypatch.setattr("jaxcache.core.ledger.MIN_ABSENT", 1)
    compact(store)
    assert list(load(tmp_path)) == [KEY]
    monkeypatch.setattr("jaxcache.core.ledger.MIN_ABSENT", 0)
    compact(store)
    assert list(load(tmp_path)) == []


def test_compacting_while_the_clock_is_behind_loses_nothing(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.time_ns()
    append(store, [Event(KEY, COMPILE, now_ns, {"compile_seconds": 3})])
    append(store, [Event(KEY, HIT, now_ns)])
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    compact(store)
    assert len(segments(tmp_path)) == 1 and KEY not in load(tmp_path)
    monkeypatch.undo()
    record = load(tmp_path).record(KEY)
    assert record and (record.hits, record.compile_seconds) == (1, 3)


def test_a_compaction_that_lost_a_part_counts_for_nothing(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxcache.core.ledger._SEGMENT_BYTES", 100)
    append(store, [Event(f"k{i}", HIT, i) for i in range(6)])
    before = {s.name: s.read_bytes() for s in segments(tmp_path)}
    compact(store)
    after = segments(tmp_path)
    assert len(after) > 1 and not {s.name for s in after} & before.keys()
    after[-1].unlink()  # as if interrupted before its last part, and before any deletion
    for name, data in before.items():
        (tmp_path / LEDGER_DIR / name).write_bytes(data)
    ledger = load(tmp_path)
    assert {k: r.hits for k in ledger if (r := ledger.record(k))} == {f"k{i}": 1 for i in range(6)}


events = st.builds(
    Event,
    st.sampled_from(["a", "b", "c\udc80"]),
    st.sampled_from([PAYLOAD, COMPILE, HIT, SEALED, PIN, UNPIN, "later-invention"]),
    st.integers(0, 50),
    st.dictionaries(
        st.sampled_from(["compile_seconds", "payload_sha256", "count", "note"]),
        st.one_of(st.integers(0, 9), st.text(max_size=3)),
        max_size=2,
    ),
)


@settings(max_examples=50)
@given(st.lists(st.lists(events, max_size=4), max_size=5))
def test_compacting_changes_no_record(tmp_path_factory: pytest.TempPathFactory, runs) -> None:
    cache = tmp_path_factory.mktemp("ledger")
    store = open_store(str(cache))
    seen = set()
    for run in runs:  # one event per key, kind and instant: equal times have no order to keep
        fresh = [e for e in run if (e.key, e.at_ns) not in seen]
        seen |= {(e.key, e.at_ns) for e in fresh}
        append(store, {(e.key, e.at_ns): e for e in fresh}.values())
    before = load(cache)
    compact(store)
    after = load(cache)
    assert {k: before.record(k) for k in before} == {k: after.record(k) for k in after}
    assert len(segments(cache)) <= 1


FACTS = {"jax_version": "0.10.2", "script": "train.py", "components": {"computation": "a" * 64}}


def ledger_bytes(cache: Path) -> int:
    return sum(s.stat().st_size for s in segments(cache))


def test_a_ledger_stays_small_however_often_entries_are_hit(tmp_path: Path, store: Store) -> None:
    keys = [f"jit_f{i}-{i:064x}" for i in range(5)]
    largest = 0
    for run in range(300):
        assert append(store, [Event(key, HIT, run, FACTS) for key in keys])
        largest = max(largest, ledger_bytes(tmp_path))
    assert len(segments(tmp_path)) <= 70 and largest < 200_000
    record = load(tmp_path).record(keys[0])
    assert record and (record.hits, record.last_hit_ns) == (300, 299)
    assert record.components == FACTS["components"] and record.script == "train.py"


def test_facts_of_keys_that_are_gone_do_not_pile_up_but_pins_stay(
    tmp_path: Path, store: Store
) -> None:
    append(store, [Event("pinned", PIN, 0), Event(KEY, HIT, 0)])
    (tmp_path / f"{KEY}-cache").touch()
    append(store, [Event(f"jit_g-{i:064x}", COMPILE, i + 1, FACTS) for i in range(5000)])
    ledger = load(tmp_path)
    assert len(ledger) < 1100 and {"pinned", KEY, f"jit_g-{4999:064x}"} <= set(ledger)


def test_digests_of_files_in_directories_stay_while_the_files_are_there(
    tmp_path: Path, store: Store
) -> None:
    kernel, gone = (f"ab/c{letter * 51}.main.so" for letter in "xy")
    store.write(kernel, [b"code"])
    digest = {"payload_sha256": "0" * 64}
    append(store, [Event(key, PAYLOAD, 0, digest) for key in (kernel, gone, "../outside")])
    append(store, [Event(f"ab/c{i:051d}.main.so", PAYLOAD, i + 1, digest) for i in range(5000)])
    compact(store)
    ledger = load(tmp_path)
    assert kernel in ledger and gone not in ledger and "../outside" not in ledger


def test_many_facts_of_one_key_are_read_in_linear_time(tmp_path: Path) -> None:
    def seconds(name: str, count: int) -> float:
        directory = tmp_path / name
        (directory / LEDGER_DIR).mkdir(parents=True)
        lines = (f'{{"key":"k","kind":"x","at_ns":{i},"f{i}":1}}\n' for i in range(count))
        (directory / LEDGER_DIR / f"1-{'0' * 16}.jsonl").write_text("".join(lines))
        start = time.process_time()
        assert len(load(directory)) == 1
        return time.process_time() - start

    def least(count: int) -> float:
        return min(seconds(f"{count}-{attempt}", count) for attempt in range(3))

    assert least(40_000) < 25 * least(4_000)  # a hundred times, if it grew with the square


APPENDING = """
import sys
from jaxcache.cache.ledger.record import HIT, Event
from jaxcache.core.names import LEDGER_DIR
from jaxcache.cache.ledger.write import append
from jaxcache.store import open_store
store = open_store(sys.argv[1])
for i in range(int(sys.argv[3])):
    assert append(store, [Event(f"k{j}", HIT, i) for j in (0, sys.argv[2])])
    print(i, flush=True)
"""


def appending(cache: Path, name: str, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", APPENDING, str(cache), name, str(count)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=clean_environment(cache)
    )


def is_pinned_for_live(cache: Path) -> bool:
    known = read_ledger(str(cache)).get("mine")
    return known is not None and known.pinned


@pytest.mark.parametrize("is_pinned", [lambda cache: "mine" in load(cache), is_pinned_for_live])
def test_several_writers_lose_and_double_nothing(
    tmp_path: Path, store: Store, is_pinned: Callable[[Path], bool]
) -> None:
    append(store, [Event("mine", PIN, 0)])
    writers = [appending(tmp_path, str(n), 120) for n in range(1, 4)]
    while any(w.poll() is None for w in writers):
        assert is_pinned(tmp_path), "a reader missed a pin while others compacted"
    assert [w.communicate() and w.returncode for w in writers] == [0, 0, 0]
    ledger = load(tmp_path)
    assert {k: r.hits for k in ledger if (r := ledger.record(k))} == {
        "k0": 360,
        "k1": 120,
        "k2": 120,
        "k3": 120,
        "mine": 0,
    }
    assert len(segments(tmp_path)) < 100


def test_killed_writers_leave_all_that_was_appended(tmp_path: Path, store: Store) -> None:
    told = 0
    for number in range(6):
        writer = appending(tmp_path, "1", 10_000)
        assert writer.stdout
        lines = iter(writer.stdout.readline, "")
        told += sum(1 for _ in itertools.islice(lines, 15 + 7 * number))
        writer.kill()
        told += len(list(lines))
        writer.communicate()
        record = load(tmp_path).record("k0")
        assert record and told <= record.hits <= told + number + 1
    append(store, [Event("k0", HIT, 1)])
    compact(store)
    assert len(list((tmp_path / LEDGER_DIR).iterdir())) == 1, "a killed writer left something"


@pytest.mark.parametrize(("now_ns", "counts"), [(-5, 1), (10**21, 0)])
def test_what_is_learnt_while_the_clock_is_wrong_can_be_read(
    tmp_path: Path, store: Store, now_ns: int, counts: int
) -> None:
    """A date in the future counts for nothing."""
    append(store, [Event("key", HIT, now_ns)])
    assert (len(load(tmp_path)), load(tmp_path).damaged) == (counts, 0)


def test_the_later_of_pin_and_unpin_counts_though_the_clock_went_back(capped_cache: Path) -> None:
    store, layout = open_store(str(capped_cache)), load_layout("jax")
    (key,) = pin(store, layout, ["jit_mlp"], now_ns=10**18)
    unpin(store, [key], now_ns=10**17)
    record = load(capped_cache).record(key)
    assert record and not record.pinned
    pin(store, layout, [key], now_ns=10**16)
    record = load(capped_cache).record(key)
    assert record and record.pinned
