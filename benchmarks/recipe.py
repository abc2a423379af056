"""What recipes cost and give, on ``examples/train.py`` widened to 24 shapes.

``python -m benchmarks.recipe --python JAX_PYTHON`` compares ``compile --jobs 2`` with ``--jobs 1``
and with half the CPU seconds of that, which no two cores can beat; ``warm --record`` with ``warm``
and ``--collect-only`` with the bare script, all cold; ``warm --jobs 2`` with the bare script, cold,
and what 16 cores would make of it, computed from the recorded seconds of each module: longest
first, each to the worker that has least to do; and the recipe's size with ``zstd -19`` of the
modules' bytecode, one after the other.
"""

import resource
import tempfile
from collections.abc import Iterator

import zstandard

from benchmarks.measure import Absent, Row, Setting, compare, jaxcache, relate, run_alone
from benchmarks.warm import EXAMPLE, run_with_cache
from jaxcache.cache.recipe import open_recipe

_LENGTHS = [str(8 * n) for n in range(1, 23)]
_CORES = 2


class _Bench:
    """One script, one Python, and a directory to work in."""

    def __init__(self, setting: Setting) -> None:
        self._python, self._scratch = setting.python, setting.scratch("recipe")
        lengths = _LENGTHS[:3] if setting.quick else _LENGTHS
        self._script = [EXAMPLE, "--layers", "2", "--lengths", *lengths]
        self.recipe = str(self._scratch / "train.recipe")
        self._other = str(self._scratch / "other.recipe")

    def _cold(self, command: list[str]) -> float:
        with tempfile.TemporaryDirectory(dir=self._scratch) as cache:
            return run_with_cache(command, cache)

    def warm(self, *options: str) -> float:
        """Wall seconds of ``jaxcache warm``."""
        return self._cold(jaxcache("warm", "--python", self._python, *options, *self._script))

    def record(self) -> float:
        """The same, recording."""
        return self.warm("--record", self._other)

    def collect(self) -> float:
        """The same, recording and not executing."""
        return self.warm("--collect-only", "--record", self._other)

    def jobs(self) -> float:
        """The same, collecting first and compiling on both cores."""
        return self.warm("--jobs", str(_CORES))

    def hot(self) -> float:
        """Wall seconds of the script alone, where all hits."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as cache:
            command = [self._python, *self._script]
            run_with_cache(command, cache)
            return run_with_cache(command, cache)

    def computed(self, cores: int) -> float:
        """Seconds of the recorded compiles on so many cores, longest first."""
        with open_recipe(self.recipe) as file:
            seconds = sorted((r.compile_seconds or 0.0 for r in file.recipe.requests), reverse=True)
        loads = [0.0] * cores
        for one in seconds:
            loads[loads.index(min(loads))] += one
        return max(loads)

    def bare(self) -> float:
        """Wall seconds of the script alone."""
        return self._cold([self._python, *self._script])

    def compile(self, jobs: int) -> tuple[float, float]:
        """Wall and CPU seconds of ``jaxcache compile``."""
        before = _child_seconds()
        options = ("--python", self._python, "--jobs", str(jobs))
        wall = self._cold(jaxcache("compile", self.recipe, *options))
        return wall, _child_seconds() - before

    def sizes(self) -> tuple[float, float]:
        """Kilobytes of the recipe, and of all bytecode under ``zstd -19``."""
        with open_recipe(self.recipe) as file:
            digests = dict.fromkeys(r.bytecode for r in file.recipe.requests)
            raw = b"".join(file.blob(d) for d in digests)
            return file.size_bytes / 1e3, len(zstandard.compress(raw, 19)) / 1e3


def _child_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(setting: Setting) -> Iterator[Row]:
    """Compile in parallel first, then what recording costs."""
    if not setting.has_jax:
        yield Absent("`compile`, `warm --record`", "no jax: name one with --python")
        return
    bench, pairs = _Bench(setting), setting.long_pairs
    bench.warm("--record", bench.recipe)
    serial: list[tuple[float, float]] = []
    bound: list[tuple[float, float]] = []
    for _ in range(pairs):
        ours = bench.compile(_CORES)[0]
        wall, cpu = bench.compile(1)
        serial.append((ours, wall))
        bound.append((ours, cpu / _CORES))
    yield relate("`compile --jobs 2` of a recipe / `--jobs 1`", serial)
    yield relate("`compile --jobs 2` / half the CPU seconds of `--jobs 1`", bound, at_most=1.15)
    yield compare(
        "`warm --record`, cold / `warm`, cold",
        bench.record,
        bench.warm,
        pairs=pairs,
        at_most=1.03,
        warm_up=False,
    )
    yield compare(
        "`warm --collect-only` / the bare script, cold",
        bench.collect,
        bench.bare,
        pairs=pairs,
        at_most=0.33,
        warm_up=False,
    )
    ahead = compare(
        "`warm --jobs 2` / the bare script, cold",
        bench.jobs,
        bench.bare,
        pairs=pairs,
        at_most=1,
        warm_up=False,
    )
    yield ahead
    collecting, hot = bench.collect(), bench.hot()
    for cores in (_CORES, 16):
        yield relate(
            f"computed: `warm --jobs {cores}` (collecting, modules on {cores} cores, a hot run) / "
            "the bare script, cold",
            [(collecting + bench.computed(cores) + hot, ahead.peer)],
        )
    yield relate("size of a recipe / `zstd -19` of its bytecode", [bench.sizes()], unit="kB")


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
