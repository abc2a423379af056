"""What ``jaxcache warm`` adds to a program: the bare script against the warmed one, in turn.

``python -m benchmarks.warm [--python JAX_PYTHON] [--rounds N] [-- ARG…]`` runs
``examples/train.py`` with the same cache settings on both sides: cold, each time into an empty
directory, and hot, each time from one that the other rounds have filled.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import HEADER, Ratio, compare

_EXAMPLE = Path(__file__).parents[1] / "examples" / "train.py"
_SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def seconds_of(command: list[str], cache: str) -> float:
    """Wall seconds of one command with its cache in ``cache``."""
    env = {**os.environ, **_SETTINGS, "JAX_COMPILATION_CACHE_DIR": cache}
    started = time.perf_counter()
    subprocess.run(command, env=env, check=True, capture_output=True)
    return time.perf_counter() - started


def measure(
    python: str, arguments: list[str], rounds: int, scratch: str, kinds: list[str]
) -> list[Ratio]:
    """The comparisons of these kinds; the directories are made in ``scratch``."""
    script = [str(_EXAMPLE), *arguments]
    bare = [python, *script]
    ours = [sys.executable, "-m", "jaxcache", "warm", "--python", python, *script]
    hot = tempfile.mkdtemp(dir=scratch)

    def cold(command: list[str]) -> float:
        with tempfile.TemporaryDirectory(dir=scratch) as cache:
            return seconds_of(command, cache)

    sides = {
        "cold": (lambda: cold(ours), lambda: cold(bare), "≤ 1.03 × of a 20 s script"),
        "hot": (
            lambda: seconds_of(ours, hot), lambda: seconds_of(bare, hot), "≤ 0.2 s more",
        ),
    }  # fmt: skip
    return [
        compare(f"warm against the bare script, {kind}", mine, theirs, rounds=rounds, target=target)
        for kind, (mine, theirs, target) in sides.items()
        if kind in kinds
    ]


def main() -> None:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has jax")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["cold", "hot"], help="one of the two comparisons")
    parser.add_argument("arguments", nargs="*", help="of examples/train.py, after --")
    args = parser.parse_args()
    kinds = [args.only] if args.only else ["cold", "hot"]
    with tempfile.TemporaryDirectory() as scratch:
        ratios = measure(args.python, args.arguments, args.rounds, scratch, kinds)
    print(HEADER)
    for ratio in ratios:
        print(f"{ratio.row()}")
        print(f"  the difference of the medians is {ratio.ours - ratio.peer:+.3f} s")


if __name__ == "__main__":
    main()
