"""The bound of a directory: what goes, what stays, and plain JAX beside it."""

import fcntl
import json
import os
import random
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from acting import act, acts_on
from conftest import RunCli

from jaxcache.cache.ledger.record import COMPILE, HIT, PIN, Event
from jaxcache.cache.ledger.write import append
from jaxcache.core.atomic import open_directory
from jaxcache.live.evictor import Evictor
from jaxcache.live.process import Counters
from jaxcache.live.settings import resolve
from jaxcache.store import open_store


def fill(root: Path, number: int, *, stamped: bool = False) -> list[str]:
    """Make entries of 100 bytes, the first the longest unused; their keys."""
    root.mkdir(exist_ok=True)
    now = time.time()
    keys = [f"jit_m{n}-{n:064x}" for n in range(number)]
    for age, key in enumerate(reversed(keys)):
        path = root / f"{key}-cache"
        path.write_bytes(os.urandom(100))
        used = now - 100 * (age + 1)
        os.utime(path, (used, used))
        if stamped:
            (root / f"{key}-atime").write_bytes(int(used * 1e9).to_bytes(8, "little"))
            os.utime(root / f"{key}-atime", (used, used))
    return keys


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache away from the user's settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "c"


@pytest.fixture
def keys(root: Path) -> list[str]:
    """The keys of twenty entries."""
    return fill(root, 20)


def sweep(root: Path, **given: Any) -> Counters:
    """Sweep with these settings."""
    counters = Counters()
    settings = resolve(given)
    evictor = Evictor(root.__fspath__(), settings, counters, print)
    evictor.stamped = (root / ".lockfile").exists()
    evictor.evict()
    return counters


def test_a_sweep_is_due_over_a_bound_after_many_writes_and_after_a_minute(
    root: Path, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evictor = Evictor(str(root), resolve({"max_size": 10_000}), Counters(), print)
    assert evictor.active
    assert evictor.wrote(0)  # the first: nobody has counted what is here
    evictor.evict()
    size_bytes = 100 * len(keys)
    assert [evictor.wrote(10_000 - size_bytes), evictor.wrote(1)] == [False, True]
    evictor.evict()
    assert [evictor.wrote(0) for _ in range(1000)] == [*[False] * 999, True]
    evictor.evict()
    now = time.monotonic()
    for seconds, is_due in ((59, False), (61, True)):
        monkeypatch.setattr(time, "monotonic", lambda at=now + seconds: at)
        assert evictor.wrote(0) is is_due


@pytest.mark.parametrize(
    ("given", "after_a_death", "otherwise"),
    [
        ({}, False, False),
        ({"max_entries": 9}, True, False),
        ({"max_size": 9}, True, False),
        ({"unused_for": 9.0}, True, True),
    ],
)
def test_a_sweep_is_due_at_the_opening_after_a_death_and_for_disuse(
    root: Path, given: dict[str, Any], after_a_death: bool, otherwise: bool
) -> None:
    evictor = Evictor(str(root), resolve(given), Counters(), print)
    assert evictor.is_due_at_opening(died=True) is after_a_death
    assert evictor.is_due_at_opening(died=False) is otherwise


@acts_on("nothing while it is held; jaxcache doctor -C … names its holder")
def test_the_lock_of_a_capped_jax_is_waited_for_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    keys = fill(cache, 2, stamped=True)
    said: list[str] = []
    evictor = Evictor(str(cache), resolve({"max_entries": 1}), Counters(), said.append)
    evictor._wait_seconds = 0.01
    with open_directory(str(cache)) as directory, (cache / ".lockfile").open("w") as file:
        with evictor.lock(directory) as is_held, evictor.lock(directory) as again:
            assert is_held and again  # a signal handler of this thread
        fcntl.flock(file, fcntl.LOCK_EX)
        for _ in range(2):
            evictor.evict()
        assert left(cache, keys) == [0, 1]
        assert evictor._wait_seconds == 0
        (line,) = said
        told = act(line, tmp_path, until=" names", code=1)
        assert "lock-held" in told.stdout, told
    evictor.evict()
    assert left(cache, keys) == []


def record(root: Path, events: Iterable[Event]) -> None:
    append(open_store(str(root)), events)


def compiled(key: str, seconds: float) -> Event:
    return Event(key, COMPILE, time.time_ns(), {"compile_seconds": seconds})


def left(root: Path, keys: list[str]) -> list[int]:
    """Which entries are there."""
    return [n for n, key in enumerate(keys) if (root / f"{key}-cache").exists()]


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_a_sweep_takes_the_longest_unused_down_to_nine_tenths(
    root: Path, keys: list[str], policy: str
) -> None:
    """To read the seconds in an entry, which the ledger does not know, is no use of it."""
    assert sweep(root, max_size=2000, max_entries=20, policy=policy)["evicted"] == 0
    counters = sweep(root, max_size=1000, policy=policy)
    assert left(root, keys) == list(range(11, 20))
    assert (counters["evicted"], counters["evicted_bytes"]) == (11, 1100)


def test_entries_and_disuse_are_bounds_too(root: Path, keys: list[str]) -> None:
    sweep(root, unused_for=1550.0)
    assert left(root, keys) == list(range(5, 20))
    sweep(root, max_entries=10)
    assert left(root, keys) == list(range(11, 20))


def test_what_is_used_during_a_sweep_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = fill(root, 4)
    look = Evictor._look
    used = keys[1:3]

    def look_and_use(evictor: Evictor) -> Any:
        found = look(evictor)
        (root / f"{keys[0]}-cache").unlink(missing_ok=True)
        while used:
            path = root / f"{used.pop()}-cache"
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        return found

    monkeypatch.setattr(Evictor, "_look", look_and_use)
    counters = sweep(root, max_entries=2)
    assert len(left(root, keys)) == 1
    assert left(root, keys) != [3]
    assert counters["evicted"] == 2


def test_cost_keeps_what_took_long_to_compile_and_pins_stay(root: Path, keys: list[str]) -> None:
    events = [compiled(key, 500.0 if n in (0, 3) else 0.1) for n, key in enumerate(keys)]
    record(root, [*events, Event(keys[1], PIN, 5)])
    sweep(root, max_size=1000, policy="cost")
    assert left(root, keys) == [0, 1, 3, *range(14, 20)]


def test_where_entries_are_bounded_their_size_does_not_count(root: Path, keys: list[str]) -> None:
    (root / f"{keys[0]}-cache").write_bytes(bytes(99_000))
    record(root, (compiled(key, 0.1 if n else 500.0) for n, key in enumerate(keys)))
    sweep(root, max_entries=10, policy="cost")
    assert 0 in left(root, keys)
    sweep(root, max_size=5000, policy="cost")
    assert left(root, keys) and 0 not in left(root, keys)


def test_what_was_moved_here_and_is_in_use_stays(root: Path, keys: list[str]) -> None:
    """A mover keeps the dates of the files; only the ledger has the uses of today."""
    for key in keys:
        os.utime(root / f"{key}-cache", (1e9, 1e9))
    record(root, (Event(key, HIT, time.time_ns()) for key in keys[:8]))
    counters = sweep(root, unused_for=1550.0)
    assert left(root, keys) == list(range(8))
    assert counters["evicted"] == 12


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_a_backup_does_not_look_like_use(root: Path, keys: list[str], policy: str) -> None:
    """It reads all files at once; what the ledger has seen in use stays."""
    record(root, (Event(key, HIT, time.time_ns()) for key in keys[:5]))
    backup_ns = time.time_ns() - 3600 * 10**9
    for number, key in enumerate(keys):
        path = root / f"{key}-cache"
        written_ns = backup_ns - (40 * 86_400 + number) * 10**9
        os.utime(path, ns=(backup_ns + number * 100_000, written_ns))
    sweep(root, max_entries=10, policy=policy)
    assert len(left(root, keys)) == 9
    assert set(range(5)) <= set(left(root, keys))
    sweep(root, unused_for=86_400.0, policy=policy)
    assert left(root, keys) == list(range(5))


def test_an_absurd_count_in_the_ledger_does_not_stop_the_sweep(root: Path, keys: list[str]) -> None:
    record(root, [Event(keys[0], HIT, 5, {"count": 10**400})])
    sweep(root, max_size=1000, policy="cost")
    assert len(left(root, keys)) == 9


def test_cost_takes_what_prune_takes(root: Path, run_cli: RunCli) -> None:
    choice = random.Random(4)
    keys = fill(root, 40)
    for path in root.glob("*-cache"):  # whole entries
        written = path.stat().st_mtime_ns
        content = choice.randbytes(choice.randrange(100, 900))
        path.write_bytes(zlib.compress(b"\0\0\0\7" + content))
        later = choice.choice([0, 1500 * 10**9])  # every second was read again, and nobody counted
        os.utime(path, ns=(written, written - later))
    hits = {key: {"count": choice.randrange(1, 9)} for key in keys[::3]}
    record(root, (Event(key, HIT, time.time_ns(), facts) for key, facts in hits.items()))
    # Of the others the entry has the seconds.
    record(root, (compiled(key, choice.uniform(0.1, 60)) for key in keys[::2]))
    size_bytes = sum(p.stat().st_size for p in root.glob("*-cache"))
    bounds = ("--max-size", size_bytes * 45 // 100, "--policy", "cost", "--grace", "0s")
    done = run_cli("prune", "-C", root, *bounds, "-n", "--json")
    planned = {r["key"] for r in json.loads(done.stdout)["removed"]}
    sweep(root, max_size=size_bytes // 2, policy="cost")
    stayed = {keys[n] for n in left(root, keys)}
    assert planned == set(keys) - stayed
    assert 5 < len(planned) < 35


def test_stamps_go_with_their_entries_under_the_lock_of_jax(root: Path) -> None:
    keys = fill(root, 20, stamped=True)
    (root / ".lockfile").touch()
    for number, suffix in ((0, "atime"), (15, "cache")):  # the stamp has the date of the use
        os.utime(root / f"{keys[number]}-{suffix}", (time.time(), time.time() - 50 * (9 - number)))
    sweep(root, max_size=1000)
    stayed = left(root, keys)
    assert stayed == [0, *range(12, 20)]
    assert {p.name for p in root.glob("*-atime")} == {f"{keys[n]}-atime" for n in stayed}


def test_left_temporary_files_of_old_go(root: Path) -> None:
    fill(root, 1)
    for name, age in (("old", 700), ("young", 5)):
        path = root / f".jaxcache-tmp-{name}"
        path.touch()
        os.utime(path, (time.time() - age, time.time() - age))
    sweep(root, max_size=1000)
    assert [p.name for p in root.glob(".jaxcache-tmp-*")] == [".jaxcache-tmp-young"]
