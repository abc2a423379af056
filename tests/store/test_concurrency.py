"""Requests ahead of their use: in order, and no more at once than the budget takes."""

import threading
import time

import pytest

from jaxcache.store.concurrency import map_ordered


def test_no_more_is_under_way_than_the_budget_takes() -> None:
    lock, held, most = threading.Lock(), 0, 0

    def work(cost: int) -> int:
        nonlocal held, most
        with lock:
            held += cost
            most = max(most, held)
        time.sleep(0.001)
        with lock:
            held -= cost
        return cost

    costs = [1 + n % 3 for n in range(200)] + [50] + [1] * 20
    found = list(map_ordered(work, costs, workers=8, cost=lambda c: c, budget=6, wait=True))
    assert found == costs
    assert most == 50  # alone


@pytest.mark.parametrize("workers", [1, 2, 32])
def test_requests_ahead_keep_the_order(workers: int) -> None:
    asked = iter(range(50))
    assert list(map_ordered(str, asked, workers=workers)) == [str(n) for n in range(50)]
    assert list(map_ordered(str, (), workers=workers)) == []
    assert list(map_ordered(str, (1,), workers=workers)) == ["1"]
