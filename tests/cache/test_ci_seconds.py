"""What a CI job is told of the entries that it got."""

import pytest

from jaxcache.cache.ci.restore import item_seconds
from jaxcache.cache.ledger.record import COMPILE, HIT, Event
from jaxcache.cache.move.plan import Item, ItemFacts

KEY = f"jit_f-{0:064x}"


def item(*told: object) -> Item:
    """An entry whose header says three seconds, and what a ledger said of it, in that order."""
    events = [Event(KEY, COMPILE, at, {"compile_seconds": s}) for at, s in enumerate(told)]
    facts = ItemFacts("0" * 64, 9, "zstd", 3)
    return Item(f"{KEY}-cache", KEY, 9, 0, facts=facts, events=(*events, Event(KEY, HIT, 99)))


def test_seconds_as_measured_count_more_than_the_header() -> None:
    assert item_seconds(item()) == 3.0
    assert item_seconds(item(2.5)) == 2.5
    assert item_seconds(item(2.5, 2.25)) == 2.25


@pytest.mark.parametrize("absurd", [10**400, float("nan"), float("inf"), -1, True, "1", None])
def test_seconds_that_no_compile_took_are_not_added_up(absurd: object) -> None:
    assert item_seconds(item(absurd)) == 3.0
    assert item_seconds(item(2.5, absurd)) == 2.5
