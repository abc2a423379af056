"""How seconds and memory grow with the number of entries: ``make scale``.

``python -m benchmarks.scale [--entries 10000 100000 1000000] [--directory DIR]`` makes a cache of
each size, the smallest real entries with an ``-atime`` file each, and runs one command after the
other on it, nothing remembered from before. Printed are the time it took, the processors' time, and
the memory of the largest process. A slope, of the latter two, is that of the line through the last
two sizes on paper that is logarithmic both ways: 1 is linear. A million entries want 10 GB and two
million inodes.
"""

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.make_cache import make_cache, settle
from benchmarks.measure import environment, jaxcache
from benchmarks.run import describe_machine

#: A block of most file systems.
_MOST_BYTES = 4_096
#: Beyond this, growth counts as worse than linear; sorting and noise account for the rest.
_STEEP = 1.15


@dataclass(frozen=True, slots=True)
class Cost:
    """What one command took."""

    seconds: float
    processor_seconds: float
    """Of all its processes: what other work on the machine does not add to."""
    peak_bytes: int
    """Of its largest process."""


def commands(cache: Path, entries: int) -> dict[str, list[str]]:
    """What is run, in this order: the last one removes half."""
    here = ("-C", str(cache))
    return {
        "verify --level quick": jaxcache("verify", "--level", "quick", "-q", *here),
        "ls --limit 20": jaxcache("ls", "--limit", "20", *here),
        "ls --limit 20 again": jaxcache("ls", "--limit", "20", *here),
        "stats": jaxcache("stats", *here),
        "stats again": jaxcache("stats", *here),
        "prune --max-entries N/2": jaxcache(
            "prune", "--max-entries", str(entries // 2), "--grace", "0s", "--yes", "-q", *here
        ),
    }


def run(args: list[str], remembered: Path) -> Cost:
    """Run one command to its end.

    Raises:
        CalledProcessError: it failed.
    """
    started = time.perf_counter()
    child = subprocess.Popen(
        args, env=environment({"XDG_CACHE_HOME": str(remembered)}), stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):  # verify finds something: the fixtures are of another CPU
        raise subprocess.CalledProcessError(child.returncode, args)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Cost(seconds, usage.ru_utime + usage.ru_stime, peak)


def measure(entries: int, directory: Path) -> dict[str, Cost]:
    """Make a cache of that size, run every command, remove it."""
    cache, remembered = directory / "cache", directory / "remembered"
    make_cache(cache, entries, most_bytes=_MOST_BYTES)
    settle(cache)
    costs: dict[str, Cost] = {}
    for name, args in commands(cache, entries).items():
        if not name.endswith("again"):
            shutil.rmtree(remembered, ignore_errors=True)
        costs[name] = run(args, remembered)
    left = sum(1 for item in os.scandir(cache) if item.name.endswith("-cache"))
    assert left == entries // 2, f"prune left {left} of {entries}"
    shutil.rmtree(cache)
    return costs


def slope(sizes: list[int], values: list[float]) -> float:
    """Of the line through the last two points on doubly logarithmic paper."""
    (x0, x1), (y0, y1) = sizes[-2:], values[-2:]
    return math.log(y1 / y0) / math.log(x1 / x0)


def check_room(entries: int, directory: Path) -> None:
    """End the program where so many entries do not fit."""
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    inodes = status.f_favail or 2**62  # some file systems make them as needed
    if 2.2 * entries * _MOST_BYTES > free or 2.1 * entries > inodes:
        sys.exit(
            f"{entries:,} entries do not fit into {directory}: "
            f"{free / 1e9:.0f} GB and {inodes:,} inodes are free"
        )


def main() -> None:
    """Measure every size, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--directory", type=Path, help="where to make the caches")
    args = parser.parse_args()
    sizes = sorted(args.entries)
    if len(sizes) < 2:
        parser.error("two sizes make a slope")
    found: list[dict[str, Cost]] = []
    for entries in sizes:
        with tempfile.TemporaryDirectory(prefix="jaxcache-scale-", dir=args.directory) as directory:
            check_room(entries, Path(directory))
            found.append(measure(entries, Path(directory)))
            print(f"{entries:,} entries measured", file=sys.stderr, flush=True)
    print(f"{describe_machine()}, load {os.getloadavg()[0]:.1f} at the end\n")
    print("| command |", " | ".join(f"{n:,}" for n in sizes), "| slopes |")
    print("|---|" + "---|" * (len(sizes) + 1))
    steep = False
    for name in found[0]:
        costs = [some[name] for some in found]
        cells = [f"{c.processor_seconds:.2f} s, {c.peak_bytes / 2**20:.0f} MiB" for c in costs]
        time_slope = slope(sizes, [c.processor_seconds for c in costs])
        memory_slope = slope(sizes, [c.peak_bytes for c in costs])
        steep |= max(time_slope, memory_slope) > _STEEP
        print(f"| `{name}` |", " | ".join(cells), f"| {time_slope:.2f}, {memory_slope:.2f} |")
    print(f"\n{'Some are' if steep else 'None is'} steeper than {_STEEP}.")


if __name__ == "__main__":
    main()
