"""Start-up, ``ls`` and ``stats`` against a bare import, find, and JAX's own eviction scan.

``python -m benchmarks.listing [--large N] [--rounds N]`` prints a Markdown table. The caches are
made in a temporary directory; the page cache is warm.
"""

import argparse
import importlib.util
import resource
import sys
import tempfile
from pathlib import Path

from benchmarks.make_cache import make_cache
from benchmarks.measure import HEADER, Ratio, command, compare, reported

#: JAX's own pass over a directory, as every write under a size cap makes it.
_JAX_SCAN = """
import sys, time
from jax._src.lru_cache import LRUCache
cache = LRUCache(sys.argv[1], max_size=10**15)
started = time.perf_counter()
cache._evict_if_needed()
print(time.perf_counter() - started)
"""


def measure(large: int, rounds: int, folder: Path) -> list[Ratio]:
    """Run every comparison; ``large`` is the number of entries of the large directory."""
    small = folder / "small"
    make_cache(small, 1000)
    python = sys.executable
    jaxcache = [python, "-m", "jaxcache"]
    ratios = [
        compare(
            "`ls` of 1,000 entries in a pipe / `import typer`",
            command([*jaxcache, "ls", "-C", str(small)]),
            command([python, "-c", "import typer"]),
            rounds=4 * rounds, target="≤ 1.5 ×",
        ),
    ]  # fmt: skip
    big = folder / "big"
    make_cache(big, large)
    # Nothing remembered from before: the index has no place to lie in.
    stats = command([*jaxcache, "stats", "-C", str(big)], {"XDG_CACHE_HOME": "/dev/null"})
    ratios.append(
        compare(
            f"`stats` of {large:,} entries / `find -printf '%s %T@'`",
            stats,
            command(["find", str(big), "-printf", "%s %T@\\n"]),
            rounds=rounds, target="≤ 8 ×",
        )
    )  # fmt: skip
    if importlib.util.find_spec("jax"):
        ratios.append(
            compare(
                f"`stats` of {large:,} entries / JAX's eviction scan",
                stats,
                reported([python, "-c", _JAX_SCAN, str(big)]),
                rounds=rounds, target="≤ 0.5 ×",
            )
        )  # fmt: skip
    return ratios


def main() -> None:
    """Read the command line, measure, print the table and the memory of the largest child."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--large", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jaxcache-bench-") as folder:
        print(HEADER)
        for ratio in measure(args.large, args.rounds, Path(folder)):
            print(ratio.row())
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"\nlargest process: {peak_kib / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
