"""What waits for its upload to a tier: markers, replacements, a full queue, and what is left."""

import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcache.core.names import spool_name
from jaxcache.core.threads import Background
from jaxcache.live import uploads
from jaxcache.live.tier import Refusals, Tier
from jaxcache.live.uploads import Uploads
from live.test_tier import layer_with

KEYS = [f"jit_f{number}-{number:064x}" for number in range(3)]
ENTRY = zlib.compress(b"\0\0\0\1executable")
Start = Callable[..., Uploads]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A local directory with entries."""
    (tmp_path / "cache").mkdir()
    for key in KEYS:
        (tmp_path / "cache" / f"{key}-cache").write_bytes(ENTRY)
    return tmp_path / "cache"


@pytest.fixture
def spool(cache: Path, tmp_path: Path) -> Path:
    """Where the markers of the tier are."""
    return cache / ".jaxcache" / "live" / "spool" / spool_name(str(tmp_path / "tier"))


@pytest.fixture
def start(cache: Path, tmp_path: Path) -> Iterator[Start]:
    """Start the uploads of a process; those before it are closed."""
    started = ExitStack()

    def start(*, queue: int = 9, refused: str = "", address: str = "") -> Uploads:
        started.close()
        layer = layer_with(timeout=30.0, queue=queue)
        layer.trouble = layer.said.append
        layer.background = Background("test", layer.trouble)
        tier = Tier(address or str(tmp_path / "tier"), layer)
        refusals = Refusals()
        if refused:
            refusals.add(tier.url, refused, "damaged")
        directory: Any = SimpleNamespace(root=str(cache), path=lambda key: f"{cache}/{key}-cache")
        one = Uploads(directory, [tier], layer, refusals, None)
        layer.background.finish(60)
        started.callback(lambda: one.close(time.monotonic()))
        return one

    with started:
        yield start


def sent(tmp_path: Path) -> list[str]:
    """The entries in the tier."""
    return sorted(path.name.removesuffix("-cache") for path in (tmp_path / "tier").glob("*-cache"))


@pytest.mark.parametrize("has_threads", [True, False])
def test_an_entry_is_uploaded_and_then_who_waits_for_that_is_called(
    start: Start,
    spool: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_threads: bool,
) -> None:
    """From Python 3.12 on no thread starts at the end of a process."""
    monkeypatch.setattr(uploads, "_RESUME_SECONDS", 0.05)
    if not has_threads:
        monkeypatch.setattr(uploads, "start_thread", lambda *_: None)
    one = start()
    calls: list[str] = []
    one.call_after(KEYS[0], lambda: calls.append("at once"))
    one.mark(KEYS[0], replacing=False)
    assert one.pending() == {KEYS[0]}
    with one._lock:  # nothing can be over meanwhile
        one.add(KEYS[0])
        one.call_after(KEYS[0], lambda: time.sleep(0.3) or calls.append("up"))
        assert calls == ["at once"]
    one.close(time.monotonic() + 60)
    assert calls == ["at once", "up"]
    assert sent(tmp_path) == KEYS[:1]
    assert (one.pending(), os.listdir(spool)) == (set(), [])
    assert one._counters.snapshot() == {"uploaded": 1, "uploaded_bytes": len(ENTRY)}
    for thread in one._uploaders:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("by", ["", "mark", "refusal"])
def test_only_what_is_to_be_replaced_is(start: Start, tmp_path: Path, by: str) -> None:
    (tmp_path / "tier").mkdir()
    there = tmp_path / "tier" / f"{KEYS[0]}-cache"
    there.write_bytes(b"another")
    one = start(refused=KEYS[0] if by == "refusal" else "")
    one.mark(KEYS[0], replacing=by == "mark")
    one.add(KEYS[0])
    one.close(time.monotonic() + 60)
    assert there.read_bytes() == (ENTRY if by else b"another")


def test_the_next_process_uploads_what_a_full_queue_left(
    start: Start, spool: Path, tmp_path: Path
) -> None:
    (tmp_path / "tier").write_text("no directory yet")
    one = start(queue=1)
    for key in KEYS:
        one.mark(key, replacing=False)
        one.add(key)
    one.close(time.monotonic() + 60)
    assert one.pending() == {*KEYS}
    (tmp_path / "tier").unlink()
    start().close(time.monotonic() + 60)
    assert (sent(tmp_path), os.listdir(spool)) == (KEYS, [])


def test_markers_of_entries_that_are_gone_are_removed_when_they_are_old(
    start: Start, cache: Path, spool: Path, tmp_path: Path
) -> None:
    """A young one may be of an entry that is about to be written; other files are not markers."""
    spool.mkdir(parents=True)
    (spool / KEYS[2]).write_bytes(b"another")
    for key in KEYS:
        (cache / f"{key}-cache").unlink()
        (spool / key).touch()
        if key != KEYS[1]:
            os.utime(spool / key, (0, 0))
    start()
    assert sorted(os.listdir(spool)) == KEYS[1:]


def test_a_damaged_entry_is_not_sent_and_a_tier_that_is_only_read_gets_nothing(
    start: Start, cache: Path, spool: Path, tmp_path: Path
) -> None:
    (cache / f"{KEYS[0]}-cache").write_bytes(ENTRY[:-1])
    one = start()
    one.mark(KEYS[0], replacing=False)
    one.add(KEYS[0])
    one.close(time.monotonic() + 60)
    assert (sent(tmp_path), os.listdir(spool)) == ([], [])
    assert one._counters.snapshot() == {"rotten": 1}
    reading = start(address=f"{tmp_path / 'tier'}:ro")
    reading.mark(KEYS[1], replacing=False)
    assert (reading.pending(), os.listdir(spool)) == (set(), [])
