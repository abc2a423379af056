"""The ledger: append, fold, merge, compact; damage is skipped; whose records count."""

import itertools
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import GiveAway, RunCli, clean_environment
from hypothesis import given, settings
from hypothesis import strategies as st
from ways import told

from jaxcache.cache.ledger.record import (
    COMPILE,
    HIT,
    PAYLOAD,
    PIN,
    REMOVED,
    SEALED,
    UNPIN,
    Event,
    LedgerRecord,
    digest_facts,
)
from jaxcache.cache.ledger.segments import MAX_SEGMENT_BYTES, Ledger
from jaxcache.cache.ledger.write import append, compact, pin, pinned_keys, unpin
from jaxcache.core.ledger import COMPACT_ABOVE
from jaxcache.core.names import LEDGER_DIR
from jaxcache.layouts import load_layout
from jaxcache.live.uses import read_digests, read_ledger
from jaxcache.store import open_store
from jaxcache.store.base import Store
from jaxcache.store.local import LocalStore

KEY = "jit_step-" + "a" * 64


def segments(cache: Path) -> list[Path]:
    return sorted((cache / LEDGER_DIR).glob("*"))


def load(cache: Path) -> Ledger:
    return Ledger.load(open_store(str(cache)))


def hits(cache: Path) -> dict[str, int]:
    ledger = load(cache)
    return {key: record.hits for key in ledger if (record := ledger.record(key))}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def test_events_fold_into_a_record(tmp_path: Path, store: Store) -> None:
    facts = {"compile_seconds": 1.25, "components": {"computation": "ab"}, "host": "node7"}
    digest = {"payload_sha256": "cd", "file_mtime_ns": 9}
    assert append(store, [Event(KEY, COMPILE, 10, facts), Event(KEY, PAYLOAD, 11, digest)])
    assert append(store, [Event(KEY, HIT, 20), Event(KEY, HIT, 30, {"count": 3})])
    assert append(store, [Event(KEY, SEALED, 40), Event(KEY, PIN, 41)])
    assert load(tmp_path).record(KEY) == LedgerRecord(
        key=KEY,
        payload_sha256="cd",
        file_mtime_ns=9,
        compile_seconds=1.25,
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
    assert load(tmp_path).record(KEY) == LedgerRecord(KEY, compile_seconds=2.0, compiled_ns=30)


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
    assert (load(tmp_path).damaged, hits(tmp_path)) == (1, {KEY: 2})


def test_facts_of_the_wrong_type_are_left_out(tmp_path: Path, store: Store) -> None:
    facts = {"compile_seconds": "fast", "components": {"a": 1}, "file_mtime_ns": True, "hits": 9}
    append(store, [Event(KEY, COMPILE, 1, facts)])
    assert load(tmp_path).record(KEY) == LedgerRecord(KEY, compiled_ns=1)


def test_a_damaged_segment_hides_no_other(tmp_path: Path, store: Store) -> None:
    append(store, [Event(KEY, HIT, 1)])
    directory = tmp_path / LEDGER_DIR
    with (directory / "0-big.jsonl").open("wb") as file:
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


@pytest.mark.parametrize("both", [False, True])
def test_merging_with_a_compacted_copy_counts_no_hit_twice(tmp_path: Path, both: bool) -> None:
    """And of two compactions, the one that holds both counts."""
    left, right = tmp_path / "left", tmp_path / "right"
    left.mkdir()
    for at in range(5):
        append(open_store(str(left)), [Event(KEY, HIT, at)])
    shutil.copytree(left, right)
    compact(open_store(str(left)))
    append(open_store(str(right)), [Event(KEY, HIT, 9)])
    if both:
        compact(open_store(str(right)))
    for segment in segments(right):
        shutil.copy2(segment, left / LEDGER_DIR)
    assert hits(left) == {KEY: 6}
    compact(open_store(str(left)))
    assert (hits(left), len(segments(left))) == ({KEY: 6}, 1)


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
    times = {"compiled_ns": now_ns, "last_hit_ns": now_ns}
    assert load(tmp_path).record(KEY) == LedgerRecord(KEY, compile_seconds=3, hits=1, **times)


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
    assert hits(tmp_path) == {f"k{i}": 1 for i in range(6)}


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


@settings(max_examples=30)
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


def test_facts_of_keys_that_are_gone_do_not_pile_up_but_those_of_pins_and_files_stay(
    tmp_path: Path, store: Store
) -> None:
    kernel, gone = (f"ab/c{letter * 51}.main.so" for letter in "xy")
    store.write(kernel, [b"code"])
    (tmp_path / f"{KEY}-cache").touch()
    digest = {"payload_sha256": "0" * 64}
    append(store, [Event(key, PAYLOAD, 0, digest) for key in (kernel, gone, "../outside")])
    append(store, [Event("pinned", PIN, 0), Event(KEY, HIT, 0)])
    append(store, [Event(f"jit_g-{i:064x}", COMPILE, i + 1, FACTS) for i in range(5000)])
    kept = {*load(tmp_path)}
    assert len(kept) < 1100 and {"pinned", KEY, kernel, f"jit_g-{4999:064x}"} <= kept
    assert kept.isdisjoint({gone, "../outside"})


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
    env = clean_environment(cache)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def test_several_writers_lose_and_double_nothing(tmp_path: Path, store: Store) -> None:
    append(store, [Event("mine", PIN, 0)])
    writers = [appending(tmp_path, str(n), 120) for n in range(1, 4)]
    while any(w.poll() is None for w in writers):
        assert "mine" in load(tmp_path), "a reader missed a pin while others compacted"
        assert read_ledger(str(tmp_path))["mine"].pinned
    assert [w.communicate() and w.returncode for w in writers] == [0, 0, 0]
    assert hits(tmp_path) == {"k0": 360, "k1": 120, "k2": 120, "k3": 120, "mine": 0}
    assert len(segments(tmp_path)) < 100


def test_killed_writers_leave_all_that_was_appended(tmp_path: Path, store: Store) -> None:
    printed = 0
    for number in range(3):
        writer = appending(tmp_path, "1", 10_000)
        assert writer.stdout
        lines = iter(writer.stdout.readline, "")
        printed += sum(1 for _ in itertools.islice(lines, 15 + 20 * number))
        writer.kill()
        printed += len(list(lines))
        writer.communicate()
        assert printed <= hits(tmp_path)["k0"] <= printed + number + 1
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
    assert pinned_keys(load(capped_cache)) == []
    pin(store, layout, [key], now_ns=10**16)
    assert pinned_keys(load(capped_cache)) == [key]


# Whose records accuse an entry: only those that this user made of this very file.


LATE_NS = 2**62


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    """A cache of entries without a checksum."""
    return Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "cache"))


def entries(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.glob("*-cache")}


def forge(of: Path, into: Path, *, at_ns: int = 5) -> None:
    """Write a ledger that calls every entry of a cache another one, and pins them."""
    store, target = LocalStore(of), LocalStore(into)
    for name in entries(of):
        key = name.removesuffix("-cache")
        info = store.info(name)
        append(target, [Event(key, PAYLOAD, at_ns, digest_facts("ab" * 32, info))])
        append(target, [Event(key, PIN, at_ns)])


def put_away(run_cli: RunCli, cache: Path) -> list[str]:
    """The entries that ``verify --fix`` moves to quarantine."""
    before = entries(cache)
    told(run_cli, "verify", "--fix", "-C", cache, "--grace", "0s")
    return sorted(before.keys() - entries(cache).keys())


@pytest.mark.parametrize(("own", "at_ns"), [(True, LATE_NS), (False, 5)])
def test_a_pulled_ledger_neither_accuses_nor_pins(
    run_cli: RunCli, cache: Path, tmp_path: Path, give_away: GiveAway, own: bool, at_ns: int
) -> None:
    source = Path(shutil.copytree(cache, tmp_path / "source"))
    forge(cache, source, at_ns=at_ns)
    if not own:
        give_away(source / ".jaxcache" / "ledger")
    assert told(run_cli, "pull", source, "-C", cache)["carried"] == []
    assert put_away(run_cli, cache) == []
    assert pinned_keys(load(cache)) == []


def test_a_segment_of_another_user_accuses_nothing(
    run_cli: RunCli, cache: Path, give_away: GiveAway
) -> None:
    """Nor does what is compacted with it, nor in the live layer."""
    forge(cache, cache)
    assert len(read_digests(str(cache))) == 7
    give_away(cache / LEDGER_DIR)
    assert read_digests(str(cache)) == {}
    for _ in range(2):
        assert put_away(run_cli, cache) == []
        for number in range(COMPACT_ABOVE + 6):
            append(LocalStore(cache), [Event("k", HIT, number)])
    assert len(segments(cache)) < COMPACT_ABOVE


def test_a_foreign_segment_does_not_bind_an_own_digest_to_another_file(
    run_cli: RunCli, cache: Path, give_away: GiveAway
) -> None:
    store = LocalStore(cache)
    path = next(cache.glob("jit_mlp-*-cache"))
    key = path.name.removesuffix("-cache")
    facts = digest_facts("ab" * 32, store.info(path.name))
    append(store, [Event(key, PAYLOAD, 5, {"payload_sha256": facts.pop("payload_sha256")})])
    before = set(segments(cache))
    append(store, [Event(key, PAYLOAD, 6, facts)])
    assert put_away(run_cli, cache) == []
    for segment in set(segments(cache)) - before:
        give_away(segment)
    assert put_away(run_cli, cache) == []


def test_a_ledger_that_was_copied_accuses_nothing(
    run_cli: RunCli, cache: Path, tmp_path: Path
) -> None:
    """A copy has other inodes."""
    forge(cache, cache)
    assert put_away(run_cli, Path(shutil.copytree(cache, tmp_path / "other"))) == []


def test_a_right_checksum_outweighs_a_record(run_cli: RunCli, cache: Path) -> None:
    assert run_cli("seal", "-C", cache).returncode == 0
    forge(cache, cache)
    assert put_away(run_cli, cache) == []


@pytest.mark.parametrize(
    "command", ["rm jit_mlp", "prune --filter module=jit_mlp --older-than 1s --grace 0s", "by hand"]
)
def test_an_entry_that_was_compiled_again_is_not_held_to_an_older_record(
    run_cli: RunCli, cache: Path, command: str
) -> None:
    """The same key and size, with other bytes: as from another script or machine."""
    path = next(cache.glob("jit_mlp-*-cache"))
    data = path.read_bytes()
    key = path.name.removesuffix("-cache")
    store = LocalStore(cache)
    append(store, [Event(key, PAYLOAD, 5, digest_facts("ab" * 32, store.info(path.name)))])
    if command == "by hand":
        path.unlink()
    else:
        assert run_cli(*command.split(), "--yes", "-C", cache).returncode == 0
    assert not path.exists()
    path.write_bytes(data)
    assert put_away(run_cli, cache) == []


def test_an_imported_record_is_marked(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    key = next(cache.glob("jit_mlp-*-cache")).name.removesuffix("-cache")
    append(LocalStore(cache), [Event(key, "compile", 5, {"compile_seconds": 1.5})])
    target = tmp_path / "target"
    assert run_cli("pull", cache, "-C", target).returncode == 0
    record = load(target).record(key)
    assert record and (record.compile_seconds, record.extra["imported"]) == (1.5, True)


def test_a_hit_of_the_future_hides_no_other_from_the_live_layer(cache: Path) -> None:
    append(LocalStore(cache), [Event("k", HIT, 5), Event("k", HIT, LATE_NS)])
    append(LocalStore(cache), [Event("k", PIN, LATE_NS)])
    uses = read_ledger(str(cache))["k"]
    assert (uses.last_use_ns, uses.hits, uses.pinned) == (5, 1, True)


@pytest.mark.parametrize("command", ["pull", "ci restore"])
@pytest.mark.parametrize("record", ["none", "hit", "removed"])
def test_an_arrival_is_a_use_where_no_hit_came_along(
    run_cli: RunCli, cache: Path, tmp_path: Path, command: str, record: str
) -> None:
    key = next(cache.glob("jit_mlp-*-cache")).name.removesuffix("-cache")
    target = tmp_path / "target"
    target.mkdir()
    if record == "hit":
        append(LocalStore(cache), [Event(key, HIT, 5)])
    elif record == "removed":  # the hit is of an entry that is gone
        append(LocalStore(target), [Event(key, HIT, 5), Event(key, REMOVED, 6)])
    started_ns = time.time_ns()
    if command == "pull":
        done = run_cli("pull", cache, "-C", target)
    else:
        assert run_cli("export", "-C", cache, "x.jxb").returncode == 0
        done = run_cli("ci", "restore", "x.jxb", "--everything", "-C", target)
    assert done.returncode == 0, done.stderr
    used_ns = read_ledger(str(target))[key].last_use_ns or 0
    assert used_ns == 5 if record == "hit" else used_ns >= started_ns
    (row,) = told(run_cli, "ls", key, "-C", target)["entries"]
    assert row["last_used_from"] == ("mtime" if record == "hit" else "arrival")
