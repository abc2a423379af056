"""Traces of cache requests to try eviction policies on: three made up, one recorded."""

import bisect
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
RECORDED = Path(__file__).parent / "traces" / "small_model_day.jsonl"


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their times, and what each key costs."""

    name: str
    requests: tuple[tuple[float, str], ...]
    """(seconds since the start, key)."""
    size_bytes: dict[str, int]
    compile_seconds: dict[str, float]

    @property
    def saveable_seconds(self) -> float:
        """Compile seconds that a cache without bound saves: all requests but the first of a key."""
        total = sum(self.compile_seconds[key] for _, key in self.requests)
        return total - sum(self.compile_seconds.values())


class _Builder:
    def __init__(self, name: str, seed: int) -> None:
        self.name, self.chance = name, random.Random(seed)
        self.size: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.requests: list[tuple[float, str]] = []

    def new_key(self, size: int | None = None, seconds: float | None = None) -> str:
        """A key of log-normal size (median 120 kB) and seconds (median 2 s, more if larger)."""
        key = f"jit_f-{len(self.size):064x}"
        size = size or max(600, int(math.exp(self.chance.gauss(math.log(120e3), 1.3))))
        if seconds is None:
            seconds = math.exp(self.chance.gauss(math.log(2.0), 1.2)) * math.sqrt(size / 120e3)
        self.size[key], self.seconds[key] = size, min(seconds, 600.0)
        return key

    def build(self) -> Trace:
        self.requests.sort(key=lambda r: r[0])
        return Trace(self.name, tuple(self.requests), self.size, self.seconds)


def zipf_with_drift(seed: int, *, requests: int = 6000, live: int = 400) -> Trace:
    """Zipf popularity (exponent 0.9); one request in a hundred makes some program obsolete."""
    b = _Builder("Zipf with drift", seed)
    programs = [b.new_key() for _ in range(live)]
    weights = list(accumulate((rank + 1) ** -0.9 for rank in range(live)))
    now = 0.0
    for _ in range(requests):
        now += b.chance.expovariate(1 / MINUTE)
        if b.chance.random() < 0.01:
            programs[b.chance.randrange(live)] = b.new_key()
        rank = bisect.bisect(weights, b.chance.random() * weights[-1])
        b.requests.append((now, programs[rank]))
    return b.build()


def ci_restarts(seed: int, *, commits: int = 60) -> Trace:
    """Two jobs at every commit, a third every eighth; a commit changes a few of their modules."""
    b = _Builder("CI restarts", seed)
    shared = [b.new_key() for _ in range(60)]
    jobs = [[b.new_key() for _ in range(40)] for _ in range(3)]
    churn = [[0.3 * b.chance.random() ** 2 for _ in job] for job in jobs]
    now = 0.0
    for commit in range(commits):
        now += b.chance.expovariate(1 / (2 * HOUR))
        for number, job in enumerate(jobs):
            if number == 2 and commit % 8:
                continue
            for index, key in enumerate(job):
                if b.chance.random() < churn[number][index]:
                    job[index] = b.new_key(b.size[key], b.seconds[key])
            for key in shared + job:
                now += 0.05 + 0.1 * b.seconds[key]
                b.requests.append((now, key))
    return b.build()


def shape_sweep(seed: int, *, sweeps: int = 30) -> Trace:
    """Four programs at thirty bucketed lengths each, run through in order again and again."""
    b = _Builder("Shape-bucket sweep", seed)
    buckets = []
    for _ in range(4):
        first = b.new_key()
        for step in range(30):
            longer, noise = 1 + step / 8, b.chance.uniform(0.8, 1.2)
            size = int(b.size[first] * longer**0.3)
            buckets.append(b.new_key(size, b.seconds[first] * longer**0.8 * noise))
    now = 0.0
    for _ in range(sweeps):
        now += b.chance.random() * 8 * HOUR
        for key in buckets:
            if b.chance.random() < 0.8:
                now += 20.0
                b.requests.append((now, key))
                if b.chance.random() < 0.2:
                    b.requests.append((now + 1, b.chance.choice(buckets[:10])))
    used = {key for _, key in b.requests}
    b.size = {k: v for k, v in b.size.items() if k in used}
    b.seconds = {k: v for k, v in b.seconds.items() if k in used}
    return b.build()


def recorded(_seed: int = 0) -> Trace:
    """A day of work on a small model (``record_trace.py``), its runs 20 minutes apart."""
    rows = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    return Trace(
        "Recorded: a small model",
        tuple((r["run"] * 20 * MINUTE + i * 0.01, r["key"]) for i, r in enumerate(rows)),
        {r["key"]: r["size_bytes"] for r in rows},
        {r["key"]: r["compile_seconds"] for r in rows},
    )


TRACES: tuple[Callable[[int], Trace], ...] = (
    zipf_with_drift,
    ci_restarts,
    shape_sweep,
    recorded,
)
