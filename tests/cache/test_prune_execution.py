"""Carrying out a prune beside programs that use the cache."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from failing import let_fail
from made_caches import HOUR, NOW, NS, gone, key, plan, put

from jaxcache.cache.prune.execute import remove
from jaxcache.errors import LockedError
from jaxcache.model import reporting_to
from jaxcache.store.local import LocalStore


def test_a_temporary_file_goes_when_its_writer_is_gone(tmp_path: Path) -> None:
    dead, alive = tmp_path / ".jaxcache-tmp-1-dead", tmp_path / ".jaxcache-tmp-2-alive"
    for path in (dead, alive):
        path.write_bytes(b"half")
        os.utime(path, ns=(NOW - HOUR * NS,) * 2)
    made = plan(tmp_path, orphans=True)
    assert set(gone(made)) == {dead.name, alive.name}
    with alive.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = remove(LocalStore(tmp_path), made.removals)
    assert [r.file.name for r in done.removed] == [dead.name]
    assert [(s.removal.file.name, s.why) for s in done.spared] == [(alive.name, "used")]
    assert alive.exists()
    assert not dead.exists()


def test_an_entry_used_or_rewritten_meanwhile_stays(tmp_path: Path) -> None:
    for number in range(4):
        put(tmp_path, key(number), atime=number < 2)
    made = plan(tmp_path, max_entries=0)
    (tmp_path / f"{key(0)}-atime").write_bytes(time.time_ns().to_bytes(8, "little"))
    (tmp_path / f"{key(1)}-cache").write_bytes(b"another program wrote it anew")
    (tmp_path / f"{key(2)}-cache").unlink()
    done = remove(LocalStore(tmp_path), made.removals)
    assert {s.removal.key: s.why for s in done.spared} == {
        key(0): "used",
        key(1): "changed",
        key(2): "gone",
    }
    assert [r.key for r in done.removed] == [key(3)]
    assert not done.failed
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {
        f"{key(0)}-cache",
        f"{key(0)}-atime",
        f"{key(1)}-cache",
        f"{key(1)}-atime",
    }


class SlowStore(LocalStore):
    """Every delete takes 10 ms of a clock that this store owns."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.now = 0.0
        self.held: list[float] = []
        self.pauses: list[float] = []
        self.deleted: list[str] = []

    def delete(self, name: str, **rest: object) -> bool:
        self.now += 0.010
        self.deleted.append(name)
        return super().delete(name, **rest)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def lock(self, *, timeout_seconds: float) -> Iterator[None]:
        started = self.now
        with super().lock(timeout_seconds=timeout_seconds):
            yield
        self.held.append(self.now - started)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowStore:
    """A slow store by whose clock the lock is let go."""
    store = SlowStore(tmp_path)
    clock = SimpleNamespace(perf_counter=lambda: store.now, sleep=store.pauses.append)
    monkeypatch.setattr("jaxcache.cache.files.time", clock)
    return store


def test_the_lock_is_let_go_after_each_short_hold(tmp_path: Path, slow: SlowStore) -> None:
    for number in range(20):
        put(tmp_path, key(number))
    made = plan(tmp_path, max_entries=0)
    done = remove(slow, made.removals)
    assert len(done.removed) == 20
    assert len(slow.held) == 10
    assert max(slow.held) == pytest.approx(done.longest_hold_seconds)
    assert done.longest_hold_seconds <= 0.05
    assert len(slow.pauses) == 9


def test_what_cannot_be_removed_is_told_and_the_rest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_fail(monkeypatch, "delete", f"{key(1)}-cache")
    for number in range(3):
        put(tmp_path, key(number))
    planned = plan(tmp_path, max_entries=0)
    done = remove(LocalStore(tmp_path), planned.removals)
    assert done.failed
    assert planned.summary((), "removed").startswith("nothing was removed: 3 entries, ")
    assert [(s.removal.key, s.why, s.detail) for s in done.spared] == [
        (key(1), "failed", "input/output error")
    ]
    assert {p.name for p in tmp_path.iterdir()} == {
        f"{key(1)}-cache",
        f"{key(1)}-atime",
    }


def test_the_entry_goes_before_its_date(tmp_path: Path) -> None:
    put(tmp_path, key(1))
    store = SlowStore(tmp_path)
    remove(store, plan(tmp_path, max_entries=0).removals)
    assert store.deleted == [f"{key(1)}-cache", f"{key(1)}-atime"]


def test_a_lock_that_somebody_holds_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxcache.cache.files.LOCK_TIMEOUT_SECONDS", 0.05)
    put(tmp_path, key(1))
    made = plan(tmp_path, max_entries=0)
    with LocalStore(tmp_path).lock(timeout_seconds=1), pytest.raises(LockedError):
        remove(LocalStore(tmp_path), made.removals)
    assert (tmp_path / f"{key(1)}-cache").exists()


def test_progress_is_told_after_each_hold_of_the_lock(tmp_path: Path, slow: SlowStore) -> None:
    for number in range(12):
        put(tmp_path, key(number))
    seen: list[tuple[int, int]] = []
    made = plan(tmp_path, max_entries=0)
    with reporting_to(lambda *told: seen.append(told)):
        remove(slow, made.removals)
    assert len(seen) == len(slow.held) > 2
    assert seen[-1] == (12, 12) and [done for done, _ in seen] == sorted(d for d, _ in seen)


def test_a_date_that_appears_is_a_use_and_one_that_goes_is_none(tmp_path: Path) -> None:
    put(tmp_path, key(1), atime=False)
    put(tmp_path, key(2))
    made = plan(tmp_path, max_entries=0)
    (tmp_path / f"{key(1)}-atime").write_bytes(time.time_ns().to_bytes(8, "little"))
    (tmp_path / f"{key(2)}-atime").unlink()
    done = remove(LocalStore(tmp_path), made.removals)
    assert [(s.removal.key, s.why) for s in done.spared] == [(key(1), "used")]
    assert [r.key for r in done.removed] == [key(2)]
