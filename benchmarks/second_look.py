"""The second look at a cache, when index and snapshot know it, against the first and against JAX.

``python -m benchmarks.second_look [--python PYTHON] [--rounds N]`` prints a Markdown table. The
caches are made in a temporary directory; the page cache is warm. PYTHON is one that has jax.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.listing import _JAX_SCAN
from benchmarks.make_cache import make_cache
from benchmarks.measure import HEADER, Ratio, command, compare, reported

_JAXCACHE = [sys.executable, "-m", "jaxcache"]
#: A place that cannot be written: nothing is remembered from one run to the next.
_FORGET = {"XDG_CACHE_HOME": "/dev/null"}


def _settle(folder: Path) -> None:
    """Make the files old enough to be remembered."""
    then = time.time() - 60
    for path in folder.iterdir():
        os.utime(path, (then, then))


def measure(rounds: int, python: str, folder: Path) -> list[Ratio]:
    """Run every comparison."""
    remember = {"XDG_CACHE_HOME": str(folder / "remembered")}
    ten, hundred = folder / "10k", folder / "100k"
    make_cache(ten, 10_000)
    _settle(ten)
    long = [*_JAXCACHE, "ls", "--long", "-C", str(ten)]
    ratios = [
        compare(
            "second `ls --long` of 10,000 entries / the first",
            command(long, remember), command(long, _FORGET), rounds=rounds, target="≤ 0.2 ×",
        )
    ]  # fmt: skip
    probe = [python, "-c", "import jax"]
    if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        make_cache(hundred, 100_000)
        _settle(hundred)
        ratios.append(
            compare(
                "second `stats` of 100,000 entries / JAX's eviction scan",
                command([*_JAXCACHE, "stats", "-C", str(hundred)], remember),
                reported([python, "-c", _JAX_SCAN, str(hundred)]),
                rounds=rounds, target="≤ 0.17 ×",
            )
        )  # fmt: skip
    return ratios


def main() -> None:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jaxcache-bench-") as folder:
        print(HEADER)
        for ratio in measure(args.rounds, args.python, Path(folder)):
            print(ratio.row())


if __name__ == "__main__":
    main()
