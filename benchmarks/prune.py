"""Prune to half, against JAX's own eviction of the same directory, side by side.

``python -m benchmarks.prune [COUNT] [--python JAX_PYTHON]`` makes two equal directories of COUNT
entries, lets JAX's ``LRUCache`` shrink one to half by writing one more entry under a cap, and
``jaxcache prune`` the other, in turn. Prints seconds, their ratio, and the longest that JAX's
lock was held.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.make_cache import make_cache

_JAX_EVICTS = """
import sys, time
from jax._src.lru_cache import LRUCache
cache = LRUCache(sys.argv[1], max_size=int(sys.argv[2]))
started = time.perf_counter()
cache.put("jit_new-" + "0" * 64, b"x" * 1000)
print(time.perf_counter() - started)
"""


def measure_jax(python: str, directory: Path, cap_bytes: int) -> float:
    """Seconds that JAX's eviction takes inside a running process; its start is not counted."""
    done = subprocess.run(
        [python, "-W", "ignore", "-c", _JAX_EVICTS, str(directory), str(cap_bytes)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def measure_prune(directory: Path, cap_bytes: int, policy: str) -> tuple[float, float]:
    """Seconds of the whole command, its start included, and its longest hold of the lock."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "jaxcache", "prune", "-C", str(directory), "--max-size",
         str(cap_bytes), "--policy", policy, "--grace", "0s", "--yes", "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    return seconds, json.loads(done.stdout)["longest_lock_seconds"]


def main() -> None:
    """Read the command line, measure, print one row per round."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has jax")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--policy", nargs="*", default=["lru", "cost"])
    parser.add_argument("--directory", type=Path, help="where to make the caches")
    args = parser.parse_args()
    print("| policy | JAX | jaxcache | ratio | longest lock hold |\n|---|---|---|---|---|")
    for policy in args.policy * args.rounds:
        with tempfile.TemporaryDirectory(dir=args.directory) as scratch:
            ours, theirs = Path(scratch, "ours"), Path(scratch, "theirs")
            make_cache(ours, args.count)
            shutil.copytree(ours, theirs)
            entries_bytes = sum(p.stat().st_size for p in theirs.glob("*-cache"))
            jax_seconds = measure_jax(args.python, theirs, entries_bytes // 2)
            half = entries_bytes // 2 + 8 * args.count // 2
            seconds, hold = measure_prune(ours, half, policy)
        print(
            f"| {policy} | {jax_seconds:.2f} s | {seconds:.2f} s | {jax_seconds / seconds:.1f} | "
            f"{hold * 1000:.0f} ms |",
            flush=True,
        )


if __name__ == "__main__":
    main()
