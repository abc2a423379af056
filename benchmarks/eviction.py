"""Replay traces against eviction policies: what share of the compile seconds does each save?

``python -m benchmarks.eviction`` prints, for every trace and for caps of 5, 10 and 25 % of all
bytes that the trace compiles, the share of the saveable compile seconds that each policy saves.
``lru`` and ``cost`` are the program's own code (:mod:`jaxcache.core.eviction`), asked for room
whenever an entry exceeds the cap, as JAX's own cap does.

``clairvoyant`` knows the future. The best plan is NP-hard to find where sizes differ, so it is
the better of two: evicting what saves least per byte and time until its next use, and packing
the intervals between two uses of an entry under the cap, the densest first.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from benchmarks.measure import Row, Setting, relate
from benchmarks.traces import TRACES, Trace, recorded
from jaxcache.core.eviction import Candidate, choose_for_room, estimate_hits, saved_seconds

NS = 1_000_000_000
CAPS = (0.05, 0.10, 0.25)
SEEDS = (21, 22, 23)

#: Given the candidates, the bytes needed and the time: the names that go.
Chooser = Callable[[list[Candidate], int, int], Iterable[str]]


def lru(candidates: list[Candidate], excess: int, now_ns: int) -> Iterable[str]:
    """JAX's order."""
    return [c.name for c in choose_for_room(candidates, excess, "lru", now_ns)]


def cost(candidates: list[Candidate], excess: int, now_ns: int) -> Iterable[str]:
    """The program's default."""
    return [c.name for c in choose_for_room(candidates, excess, "cost", now_ns)]


def size_only(candidates: list[Candidate], excess: int, _now_ns: int) -> Iterable[str]:
    """The largest first."""
    for candidate in sorted(candidates, key=lambda c: -c.size_bytes):
        if excess <= 0:
            return
        excess -= candidate.size_bytes
        yield candidate.name


def replay(trace: Trace, cap_bytes: float, choose: Chooser, *, ledger: bool) -> float:
    """Compile seconds saved under a cap.

    Args:
        ledger: whether exact seconds and a count of hits are known, the count also of entries
            that were removed; otherwise a policy sees the header's whole seconds and two dates.
    """
    created: dict[str, float] = {}
    used: dict[str, float] = {}
    hits: defaultdict[str, int] = defaultdict(int)
    size, seconds = trace.size_bytes, trace.compile_seconds
    total = 0
    saved = 0.0
    for now, key in trace.requests:
        if key in used:
            saved += seconds[key]
            hits[key] += 1
            used[key] = now
            continue
        if size[key] > cap_bytes:
            continue
        created[key] = used[key] = now
        total += size[key]
        if total > cap_bytes:
            candidates = [
                Candidate(
                    k,
                    size[k],
                    int(last * NS),
                    saved_seconds(seconds[k] if ledger else None, seconds[k], {}),
                    estimate_hits(hits[k] if ledger else 0, int(created[k] * NS), int(last * NS)),
                )
                for k, last in used.items()
            ]
            for name in choose(candidates, math.ceil(total - cap_bytes), int(now * NS)):
                del used[name]
                total -= size[name]
    return saved


def next_uses(trace: Trace) -> list[float]:
    """For each request the index of the next one of its key; infinity where there is none."""
    later: dict[str, int] = {}
    result = [math.inf] * len(trace.requests)
    for index in range(len(trace.requests) - 1, -1, -1):
        key = trace.requests[index][1]
        result[index] = later.get(key, math.inf)
        later[key] = index
    return result


def clairvoyant_eviction(trace: Trace, cap_bytes: float) -> float:
    """Evict what saves the fewest seconds per byte and step until its next use."""
    following = next_uses(trace)
    size, seconds = trace.size_bytes, trace.compile_seconds
    until: dict[str, float] = {}
    total, saved = 0, 0.0
    for index, (_, key) in enumerate(trace.requests):
        if key in until:
            saved += seconds[key]
        else:
            total += size[key]
        until[key] = following[index]
        while total > cap_bytes:
            worst = min(until, key=lambda k: seconds[k] / size[k] / (until[k] - index))
            total -= size[worst]
            del until[worst]
    return saved


def clairvoyant_packing(trace: Trace, cap_bytes: float) -> float:
    """Keep an entry from one use to the next where the cap allows, the densest first."""
    following = next_uses(trace)
    size, seconds = trace.size_bytes, trace.compile_seconds
    intervals = [
        (start, int(end), trace.requests[start][1])
        for start, end in enumerate(following)
        if end < math.inf
    ]
    intervals.sort(key=lambda i: -seconds[i[2]] / (size[i[2]] * (i[1] - i[0])))
    load = [0] * len(trace.requests)
    saved = 0.0
    for start, end, key in intervals:
        room = cap_bytes - size[key]
        if max(load[start:end]) <= room:
            load[start:end] = [used + size[key] for used in load[start:end]]
            saved += seconds[key]
    return saved


def shares(trace: Trace, fraction: float) -> dict[str, float]:
    """The share of saveable seconds that each policy saves under a cap."""
    cap = fraction * sum(trace.size_bytes.values())
    saved = {
        "lru": replay(trace, cap, lru, ledger=False),
        "size": replay(trace, cap, size_only, ledger=False),
        "cost, dates only": replay(trace, cap, cost, ledger=False),
        "cost": replay(trace, cap, cost, ledger=True),
        "clairvoyant": max(clairvoyant_eviction(trace, cap), clairvoyant_packing(trace, cap)),
    }
    return {name: seconds / trace.saveable_seconds for name, seconds in saved.items()}


def measure(setting: Setting) -> Iterator[Row]:
    """``cost`` against ``lru`` and against knowing the future: one pair a cap, means of traces."""
    seeds = SEEDS[:1] if setting.quick else SEEDS
    traces = [make(seed) for make in TRACES for seed in (seeds if make is not recorded else (0,))]
    found = [[shares(trace, fraction) for trace in traces] for fraction in CAPS]
    means = [{name: sum(f[name] for f in some) / len(some) for name in some[0]} for some in found]
    for peer, at_least in (("lru", 1.0), ("clairvoyant", None)):
        yield relate(
            f"share of compile seconds saved under caps of 5, 10, 25 %: policy `cost` / {peer}",
            [(mean["cost"], mean[peer]) for mean in means],
            at_least=at_least,
            unit="",
        )


def main() -> None:
    """Print the whole table, by trace and cap."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    args = parser.parse_args()
    closed: dict[str, list[float]] = defaultdict(list)
    printed = False
    for make in TRACES:
        traces = [make(seed) for seed in args.seeds]
        if len({t.requests for t in traces}) == 1:
            traces = traces[:1]  # recorded, not drawn
        for fraction in CAPS:
            found = [shares(trace, fraction) for trace in traces]
            mean = {name: sum(f[name] for f in found) / len(found) for name in found[0]}
            if not printed:
                print("| trace | cap |", " | ".join(mean), "|")
                print("|---|---|" + "---|" * len(mean))
                printed = True
            row = " | ".join(f"{share:.3f}" for share in mean.values())
            print(f"| {traces[0].name} | {fraction:.0%} | {row} |", flush=True)
            gap = mean["clairvoyant"] - mean["lru"]
            for name in ("cost, dates only", "cost"):
                closed[name].append((mean[name] - mean["lru"]) / gap)
    for name, ratios in closed.items():
        print(
            f"{name}: closes {sum(ratios) / len(ratios):.0%} of the gap between lru and "
            f"clairvoyant on average, {min(ratios):.0%} at least"
        )


if __name__ == "__main__":
    main()
