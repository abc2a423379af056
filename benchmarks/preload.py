"""Warm starts with ``preload`` beside plain JAX, on the same full cache.

``python -m benchmarks.preload``; wants an idle machine with two cores, and jaxcache beside the jax
of ``--python``. The seconds are those from after ``import jax`` to the last result, as the program
prints them. Memory is the peak of the process.
"""

import os
import subprocess
from collections.abc import Iterator

from benchmarks.measure import (
    Absent,
    Row,
    Setting,
    environment,
    missing,
    peak_bytes_of,
    relate,
    run_alone,
)

#: An unrolled transformer: value and gradient, for each number of rows.
PROGRAM = """
import sys, time
import jax, jax.numpy as jnp
started = time.perf_counter()
layers, width, *shapes = map(int, sys.argv[1:])

def init(key):
    normal = lambda *shape: jax.random.normal(key, shape) * 0.02
    d = width
    return [dict(a=normal(d, 3 * d), o=normal(d, d), u=normal(d, 4 * d), d=normal(4 * d, d))
            for _ in range(layers)]

def loss(p, x):
    for b in p:
        q, k, v = jnp.split(x @ b["a"], 3, -1)
        x = x + jax.nn.softmax(q @ k.T / 8) @ v @ b["o"]
        x = x + jax.nn.gelu(x @ b["u"]) @ b["d"]
    return (x ** 2).mean()

parameters = jax.jit(init)(jax.random.key(0))
step = jax.jit(jax.value_and_grad(loss))
for rows in shapes:
    step(parameters, jnp.ones((rows, width)))[0].block_until_ready()
print(time.perf_counter() - started)
"""
_SHAPES = (32, 48, 64)
#: Layers, width and the promised ratio.
_PROGRAMS = ((12, 256, 0.85), (24, 64, 0.85), (64, 128, 0.85))


class _Runs:
    """Runs of the program with one number of layers, on a cache of its own."""

    def __init__(self, setting: Setting, layers: int, width: int) -> None:
        self._directory = setting.scratch(f"preload-{layers}")
        self._script = self._directory / "program.py"
        self._script.write_text(PROGRAM)
        self._args = [setting.python, os.fspath(self._script), str(layers), str(width)]
        for live in (True, True, False):
            self.seconds(live=live)

    def _env(self, *, live: bool) -> dict[str, str]:
        return {
            "JAXCACHE_LIVE": "1" if live else "0",
            "JAXCACHE_LIVE_PRELOAD": "1",
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self._directory / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

    def seconds(
        self, *, live: bool, shapes: tuple[int, ...] = _SHAPES, prefix: tuple[str, ...] = ()
    ) -> float:
        """What the program prints."""
        done = subprocess.run(
            [*prefix, *self._args, *map(str, shapes)],
            env=environment(self._env(live=live)),
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout.split()[-1])

    def peak_megabytes(self, *, live: bool) -> float:
        """The peak memory of the program."""
        args = [*self._args, *map(str, _SHAPES)]
        return peak_bytes_of(args, self._env(live=live)) / 1e6

    def half_seconds(self, *, live: bool) -> float:
        """The seconds of a run that uses one shape of the three that the last run used."""
        self.seconds(live=True)
        return self.seconds(live=live, shapes=_SHAPES[:1])


def measure(setting: Setting) -> Iterator[Row]:
    """Yield the rows."""
    if not _has_layer(setting):
        yield Absent("preload / plain JAX", "jaxcache is not installed beside that jax")
        return
    pairs = range(setting.pairs)
    for layers, width, ratio in _PROGRAMS[:1] if setting.quick else _PROGRAMS:
        name = f"preload / plain JAX: warm start, {layers} layers of {width}"
        runs = _Runs(setting, layers, width)
        both = [(runs.seconds(live=True), runs.seconds(live=False)) for _ in pairs]
        yield relate(name, both, at_most=ratio)
        half = [(runs.half_seconds(live=True), runs.half_seconds(live=False)) for _ in pairs]
        yield relate(f"{name}, a third of the last run", half, at_most=1.02)
        peaks = [(runs.peak_megabytes(live=True), runs.peak_megabytes(live=False)) for _ in pairs]
        yield relate(f"{name}, peak memory", peaks, at_most=1.1, unit="MB")
        if missing("taskset"):
            yield Absent(f"{name}, one core", "no taskset here")
            continue
        one = ("taskset", "-c", "0")
        both = [
            (runs.seconds(live=True, prefix=one), runs.seconds(live=False, prefix=one))
            for _ in pairs
        ]
        yield relate(f"{name}, one core", both, at_most=1.02)


def _has_layer(setting: Setting) -> bool:
    script = "import sys, jax; jax.devices(); print('jaxcache.live.layer' in sys.modules)"
    env = environment({"JAXCACHE_LIVE": "1", "JAX_PLATFORMS": "cpu"})
    done = subprocess.run(
        [setting.python, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() == "True"


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
