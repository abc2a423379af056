"""Divide a period among phases, so that each instant counts for one phase alone."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from operator import itemgetter

#: The phases of a start. Writing belongs to ``compile``; ``load`` includes the lookup of a miss.
PHASES = ("import", "backend", "trace", "lower", "key", "load", "compile")
#: Spans whose ends are this close touch: clocks and durations are rounded differently.
_TOUCHING_SECONDS = 1e-6


class Timeline:
    """Spans of time without overlaps.

    The span that is added first keeps its instants: what is nested ends first, and so is its own
    phase, and threads that compile at the same time count once.
    """

    def __init__(self, began_at: float = 0.0) -> None:
        self.spans: list[tuple[float, float, str]] = []
        """Start, end and phase of each, in order."""
        self._began_at = began_at

    def add(self, phase: str, start: float, end: float) -> None:
        """Add a span; only the instants that no other span has become its own."""
        start = max(start, self._began_at)
        if end <= start:
            return
        low = bisect_left(self.spans, start - _TOUCHING_SECONDS, key=itemgetter(1))
        high = bisect_right(self.spans, end + _TOUCHING_SECONDS, key=itemgetter(0))
        joined: list[tuple[float, float, str]] = []
        for first, last, name in [*self.spans[low:high], (end, end, phase)]:
            if start < first:
                _join(joined, (start, min(first, end), phase))
            _join(joined, (first, last, name))
            start = max(start, last)
        self.spans[low:high] = joined

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase."""
        sums: defaultdict[str, float] = defaultdict(float)
        for start, end, phase in self.spans:
            sums[phase] += end - start
        return dict(sums)


def _join(spans: list[tuple[float, float, str]], span: tuple[float, float, str]) -> None:
    """Append a span, or lengthen the last one if that touches it and has the same phase."""
    start, end, phase = span
    if spans and spans[-1][2] == phase and start - spans[-1][1] <= _TOUCHING_SECONDS:
        spans[-1] = (spans[-1][0], max(end, spans[-1][1]), phase)
    elif start < end:
        spans.append(span)
