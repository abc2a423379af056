"""What recipes cost and give, on ``examples/train.py``.

``python -m benchmarks.recipe [--python JAX_PYTHON] [--rounds N] [--only NAME…] [-- ARG…]``, where
the arguments are those of the script. Without any it is widened to 24 lengths.

* ``compile``: wall seconds of ``compile --jobs 2`` against half the CPU seconds of ``--jobs 1``,
  which no two cores can beat. Wants an idle machine with two cores.
* ``record``: ``warm --record`` against ``warm``, both cold.
* ``collect``: ``warm --collect-only`` against the bare script, both cold.
* ``size``: the recipe against ``zstd -19`` of the modules' bytecode, one after the other.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import zstandard

from benchmarks.measure import HEADER, Ratio, compare
from benchmarks.warm import seconds_of
from jaxcache.cache.recipe.format import open_recipe

_EXAMPLE = Path(__file__).parents[1] / "examples" / "train.py"
_LENGTHS = [str(8 * n) for n in range(1, 23)]
_NAMES = ("compile", "record", "collect", "size")


class Bench:
    """One script, one Python, and a folder to work in."""

    def __init__(self, python: str, arguments: list[str], scratch: str) -> None:
        self._python, self._scratch = python, scratch
        self._script = [str(_EXAMPLE), *arguments]
        self.recipe = str(Path(scratch, "train.recipe"))

    def warm(self, *options: str) -> float:
        """Wall seconds of ``jaxcache warm`` into an empty directory."""
        command = [sys.executable, "-m", "jaxcache", "warm", "--python", self._python]
        with tempfile.TemporaryDirectory(dir=self._scratch) as cache:
            return seconds_of([*command, *options, *self._script], cache)

    def bare(self) -> float:
        """Wall seconds of the script alone, with an empty cache."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as cache:
            return seconds_of([self._python, *self._script], cache)

    def compile(self, jobs: int) -> tuple[float, float]:
        """Wall and CPU seconds of ``jaxcache compile`` into an empty directory."""
        command = [sys.executable, "-m", "jaxcache", "compile", self.recipe, "--python"]
        before = _child_seconds()
        with tempfile.TemporaryDirectory(dir=self._scratch) as cache:
            wall = seconds_of([*command, self._python, "--jobs", str(jobs)], cache)
        return wall, _child_seconds() - before

    def sizes(self) -> tuple[int, int, int, int]:
        """Bytes of the recipe, of all bytecode under ``zstd -19``, of each by itself, and raw."""
        with open_recipe(self.recipe) as file:
            digests = dict.fromkeys(r.bytecode for r in file.recipe.requests)
            modules = [file.blob(d) for d in digests]
            raw = b"".join(modules)
            pack = zstandard.ZstdCompressor(level=19).compress
            apart = sum(len(pack(m)) for m in modules)
            return file.size_bytes, len(pack(raw)), apart, len(raw)


def _child_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has jax")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=_NAMES, default=_NAMES)
    parser.add_argument("arguments", nargs="*", help="of examples/train.py, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        script = args.arguments or ["--layers", "2", "--lengths", *_LENGTHS]
        bench = Bench(args.python, script, scratch)
        bench.warm("--record", bench.recipe)
        other = str(Path(scratch, "other.recipe"))
        sides: dict[str, tuple[str, Callable[[], float], Callable[[], float], str]] = {
            "compile": (
                "compile --jobs 2 against CPU seconds / 2", lambda: bench.compile(2)[0],
                lambda: bench.compile(1)[1] / 2, "≤ 1.15 ×",
            ),
            "record": (
                "warm --record against warm, cold", lambda: bench.warm("--record", other),
                bench.warm, "≤ 1.03 ×",
            ),
            "collect": (
                "warm --collect-only against the bare script, cold",
                lambda: bench.warm("--collect-only", "--record", other), bench.bare, "≤ 0.33 ×",
            ),
        }  # fmt: skip
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n\n{HEADER}")
        for name, (claim, ours, peer, target) in sides.items():
            if name in args.only:
                ratio: Ratio = compare(claim, ours, peer, rounds=args.rounds, target=target)
                print(ratio.row(), flush=True)
        if "size" in args.only:
            size, packed, apart, raw = bench.sizes()
            print(
                f"\nrecipe {size} bytes of {raw} bytes of bytecode; against zstd -19 over all of "
                f"it {size / packed:.2f} × (target ≤ 1.1 ×), over each module {size / apart:.2f} ×"
            )


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr.decode() if error.stderr else ''}")
