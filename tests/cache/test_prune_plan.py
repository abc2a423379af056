"""Planning a prune, over caches of every shape."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from made_caches import HOUR, JAX, NOW, NS, cache_of, gone, key, plan, put, size_of

from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.write import append
from jaxcache.cache.listing import ReadCache
from jaxcache.cache.prune.execute import remove
from jaxcache.cache.prune.plan import plan_cache_prune
from jaxcache.cache.prune.removable import lost_compile_seconds
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.options import PruneOptions
from jaxcache.store.local import LocalStore

ENTRY = st.fixed_dictionaries(
    {
        "size": st.integers(30, 3000),
        "used_ago": st.floats(0, 60 * 24 * HOUR),
        "atime": st.booleans(),
        "seconds": st.integers(0, 300),
    }
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "max_size_bytes": st.integers(0, 40_000),
        "max_entries": st.integers(0, 20),
        "unused_for_seconds": st.floats(0, 60 * 24 * HOUR),
        "older_than_seconds": st.floats(0, 60 * 24 * HOUR),
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
        entries_after = made.kept
        if (limit := options.get("max_entries")) is not None:
            assert entries_after <= limit or "max-entries" in made.unmet
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
        assert done.removed == made.removals
        assert done.spared == ()
        lock = cache / ".lockfile"
        assert size_of(cache) - (lock.stat().st_size if lock.exists() else 0) == (
            made.size_bytes_after
        )
        names_left = {p.name for p in cache.iterdir()}
        for removal in made.removals:
            assert removal.file.name.rpartition("/")[2] not in names_left
            if removal.key and removal.atime:
                assert f"{removal.key}-atime" not in names_left

        # A bound that is met takes nothing.
        again = plan(
            cache,
            keep,
            max_size_bytes=size_of(cache),
            max_entries=made.kept,
            policy=options.get("policy", "cost"),
        )
        assert again.removals == ()
        assert again.kept == made.kept


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
    append(LocalStore(tmp_path), [Event(key(1), "hit", NOW - 10 * 24 * HOUR * NS, {"count": 9})])
    assert set(gone(plan(tmp_path, policy="cost", max_entries=1))) == {key(2)}


def test_a_damaged_entry_goes_first_under_cost(tmp_path: Path) -> None:
    put(tmp_path, key(1), used_ago=HOUR, seconds=9)
    put(tmp_path, key(2), used_ago=HOUR, seconds=0)
    path = tmp_path / f"{key(1)}-cache"
    path.write_bytes(b"not a frame at all, but younger and dearer")
    os.utime(path, ns=(NOW - HOUR * NS,) * 2)
    assert set(gone(plan(tmp_path, policy="cost", max_entries=1))) == {key(1)}


def test_age_rules(tmp_path: Path) -> None:
    day = 24 * HOUR
    put(tmp_path, key(1), used_ago=1 * day, made_ago=40 * day)
    put(tmp_path, key(2), used_ago=10 * day, made_ago=10 * day)
    put(tmp_path, key(3), used_ago=HOUR, made_ago=HOUR)
    assert gone(plan(tmp_path, unused_for_seconds=7 * day)) == {key(2): "unused-for"}
    assert gone(plan(tmp_path, older_than_seconds=30 * day)) == {key(1): "older-than"}
    assert gone(plan(tmp_path, used_since_ns=NOW - 2 * day * NS)) == {key(2): "used-since"}
    assert gone(plan(tmp_path, unused_for_seconds=7 * day, older_than_seconds=30 * day)) == {
        key(1): "older-than",
        key(2): "unused-for",
    }


def test_keep_last_keeps_the_last_used_of_each_module(tmp_path: Path) -> None:
    for number in range(6):
        put(tmp_path, key(number, f"jit_{number % 2}"), used_ago=(number + 1) * HOUR)
    made = plan(tmp_path, keep_last=2)
    assert gone(made) == {key(4, "jit_0"): "keep-last", key(5, "jit_1"): "keep-last"}


@pytest.mark.parametrize("rule", [{"used_since_ns": NOW - HOUR * NS}, {"unused_for_seconds": HOUR}])
def test_rules_about_use_are_refused_where_nothing_records_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: dict[str, float]
) -> None:
    for number in (1, 2):
        put(tmp_path, key(number), made_ago=99 * HOUR, atime=False)
    assert set(gone(plan(tmp_path, **rule))) == {key(1), key(2)}
    monkeypatch.setattr(LocalStore, "keeps_atime", False)
    with pytest.raises(JaxcacheError) as caught:
        plan(tmp_path, **rule)
    assert caught.value.code == "no-record-of-use"
    append(LocalStore(tmp_path), [Event(key(1), "hit", NOW - 60 * NS)])
    made = plan(tmp_path, **rule)
    assert set(gone(made)) == {key(2)}
    assert made.evidence == {"mtime": 1}
    assert "1 of 1 entry chosen by the date of writing: no use of them is recorded" in str(made)


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_an_unmeasured_compile_does_not_outlive_measured_ones_in_use(
    tmp_path: Path, policy: str
) -> None:
    """Whole seconds in the header say nothing of compiles that took a fraction of one."""
    for number in range(9):
        put(tmp_path, key(number), used_ago=60, made_ago=9 * HOUR)
    for number in range(9, 25):
        put(tmp_path, key(number), used_ago=20 * 24 * HOUR)
    seconds = [{"compile_seconds": 0.03 * (n + 1)} for n in range(9)]
    append(LocalStore(tmp_path), [Event(key(n), "compile", 1, seconds[n]) for n in range(9)])
    made = plan(tmp_path, policy=policy, max_entries=16)
    assert set(gone(made)) <= {key(n) for n in range(9, 25)}
    assert len(gone(made)) == 9


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
        aged = plan(cache, side_caches=True, unused_for_seconds=7 * 24 * HOUR)
        assert gone(aged) == {
            f"jit_old-{'e' * 64}": "unused-for",
            "xla_gpu_kernel_cache_file": "unused-for",
            "xla_gpu_per_fusion_autotune_cache_dir/a.textproto": "unused-for",
        }
        sound = plan(cache, max_size_bytes=7 * 500 - 1)
        assert gone(sound) == {".jaxcache/quarantine/b-cache": "max-size"}
        full = plan(cache, max_size_bytes=0)
        assert full.size_bytes_before == 7 * 500
        assert full.unmet == ("max-size",)
        with pytest.raises(UsageError, match="side-caches"):
            plan(cache, side_caches=True)


def test_young_files_are_left_alone(tmp_path: Path) -> None:
    put(tmp_path, key(1), made_ago=5)
    (tmp_path / "_temp_young").write_bytes(b"")
    os.utime(tmp_path / "_temp_young", ns=(NOW, NOW))
    made = plan(tmp_path, max_size_bytes=0, orphans=True)
    assert gone(made) == {}
    assert made.unmet == ("max-size",)
    assert made.protected == 1
    assert set(gone(plan(tmp_path, max_entries=0, grace_seconds=1))) == {key(1)}


def test_side_caches_are_dated_by_themselves(tmp_path: Path) -> None:
    put(tmp_path, key(1), made_ago=60, atime=False)
    (tmp_path / "xla_gpu_kernel_cache_file").write_bytes(b"kernels")
    os.utime(tmp_path / "xla_gpu_kernel_cache_file", ns=(NOW - 9 * HOUR * NS,) * 2)
    made = plan(tmp_path, used_since_ns=NOW - HOUR * NS, side_caches=True)
    assert gone(made) == {"xla_gpu_kernel_cache_file": "used-since"}


@pytest.mark.parametrize("rule", ["unused_for_seconds", "older_than_seconds"])
def test_an_entry_goes_at_just_that_age(tmp_path: Path, rule: str) -> None:
    put(tmp_path, key(1), used_ago=HOUR)
    assert len(plan(tmp_path, **{rule: HOUR}).removals) == 1
    assert plan(tmp_path, **{rule: HOUR + 1}).removals == ()


def test_what_was_used_at_that_very_time_stays(tmp_path: Path) -> None:
    put(tmp_path, key(1), used_ago=HOUR)
    put(tmp_path, key(2), used_ago=2 * HOUR)
    assert gone(plan(tmp_path, used_since_ns=NOW - HOUR * NS)) == {key(2): "used-since"}


def test_grace_is_a_minute_on_either_side_of_now(tmp_path: Path) -> None:
    for number, age in enumerate((59, 60, -59, -60)):
        put(tmp_path, key(number), made_ago=age, used_ago=0)
    assert set(gone(plan(tmp_path, max_entries=0))) == {key(1), key(3)}


def test_a_file_from_before_1970_is_old_and_nothing_else(tmp_path: Path) -> None:
    put(tmp_path, key(1), made_ago=NOW / NS + 5, atime=False)
    assert (tmp_path / f"{key(1)}-cache").stat().st_mtime_ns == -5 * NS
    assert plan(tmp_path, max_entries=1).removals == ()
    assert gone(plan(tmp_path, older_than_seconds=HOUR)) == {key(1): "older-than"}


# What goes to meet a limit on the size or on the number of entries, and what stays.


def test_lru_takes_the_least_recently_used_and_no_more_than_needed(tmp_path: Path) -> None:
    for number in range(10):
        put(tmp_path, key(number), size=1000, used_ago=(number + 1) * HOUR)
    entry = (tmp_path / f"{key(0)}-cache").stat().st_size + 8
    made = plan(tmp_path, policy="lru", max_size_bytes=7 * entry + 1)
    assert set(gone(made)) == {key(7), key(8), key(9)}
    assert set(gone(made).values()) == {"max-size"}


def test_a_bound_on_entries_counts_entries_that_stay_and_nothing_else(tmp_path: Path) -> None:
    with cache_of([{"used_ago": hours * HOUR} for hours in (1, 2, 300)], True, tmp_path) as cache:
        made = plan(
            cache,
            max_entries=2,
            side_caches=True,
            orphans=True,
            quarantine=True,
            legacy=True,
            unused_for_seconds=200 * HOUR,
            policy="lru",
        )
        reasons = [r.reason for r in made.removals if r.kind == "entry"]
    assert made.kept == 2
    assert "max-entries" not in reasons


def test_a_bound_missed_by_one_byte_takes_one_entry(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path, key(number))
    for policy in ("lru", "cost"):
        assert (
            len(plan(tmp_path, policy=policy, max_size_bytes=size_of(tmp_path) - 1).removals) == 1
        )
        assert not plan(tmp_path, policy=policy, max_size_bytes=size_of(tmp_path)).removals


def test_young_entries_of_the_choice_stay_and_nothing_goes_in_their_place(tmp_path: Path) -> None:
    """The bound is met once they are old enough; until then no dearer entry goes for them."""
    for number in range(4):
        put(tmp_path, key(number), size=1000, used_ago=HOUR, seconds=500)
    for number in range(4, 8):
        put(tmp_path, key(number), size=1000, used_ago=0, made_ago=0, seconds=0)
    size = size_of(tmp_path)
    made = plan(tmp_path, max_size_bytes=size // 2)
    assert gone(made) == {}
    assert (made.unmet, dict(made.held)) == (("max-size",), {"young": 4})
    later = plan(tmp_path, max_size_bytes=size // 2, grace_seconds=0)
    assert set(gone(later)) == {key(n) for n in range(4, 8)}
    assert {(r.key, r.reason) for r in made.later} == {(r.key, r.reason) for r in later.removals}
    assert later.unmet == ()


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
        assert made.size_bytes_after <= 2000
        assert made.unmet == ()


def test_lru_opens_no_entry_where_many_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        put(tmp_path, key(number))
    opened: list[str] = []
    read_many = LocalStore.read_many
    monkeypatch.setattr(
        LocalStore, "read_many", lambda s, n, **o: opened.extend(n) or read_many(s, n, **o)
    )
    options = PruneOptions(max_entries=1, policy="lru", grace_seconds=0)
    priced = plan_cache_prune(ReadCache(LocalStore(tmp_path), JAX, NOW), options)
    assert sum(name.endswith("-cache") for name in opened) == 3
    monkeypatch.setattr("jaxcache.cache.prune.plan._PRICED_AT_ONCE", 2)
    opened.clear()
    unpriced = plan_cache_prune(ReadCache(LocalStore(tmp_path), JAX, NOW), options)
    assert [r.file for r in unpriced.removals] == [r.file for r in priced.removals]
    assert not [name for name in opened if name.endswith("-cache")]
