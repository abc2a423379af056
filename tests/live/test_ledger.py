"""The ledger of a live directory stays small, and nothing in it is lost."""

import json
import os
from pathlib import Path

import pytest

from jaxcache.cache.ledger.record import COMPILE, HIT, PIN, Event
from jaxcache.cache.ledger.segments import Ledger, count_uses
from jaxcache.cache.ledger.write import append, compact
from jaxcache.core.ledger import COMPACT_ABOVE
from jaxcache.live.uses import UseLog, read_ledger
from jaxcache.live.uses import compact as compact_live
from jaxcache.store import open_store

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
def test_totals_survive_the_compaction_as_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
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


def test_a_copy_of_a_replaced_segment_counts_once(tmp_path: Path) -> None:
    run_processes(tmp_path, 40)
    copies = {p.name: p.read_bytes() for p in segments(tmp_path)}
    run_processes(tmp_path, COMPACT_ABOVE)
    hits = count_uses(Ledger.load(open_store(str(tmp_path)))).hits
    known = read_ledger(str(tmp_path))
    for name, data in copies.items():
        (tmp_path / ".jaxcache" / "ledger" / name).write_bytes(data)
    assert count_uses(Ledger.load(open_store(str(tmp_path)))).hits == hits
    assert read_ledger(str(tmp_path)) == known


def test_what_others_wrote_is_left_to_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_processes(tmp_path, COMPACT_ABOVE)
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    run_processes(tmp_path, 2)
    assert len(segments(tmp_path)) == COMPACT_ABOVE + 2
    assert all(json.loads(p.read_text().splitlines()[0])["key"] for p in segments(tmp_path))
