"""Warm starts with ``preload`` beside plain JAX, on the same full cache.

``python -m benchmarks.preload``; wants an idle machine with two cores, and jaxcache beside the jax
of ``--python``. The seconds are those that the programs of :mod:`benchmarks.preload_programs`
print; from the bucket they are those of the whole process. Memory is the peak of the process. 15 %
less was promised where loads are 15 % of the plain start, and never more than 2 % more.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import (
    Absent,
    Row,
    Setting,
    environment,
    missing,
    peak_bytes_of,
    relate,
    run_alone,
    seconds_of,
)
from benchmarks.preload_programs import BEGIN, END, PROGRAMS

_TESTS = Path(__file__).parents[1] / "tests"
#: The part of a plain start that loads take from which on the start is to be so much shorter.
_LOADS_SHARE = 0.15
_SHORTER = 0.85
_NO_LONGER = 1.02
_AWAY_SECONDS = 0.02
_TITLE = "Loading ahead"


class _Runs:
    """Runs of one program, on a cache of its own."""

    def __init__(self, setting: Setting, number: int, text: str, args: tuple[str, ...]) -> None:
        self.directory = setting.scratch(f"preload-{number}")
        self.cache = self.directory / "cache"
        self._script = self.directory / "program.py"
        self._script.write_text(BEGIN + text + END)
        self._python = setting.python
        self._args = args

    def command(self, part: str = "all") -> list[str]:
        """The command line that uses all, or half, of the program."""
        return [self._python, os.fspath(self._script), part, *self._args]

    def env(self, *, live: bool, **changes: str) -> dict[str, str]:
        """The environment with loading ahead, or of plain JAX."""
        return environment(
            {
                "JAXCACHE_LIVE": "1" if live else "0",
                "JAXCACHE_LIVE_PRELOAD": "1",
                "JAX_PLATFORMS": "cpu",
                "JAX_COMPILATION_CACHE_DIR": str(self.cache),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
                "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
                **changes,
            }
        )

    def fill(self) -> None:
        """Fill the cache, and record what a run loads."""
        for live in (True, True, False):
            self.seconds(live=live)

    def seconds(
        self, *, live: bool, part: str = "all", prefix: tuple[str, ...] = ()
    ) -> tuple[float, float]:
        """The seconds of a run, and those of its loads."""
        command = [*prefix, *self.command(part)]
        done = subprocess.run(
            command, env=self.env(live=live), capture_output=True, text=True, check=True
        )
        seconds, loads = map(float, done.stdout.split()[-2:])
        return seconds, loads

    def pairs(self, number: int, prefix: tuple[str, ...] = ()) -> list[tuple[float, float]]:
        """The seconds of runs with loading ahead and without, in turn."""

        def run(*, live: bool) -> float:
            return self.seconds(live=live, prefix=prefix)[0]

        return [(run(live=True), run(live=False)) for _ in range(number)]

    def half(self, *, live: bool) -> float:
        """The seconds of a run that uses a part of what the last run has recorded."""
        self.seconds(live=True)
        return self.seconds(live=live, part="half")[0]

    def peak_megabytes(self, *, live: bool) -> float:
        """The peak memory of the program."""
        return peak_bytes_of(self.command(), self.env(live=live)) / 1e6

    def loads_share(self) -> float:
        """The part of a plain start that JAX waits for loads."""
        runs = (self.seconds(live=False) for _ in range(3))
        return statistics.median(loads / seconds for seconds, loads in runs)


def measure(setting: Setting) -> Iterator[Row]:
    """Yield the rows."""
    if not _has_layer(setting):
        yield Absent("preload / plain JAX", "jaxcache is not installed beside that jax")
        return
    for number, (name, text, args, package) in enumerate(
        PROGRAMS[:1] if setting.quick else PROGRAMS
    ):
        claim = f"preload / plain JAX: {name}"
        if _lacks(setting, package):
            yield Absent(claim, f"{package} is not installed beside that jax")
        else:
            runs = _Runs(setting, number, text, args)
            runs.fill()
            yield from _measure_one(setting, name, claim, runs)
    sys.path.insert(0, str(_TESTS / "helpers"))
    yield _on_mount(setting)
    yield _from_bucket(setting)


def _measure_one(setting: Setting, name: str, claim: str, runs: _Runs) -> Iterator[Row]:
    share = runs.loads_share()
    label = f"{name}, loads {share:.0%}"
    at_most = _SHORTER if share >= _LOADS_SHARE else _NO_LONGER
    both = runs.pairs(setting.pairs)
    whole = relate(f"{claim}, loads {share:.0%} of it", both, at_most=at_most)
    yield whole.at(_TITLE, label, "the same program")
    pairs = range(setting.pairs)
    half = [(runs.half(live=True), runs.half(live=False)) for _ in pairs]
    part = relate(f"{claim}, a part of the last run", half, at_most=_NO_LONGER)
    yield part.at(_TITLE, label, "a part of it")
    peaks = [(runs.peak_megabytes(live=True), runs.peak_megabytes(live=False)) for _ in pairs]
    memory = relate(f"{claim}, peak memory", peaks, at_most=1.1, unit="MB")
    yield memory.at(_TITLE, label, "peak memory")
    if missing("taskset"):
        yield Absent(f"{claim}, one core", "no taskset here")
        return
    one = runs.pairs(setting.pairs, ("taskset", "-c", "0"))
    yield relate(f"{claim}, one core", one, at_most=_NO_LONGER).at(_TITLE, label, "one core")


def _on_mount(setting: Setting) -> Row:
    """Both on a directory whose requests take 20 ms, as those of a mounted bucket do."""
    name, text, args, _ = PROGRAMS[1]
    claim = f"preload / plain JAX: {name}, on a mount 20 ms away"
    from mount_without_links import can_mount, mounted_without_links

    if not can_mount():
        return Absent(claim, "only root may mount, where there is FUSE")
    runs = _Runs(setting, len(PROGRAMS) + 1, text, args)
    runs.fill()
    mountpoint = runs.directory / "mount"
    mountpoint.mkdir()
    with mounted_without_links(runs.directory / "cache", mountpoint, str(_AWAY_SECONDS)):
        runs.cache = mountpoint
        runs.fill()
        pairs = runs.pairs(setting.pairs)
    return relate(claim, pairs, at_most=_NO_LONGER)


def _from_bucket(setting: Setting) -> Row:
    """An empty machine with a bucket 20 ms away, beside plain JAX on its full directory."""
    name, text, args, _ = PROGRAMS[1]
    claim = f"tier, from an empty directory / plain JAX on a full one: {name}, bucket 20 ms away"
    try:
        from object_server import CREDENTIALS, make_bucket, run_proxy, run_s3_server
    except ImportError as error:
        return Absent(claim, str(error))
    runs = _Runs(setting, len(PROGRAMS), text, args)
    runs.fill()
    with run_s3_server() as server, run_proxy(server.endpoint) as proxy:
        make_bucket(server.endpoint, "team")
        tier = {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": proxy.endpoint,
            "JAXCACHE_LIVE_TIERS": "s3://team/jax",
            "JAXCACHE_LIVE_FLUSH": "60s",
        }

        def run(name: str) -> float:
            directory = str(runs.directory / name)
            env = runs.env(live=True, JAX_COMPILATION_CACHE_DIR=directory, **tier)
            return seconds_of(runs.command(), env)

        run("first")  # compiles, and fills the bucket
        proxy.fault = lambda _: time.sleep(_AWAY_SECONDS)
        plain = runs.env(live=False)
        numbers = range(setting.pairs)
        pairs = [(run(f"new-{n}"), seconds_of(runs.command(), plain)) for n in numbers]
        for number in numbers:
            assert len(list((runs.directory / f"new-{number}").glob("*-cache"))) > 5, "none came"
    return relate(claim, pairs, at_most=1.06)


def _has_layer(setting: Setting) -> bool:
    script = "import sys, jax; jax.devices(); print('jaxcache.live.layer' in sys.modules)"
    env = environment({"JAXCACHE_LIVE": "1", "JAX_PLATFORMS": "cpu"})
    done = subprocess.run(
        [setting.python, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() == "True"


def _lacks(setting: Setting, package: str) -> bool:
    look = [setting.python, "-c", f"import {package}"]
    return subprocess.run(look, capture_output=True, check=False).returncode != 0


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
