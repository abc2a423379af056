"""What a process notes of its uses: a segment of its directory's ledger, and one for the tiers."""

import json
import time
from pathlib import Path

import pytest

from jaxcache.core import ledger
from jaxcache.core.names import LEDGER_DIR
from jaxcache.live.uses import KnownUses, SharedUses, UseLog, read_digests, read_ledger

KEY = "jit_f-" + "a" * 64
OTHER = "jit_g-" + "b" * 64


def test_a_segment_has_what_was_noted_since_the_last_one(tmp_path: Path) -> None:
    uses = UseLog(str(tmp_path), {"jax_version": "0.10.2"})
    uses.flush()
    assert not (tmp_path / LEDGER_DIR).exists()
    assert not uses.compiled(KEY, 2.5)
    assert not uses.hit(KEY, 0.5)
    uses.missed(OTHER)
    for _ in range(2):
        uses.flush()
    (path,) = (tmp_path / LEDGER_DIR).iterdir()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    names = ("key", "kind", "compile_seconds", "jax_version", "retrieval_seconds")
    assert [[event.get(name) for name in names] for event in events] == [
        [KEY, "compile", 2.5, "0.10.2", None],
        [KEY, "hit", None, None, 0.5],
        [OTHER, "miss", None, None, None],
    ]
    assert not uses.hit(KEY)
    uses.reset()  # as in a forked child
    assert uses.take() == []


def test_a_segment_is_due_after_so_many_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxcache.live.uses._MAX_EVENTS", 2)
    uses = UseLog(str(tmp_path), {})
    assert [uses.hit(KEY), uses.hit(KEY), uses.hit(OTHER)] == [False, False, True]


def write_segment(root: Path, number: int, *lines: dict[str, object]) -> None:
    (root / LEDGER_DIR).mkdir(parents=True, exist_ok=True)
    segment = root / LEDGER_DIR / f"{number:020d}-{'a' * 16}.jsonl"
    segment.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_what_the_ledger_knows_of_an_entry(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"key": KEY, "kind": "compile", "at_ns": 5, "compile_seconds": 2.0},
        {"key": KEY, "kind": "sealed", "at_ns": 7, "compile_seconds": 3.0},
        {"key": KEY, "kind": "hit", "at_ns": 8, "count": 4},
        {"key": KEY, "kind": "arrived", "at_ns": 9},
        {"key": OTHER, "kind": "pin", "at_ns": 1},
        {"key": 3},
    ]
    write_segment(tmp_path, 1, *lines)
    (tmp_path / LEDGER_DIR / "0-directory.jsonl").mkdir()
    assert read_ledger(str(tmp_path)) == {
        KEY: KnownUses(3.0, 4, 9, 5, False),
        OTHER: KnownUses(None, 0, None, None, True),
    }
    assert read_ledger(str(tmp_path / "none")) == {}


@pytest.mark.parametrize(
    ("facts", "is_read"),
    [
        ({}, True),
        ({"at_ns": time.time_ns() + 3600 * 10**9}, True),
        ({"at_ns": 2**62}, False),
        ({"imported": True}, False),
        ({"payload_sha256": 3}, False),
    ],
)
def test_digests_are_those_that_this_machine_has_recorded(
    tmp_path: Path, facts: dict[str, object], is_read: bool
) -> None:
    path = tmp_path / f"{KEY}-cache"
    path.write_bytes(b"entry")
    status = path.stat()
    line = {"key": KEY, "kind": "payload", "at_ns": 5, "payload_sha256": "a" * 64}
    line |= {"file_mtime_ns": status.st_mtime_ns, "file_size_bytes": 5}
    for number, inode in enumerate((status.st_ino, 0), 1):
        write_segment(tmp_path, number, {**line, "file_inode": inode, **facts})
    digests = read_digests(str(tmp_path)).get(KEY, [])
    expected = [(True, "a" * 64), (False, "a" * 64)] if is_read else []
    assert [(digest.is_of(status), digest.sha256) for digest in digests] == expected


def test_a_client_has_one_segment_a_day_for_the_tiers(tmp_path: Path) -> None:
    shared = tmp_path / ".jaxcache" / "live" / "shared"
    shared.mkdir(parents=True)
    for name in (ledger.day_segment(1, "a" * 16), "notes"):
        (shared / name).touch()
    first, second = SharedUses(str(tmp_path)), SharedUses(str(tmp_path))
    assert first.segment() is None
    first.hit(KEY)
    first.hit(KEY)
    written = first.segment()
    second.hit(KEY)
    second.compiled(OTHER, 2.5)
    again = second.segment()
    assert written is not None and again is not None
    assert written[0] == again[0]
    events = ledger.read_lines(*again).events
    counted = [(e.key, e.kind, ledger.count_of(e.facts)) for e in events]
    assert counted == [(KEY, "hit", 3), (OTHER, "compile", 1)]
    assert {path.name for path in shared.iterdir()} == {again[0].rpartition("/")[2], "notes"}
    assert SharedUses(f"{tmp_path}/other")._client != first._client
