"""Planning a prune, over caches of every shape, and carrying it out while others use the cache."""

import fcntl
import itertools
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from failing import let_fail
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from made_caches import HOUR, NOW, NS, cache_of, gone, key, plan, put, size_of

from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.write import append
from jaxcache.cache.prune.execute import remove
from jaxcache.cache.prune.removable import lost_compile_seconds
from jaxcache.errors import JaxcacheError, LockedError, UsageError
from jaxcache.model import reporting_to
from jaxcache.store.local import LocalStore

DAY = 24 * HOUR
ENTRY = st.fixed_dictionaries(
    {
        "size": st.integers(30, 3000),
        "used_ago": st.floats(0, 60 * DAY),
        "atime": st.booleans(),
        "seconds": st.integers(0, 300),
    }
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "max_size_bytes": st.integers(0, 40_000),
        "max_entries": st.integers(0, 20),
        "unused_for_seconds": st.floats(0, 60 * DAY),
        "older_than_seconds": st.floats(0, 60 * DAY),
        "keep_last": st.integers(1, 5),
        "policy": st.sampled_from(["lru", "cost"]),
        "orphans": st.booleans(),
        "legacy": st.booleans(),
        "side_caches": st.booleans(),
        "quarantine": st.booleans(),
    },
)


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(
    entries=st.lists(ENTRY, max_size=24),
    options=OPTIONS,
    litter=st.booleans(),
    kept=st.sets(st.integers(0, 23), max_size=4),
    pinned=st.sets(st.integers(0, 23), max_size=4),
)
@example(  # a young entry that an age rule selects counts as removed for the size limit
    entries=[{"size": 30, "used_ago": 0.0, "atime": False, "seconds": 0}] * 4,
    options={"max_size_bytes": 2000, "unused_for_seconds": 0.0, "orphans": True},
    litter=True,
    kept=set(),
    pinned=set(),
)
def test_every_plan_holds_its_promises(
    tmp_path_factory: pytest.TempPathFactory,
    entries: list[dict],
    options: dict,
    litter: bool,
    kept: set[int],
    pinned: set[int],
) -> None:
    with cache_of(entries, litter, tmp_path_factory.getbasetemp()) as cache:
        store = LocalStore(cache)
        names = [key(n, f"jit_f{n % 4}") for n in range(len(entries))]
        append(store, [Event(names[n], "pin", NOW) for n in pinned if n < len(names)])
        keep = tuple(names[n] for n in kept if n < len(names))
        before = sorted(p for p in cache.rglob("*") if p.is_file())
        try:
            made = plan(cache, keep, **options)
        except UsageError as error:
            assert error.code == "no-bound"
            return
        except JaxcacheError as error:
            assert error.code == "bound-out-of-reach"
            assert litter or pinned
            return

        # A plan changes nothing and comes out the same again.
        assert sorted(p for p in cache.rglob("*") if p.is_file()) == before
        assert plan(cache, keep, **options) == made
        assert made.size_bytes_before == size_of(cache)

        # What is pinned or kept stays; strays are nobody's to remove.
        saved = {*keep, *(names[n] for n in pinned if n < len(names))}
        assert not saved & {r.key for r in made.removals}
        assert not any(r.file.name == "notes.txt" for r in made.removals)

        # Bounds hold, unless the plan says that they cannot.
        if (limit := options.get("max_entries")) is not None:
            assert made.kept <= limit or "max-entries" in made.unmet
        if (limit := options.get("max_size_bytes")) is not None:
            assert made.size_bytes_after <= limit or "max-size" in made.unmet
        if made.unmet:
            young = {n for n, e in zip(names, entries, strict=True) if e["used_ago"] < 60}
            old_name_stays = litter and "max-size" not in made.unmet and made.kept > len(saved)
            assert young - saved or made.kept == len(saved) + old_name_stays
        # Youth protects an entry of the choice and costs no other.
        ageless = gone(plan(cache, keep, **{**options, "grace_seconds": 0}))
        assert gone(made).keys() <= ageless.keys()

        # Execution does what the dry run said, to the byte.
        done = remove(store, made.removals)
        assert (done.removed, done.spared) == (made.removals, ())
        assert size_of(cache) == made.size_bytes_after
        names_left = {p.name for p in cache.iterdir()}
        for removal in made.removals:
            assert removal.file.name.rpartition("/")[2] not in names_left
            if removal.key and removal.atime:
                assert f"{removal.key}-atime" not in names_left

        # A bound that is met takes nothing.
        bounds = {"max_size_bytes": size_of(cache), "max_entries": made.kept}
        again = plan(cache, keep, **bounds, policy=options.get("policy", "cost"))
        assert (again.removals, again.kept) == ((), made.kept)


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_every_plan_tells_what_is_lost_and_the_ledger_knows_better(
    tmp_path: Path, policy: str
) -> None:
    for number, seconds in enumerate((7, 0, 5)):
        put(tmp_path, key(number), seconds=seconds)
    append(LocalStore(tmp_path), [Event(key(1), "compile", NOW, {"compile_seconds": 0.75})])
    removals = plan(tmp_path, policy=policy, max_entries=0).removals
    assert {r.key: r.compile_seconds for r in removals} == {key(0): 7, key(1): 0.75, key(2): 5}
    assert lost_compile_seconds(removals) == 12.75


def test_hits_in_the_ledger_save_an_entry(tmp_path: Path) -> None:
    for number in (1, 2):
        put(tmp_path, key(number), used_ago=9 * HOUR, atime=False, seconds=3)
    append(LocalStore(tmp_path), [Event(key(1), "hit", NOW - 10 * DAY * NS, {"count": 9})])
    assert set(gone(plan(tmp_path, policy="cost", max_entries=1))) == {key(2)}


def test_a_damaged_entry_goes_first_under_cost(tmp_path: Path) -> None:
    put(tmp_path, key(1), used_ago=HOUR, seconds=9)
    put(tmp_path, key(2), used_ago=HOUR, seconds=0)
    path = tmp_path / f"{key(1)}-cache"
    path.write_bytes(b"not a frame at all, but younger and dearer")
    os.utime(path, ns=(NOW - HOUR * NS,) * 2)
    assert set(gone(plan(tmp_path, policy="cost", max_entries=1))) == {key(1)}


@pytest.mark.parametrize(
    ("rules", "reasons"),
    [
        ({"unused_for_seconds": 10 * DAY}, {2: "unused-for"}),
        ({"unused_for_seconds": 10 * DAY + 1}, {}),
        ({"older_than_seconds": 40 * DAY}, {1: "older-than"}),
        ({"older_than_seconds": 40 * DAY + 1}, {}),
        ({"used_since_ns": NOW - 10 * DAY * NS + 1}, {2: "used-since"}),
        ({"used_since_ns": NOW - 10 * DAY * NS}, {}),
        (
            {"unused_for_seconds": 7 * DAY, "older_than_seconds": 30 * DAY},
            {1: "older-than", 2: "unused-for"},
        ),
    ],
)
def test_a_rule_about_age_takes_what_is_just_so_old(
    tmp_path: Path, rules: dict[str, float], reasons: dict[int, str]
) -> None:
    put(tmp_path, key(1), used_ago=1 * DAY, made_ago=40 * DAY)
    put(tmp_path, key(2), used_ago=10 * DAY, made_ago=10 * DAY)
    put(tmp_path, key(3))
    assert gone(plan(tmp_path, **rules)) == {key(n): reason for n, reason in reasons.items()}


def test_keep_last_keeps_the_last_used_of_each_module(tmp_path: Path) -> None:
    for number in range(6):
        put(tmp_path, key(number, f"jit_{number % 2}"), used_ago=(number + 1) * HOUR)
    removed = gone(plan(tmp_path, keep_last=2))
    assert removed == {key(4, "jit_0"): "keep-last", key(5, "jit_1"): "keep-last"}


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_an_unmeasured_compile_does_not_outlive_measured_ones_in_use(
    tmp_path: Path, policy: str
) -> None:
    """Whole seconds in the header say nothing of compiles that took a fraction of one."""
    for number in range(9):
        put(tmp_path, key(number), used_ago=60, made_ago=9 * HOUR)
    for number in range(9, 25):
        put(tmp_path, key(number), used_ago=20 * DAY)
    seconds = [{"compile_seconds": 0.03 * (n + 1)} for n in range(9)]
    append(LocalStore(tmp_path), [Event(key(n), "compile", 1, seconds[n]) for n in range(9)])
    removed = {*gone(plan(tmp_path, policy=policy, max_entries=16))}
    assert len(removed) == 9 and removed <= {key(n) for n in range(9, 25)}


def test_everything_else_is_counted_and_goes_on_request(tmp_path: Path) -> None:
    with cache_of([], True, tmp_path) as cache:
        assert gone(plan(cache, orphans=True)) == {
            "_temp_jit_x": "temp-file",
            f"{key(999)}-atime": "orphan-atime",
        }
        assert gone(plan(cache, legacy=True)) == {f"jit_old-{'e' * 64}": "legacy"}
        assert gone(plan(cache, quarantine=True)) == {".jaxcache/quarantine/b-cache": "quarantine"}
        both = plan(cache, legacy=True, side_caches=True, older_than_seconds=1e9)
        assert gone(both) == gone(plan(cache, legacy=True))
        aged = plan(cache, side_caches=True, unused_for_seconds=7 * DAY)
        assert gone(aged) == {
            f"jit_old-{'e' * 64}": "unused-for",
            "xla_gpu_kernel_cache_file": "unused-for",
            "xla_gpu_per_fusion_autotune_cache_dir/a.textproto": "unused-for",
        }
        full = plan(cache, max_size_bytes=0)
        assert (full.size_bytes_before, full.unmet) == (7 * 500, ("max-size",))
        with pytest.raises(UsageError, match="side-caches"):
            plan(cache, side_caches=True)


def test_young_files_are_left_alone(tmp_path: Path) -> None:
    """Young is what was made less than a minute before or after now."""
    for number, age in enumerate((59, 60, -59, -60)):
        put(tmp_path, key(number), made_ago=age, used_ago=0)
    (tmp_path / "_temp_young").write_bytes(b"")
    os.utime(tmp_path / "_temp_young", ns=(NOW, NOW))
    made = plan(tmp_path, max_size_bytes=0, orphans=True)
    assert gone(made) == {key(1): "max-size", key(3): "max-size"}
    assert (made.unmet, made.protected) == (("max-size",), 2)
    assert len(gone(plan(tmp_path, max_entries=0, grace_seconds=1))) == 4


# What goes to meet a limit on the size or on the number of entries, and what stays.


@pytest.mark.parametrize(("spare", "taken"), [(0, 3), (-1, 4), (1, 3)])
def test_lru_takes_the_least_recently_used_and_no_more_than_needed(
    tmp_path: Path, spare: int, taken: int
) -> None:
    for number in range(10):
        put(tmp_path, key(number), size=1000, used_ago=(number + 1) * HOUR)
    entry = (tmp_path / f"{key(0)}-cache").stat().st_size + 8
    made = plan(tmp_path, policy="lru", max_size_bytes=7 * entry + spare)
    assert gone(made) == {key(n): "max-size" for n in range(10 - taken, 10)}


def test_young_entries_of_the_choice_stay_and_nothing_goes_in_their_place(tmp_path: Path) -> None:
    """The bound is met once they are old enough; until then no dearer entry goes for them."""
    for number in range(4):
        put(tmp_path, key(number), size=1000, used_ago=HOUR, seconds=500)
    for number in range(4, 8):
        put(tmp_path, key(number), size=1000, used_ago=0, made_ago=0, seconds=0)
    half = size_of(tmp_path) // 2
    made = plan(tmp_path, max_size_bytes=half)
    assert (gone(made), made.unmet, dict(made.held)) == ({}, ("max-size",), {"young": 4})
    later = plan(tmp_path, max_size_bytes=half, grace_seconds=0)
    assert (gone(later), later.unmet) == ({key(n): "max-size" for n in range(4, 8)}, ())
    assert {r.key: r.reason for r in made.later} == gone(later)


def test_a_bound_below_what_may_not_go_empties_nothing(tmp_path: Path) -> None:
    with cache_of([{"size": 400}], True, tmp_path) as cache:
        with pytest.raises(JaxcacheError) as caught:
            plan(cache, max_size_bytes=2000)
        assert caught.value.code == "bound-out-of-reach"
        assert "--side-caches or --orphans would" in (caught.value.hint or "")
        with pytest.raises(JaxcacheError) as caught:
            plan(cache, max_size_bytes=1, side_caches=True, orphans=True)
        assert caught.value.hint == "jaxcache stats lists them"
        made = plan(cache, max_size_bytes=2000, side_caches=True, quarantine=True, orphans=True)
        assert made.size_bytes_after <= 2000 and made.unmet == ()


def test_lru_opens_no_entry_where_many_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        put(tmp_path, key(number))
    opened: list[str] = []
    read_many = LocalStore.read_many
    monkeypatch.setattr(
        LocalStore, "read_many", lambda s, n, **o: opened.extend(n) or read_many(s, n, **o)
    )
    options = {"max_entries": 1, "policy": "lru", "grace_seconds": 0}
    priced = plan(tmp_path, **options)
    assert sum(name.endswith("-cache") for name in opened) == 3
    monkeypatch.setattr("jaxcache.cache.prune.plan._PRICED_AT_ONCE", 2)
    opened.clear()
    assert [*gone(plan(tmp_path, **options))] == [*gone(priced)]
    assert not [name for name in opened if name.endswith("-cache")]


# Carrying it out.


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
    assert (alive.exists(), dead.exists()) == (True, False)


def test_an_entry_used_or_rewritten_meanwhile_stays(tmp_path: Path) -> None:
    for number in range(6):
        put(tmp_path, key(number), atime=number in (0, 1, 4))
    made = plan(tmp_path, max_entries=0)
    for used in (0, 3):
        (tmp_path / f"{key(used)}-atime").write_bytes(time.time_ns().to_bytes(8, "little"))
    (tmp_path / f"{key(1)}-cache").write_bytes(b"another program wrote it anew")
    (tmp_path / f"{key(2)}-cache").unlink()
    (tmp_path / f"{key(4)}-atime").unlink()  # as another prune does, which is no use
    done = remove(LocalStore(tmp_path), made.removals)
    reasons = ["used", "changed", "gone", "used"]
    spared = {spared.removal.key: spared.why for spared in done.spared}
    assert spared == {key(number): why for number, why in enumerate(reasons)}
    assert ({r.key for r in done.removed}, done.failed) == ({key(4), key(5)}, False)
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {f"{key(n)}-{kind}" for n in (0, 1, 3) for kind in ("cache", "atime")}


def test_the_lock_is_let_go_after_each_short_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that gains 9 ms at each look lets two entries go in a hold."""
    deleted: list[str] = []
    seen: list[tuple[int, int]] = []
    delete = LocalStore.delete

    def pause(_: float) -> None:
        with LocalStore(tmp_path).lock(timeout_seconds=1):
            assert seen[-1][0] * 2 == len(deleted)

    monkeypatch.setattr(
        LocalStore, "delete", lambda s, n, **o: deleted.append(n) or delete(s, n, **o)
    )
    clock = SimpleNamespace(perf_counter=itertools.count(step=0.009).__next__, sleep=pause)
    monkeypatch.setattr("jaxcache.cache.files.time", clock)
    for number in range(20):
        put(tmp_path, key(number))
    made = plan(tmp_path, max_entries=0)
    with reporting_to(lambda *told: seen.append(told)):
        done = remove(LocalStore(tmp_path), made.removals)
    assert (len(done.removed), done.longest_hold_seconds) == (20, pytest.approx(0.036))
    assert seen == [(2 * number, 20) for number in range(1, 11)]
    assert deleted[:2] == [f"{made.removals[0].key}-cache", f"{made.removals[0].key}-atime"]


def test_what_cannot_be_removed_is_told_and_the_rest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_fail(monkeypatch, "delete", f"{key(1)}-cache")
    for number in range(3):
        put(tmp_path, key(number))
    planned = plan(tmp_path, max_entries=0)
    done = remove(LocalStore(tmp_path), planned.removals)
    assert planned.summary((), "removed").startswith("nothing was removed: 3 entries, ")
    (spared,) = done.spared
    failed = (done.failed, spared.removal.key, spared.why, spared.detail)
    assert failed == (True, key(1), "failed", "input/output error")
    assert {p.name for p in tmp_path.iterdir()} == {f"{key(1)}-cache", f"{key(1)}-atime"}


def test_a_lock_that_somebody_holds_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxcache.cache.files.LOCK_TIMEOUT_SECONDS", 0.05)
    put(tmp_path, key(1))
    made = plan(tmp_path, max_entries=0)
    with LocalStore(tmp_path).lock(timeout_seconds=1), pytest.raises(LockedError):
        remove(LocalStore(tmp_path), made.removals)
    assert (tmp_path / f"{key(1)}-cache").exists()
