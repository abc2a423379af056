"""What the documentation claims of the cost policy, on the traces of the benchmark."""

import pytest

from benchmarks.eviction import CAPS, shares
from benchmarks.traces import TRACES

#: The documented margin by which cost may save less than lru on any trace.
MARGIN = 0.01


@pytest.mark.parametrize(
    "fraction", [0.10, *(pytest.param(f, marks=pytest.mark.slow) for f in CAPS)]
)
def test_cost_closes_half_of_the_gap_and_never_falls_behind(fraction: float) -> None:
    closed = []
    for make in TRACES:
        saved = shares(make(11), fraction)
        assert saved["lru"] <= saved["clairvoyant"] <= 1
        for policy in ("cost", "cost, dates only"):
            assert saved[policy] >= saved["lru"] - MARGIN, make.__name__
        closed.append((saved["cost"] - saved["lru"]) / (saved["clairvoyant"] - saved["lru"]))
    assert sum(closed) / len(closed) >= 0.5
