"""Simulate forty days of a team on one clock, and check what removals leave behind.

Two developers, a server and CI use programs whose kernels come and go. The developers and the
server have a directory with the live layer's records and bound; CI has a new directory each day.
All share a tier, which a nightly ``prune`` bounds. JAX is upgraded twice and rolled back once, a
backup reads everything each night, and one day a clock is a year ahead. The clock is simulated, and
so are the dates of files: a program's reads and writes carry the time of the simulation.

What must hold is checked against this file's own books, which share nothing with jaxcache.

    python tools/simulate_use.py [--days 40] [--seed 1]
"""

import argparse
import collections
import json
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import zstandard

import jaxcache
from jaxcache.live.evictor import Evictor
from jaxcache.live.process import Counters
from jaxcache.live.settings import resolve
from jaxcache.live.uses import SharedUses, UseLog, compact

DAY = 86_400
START = 1_790_000_000 // DAY * DAY
LOCAL_ENTRIES, TIER_ENTRIES = 60, 80


class World:
    """The clock, and the books: who used what when."""

    def __init__(self, seed: int) -> None:
        self.now = float(START)
        self.random = random.Random(seed)
        self.last_use: dict[tuple[str, str], float] = {}
        """By place and key."""
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        """Hits and misses by place."""
        self.broken: list[str] = []
        self.removed = 0
        time.time = lambda: self.now
        time.time_ns = lambda: int(self.now * 1e9)

    def check_removals(self, place: str, before: set[str], after: set[str]) -> None:
        """Nothing that was used within the week goes while something unused for two weeks stays."""
        self.removed += len(before - after)
        recent = [k for k in before - after if self.now - self.last_use[place, k] < 7 * DAY]
        stale = [k for k in after if self.now - self.last_use[place, k] > 14 * DAY]
        if recent and stale:
            self.broken.append(f"{place}: {len(recent)} used ones went, {len(stale)} stale stay")


def keys_in(place: Path) -> set[str]:
    """The entries of a directory."""
    return {p.name.removesuffix("-cache") for p in place.glob("*-cache")}


class Machine:
    """One client with a directory of its own and the tier behind it."""

    def __init__(self, world: World, root: Path, tier: Path, policy: str) -> None:
        self.world, self.root, self.tier, self.policy = world, root, tier, policy
        root.mkdir(parents=True, exist_ok=True)
        self.shared = SharedUses(str(root))

    def run(self, keys: list[str]) -> None:
        """Run a program that needs these keys."""
        world, place = self.world, str(self.root)
        log = UseLog(place, {"jax_version": "0.10.2"})
        for key in keys:
            world.now += 0.05
            path, there = self.root / f"{key}-cache", self.tier / f"{key}-cache"
            seconds = 0.02 + int(key[-8:], 16) % 400 / 100
            hit = path.exists() or there.exists()
            if not path.exists() and hit:
                shutil.copyfile(there, path)
                os.utime(path, (world.now, world.now))
            if hit:
                os.utime(path, (world.now, path.stat().st_mtime))
                log.hit(key)
                self.shared.hit(key)
            else:
                header = int(seconds).to_bytes(4, "big")
                content = header + random.Random(key).randbytes(300)
                path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(content))
                os.utime(path, (world.now, world.now))
                log.compiled(key, seconds)
                self.shared.compiled(key, seconds)
            if not there.exists():  # uploaded, or brought back
                shutil.copyfile(path, there)
                os.utime(there, (world.now, world.now))
            world.counts[place, "hits" if hit else "misses"] += 1
            world.last_use[place, key] = world.last_use[str(self.tier), key] = world.now
        log.flush()
        compact(place)
        if segment := self.shared.segment():
            name, data = segment
            (self.tier / name).parent.mkdir(parents=True, exist_ok=True)
            (self.tier / name).write_bytes(data)
        before = keys_in(self.root)
        settings = resolve({"max_entries": LOCAL_ENTRIES, "policy": self.policy})
        Evictor(place, settings, Counters(), print).evict()
        world.check_removals(place, before, keys_in(self.root))


def back_up(world: World, place: Path) -> None:
    """Read every file, one right after the other, as relatime shows it."""
    for number, path in enumerate(sorted(place.glob("*-cache"))):
        status = path.stat()
        if status.st_atime <= status.st_mtime or world.now - status.st_atime > DAY:
            os.utime(path, (world.now + number * 1e-4, status.st_mtime))


def simulate(directory: Path, policy: str, days: int, seed: int) -> dict[str, object]:
    """Simulate the days, and return what was counted."""
    world = World(seed)
    tier = directory / "tier"
    tier.mkdir()
    machines = [Machine(world, directory / n, tier, policy) for n in ("ann", "bob", "server")]
    shares: list[float] = []
    version = 0
    for day in range(days):
        version = {12: 1, 20: 0, 26: 1, 33: 2}.get(day, version)  # upgrades, and a rollback

        def keys(names: list[str], version: int = version) -> list[str]:
            return [
                f"jit_{n}-{random.Random(f'{n} {version}').getrandbits(256):064x}" for n in names
            ]

        core = keys([f"core{n}" for n in range(8)])
        yesterday = {k for (p, k), at in world.last_use.items() if world.now - at < DAY}
        for number, machine in enumerate(machines):
            world.now = START + day * DAY + (9 + number) * 3600
            for run in range(3):
                throwaway = keys([f"try{number}_{day}_{run}_{n}" for n in range(2)])
                machine.run(core + (throwaway if number < 2 else []))
        world.now = START + day * DAY + 18 * 3600
        if day and version == {12: 1, 20: 0, 26: 1, 33: 2}.get(day - 1, version):
            shares.append(len(yesterday & keys_in(tier)) / max(1, len(yesterday)))
        Machine(world, directory / f"ci{day}", tier, policy).run(core)
        shutil.rmtree(directory / f"ci{day}")
        if day == 15:  # an accident: a wrong clock dates some files
            for path in sorted(machines[0].root.glob("*-cache"))[:4]:
                os.utime(path, (world.now + 365 * DAY, world.now + 365 * DAY))
        world.now = START + day * DAY + 23 * 3600
        for machine in machines:
            back_up(world, machine.root)
        before = keys_in(tier)
        cache = jaxcache.open(tier)
        cache.execute(cache.plan_prune(max_entries=TIER_ENTRIES, policy=policy))
        world.check_removals(str(tier), before, keys_in(tier))
        world.now += 1800
    for machine in machines:
        uses = jaxcache.open(machine.root).stats().uses
        place = str(machine.root)
        wanted = (world.counts[place, "hits"], world.counts[place, "misses"])
        if uses is None or (uses.hits, uses.misses) != wanted:
            world.broken.append(f"{place}: {uses} where {wanted} were counted")
    ledgers = (p for place in directory.iterdir() for p in place.glob(".jaxcache/ledger/*.jsonl"))
    sizes: collections.Counter[str] = collections.Counter()
    for path in ledgers:
        sizes[path.parents[2].name] += path.stat().st_size
    if max(sizes.values()) > 1_000_000:
        world.broken.append(f"a ledger has {max(sizes.values()):,} bytes")
    if min(shares) < 0.95:
        world.broken.append(f"a new machine hits {min(shares):.0%} of yesterday's keys")
    return {
        "policy": policy,
        "days": days,
        "removed": world.removed,
        "hits": sum(n for (_, what), n in world.counts.items() if what == "hits"),
        "misses": sum(n for (_, what), n in world.counts.items() if what == "misses"),
        "lowest_share_of_yesterday": round(min(shares), 3),
        "largest_ledger_bytes": max(sizes.values()),
        "broken": world.broken,
    }


def main() -> int:
    """Simulate both policies, print a line of JSON for each, and fail where something broke."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    failed = False
    for policy in ("lru", "cost"):
        with tempfile.TemporaryDirectory(prefix="jaxcache-simulation-") as directory:
            result = simulate(Path(directory), policy, chosen.days, chosen.seed)
        print(json.dumps(result))
        failed = failed or bool(result["broken"])
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
