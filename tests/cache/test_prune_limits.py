"""What goes to meet a limit on the size or on the number of entries, and what stays."""

from pathlib import Path

import pytest
from made_caches import HOUR, JAX, NOW, cache_of, gone, key, plan, put, size_of

from jaxcache.cache.listing import ReadCache
from jaxcache.cache.prune.plan import plan_cache_prune
from jaxcache.errors import JaxcacheError
from jaxcache.options import PruneOptions
from jaxcache.store.local import LocalStore


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


def test_room_that_a_large_entry_leaves_is_used(tmp_path: Path) -> None:
    """The small ones are worth less per byte, and still fit once the large one is gone."""
    put(tmp_path, key(1), size=300, seconds=0)
    put(tmp_path, key(2), size=9000, seconds=100)
    put(tmp_path, key(3), size=300, seconds=100)
    assert set(gone(plan(tmp_path, policy="cost", max_size_bytes=1000))) == {key(2)}


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
