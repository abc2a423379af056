"""From an empty machine to the first result of a program, by each way to bring the cache there.

``python -m benchmarks.ladder [--python JAX_PYTHON] [--pairs ROUNDS]``; wants jaxcache beside that
jax. A transformer of 24 layers makes its first training step, unrolled and scanned, or answers its
first request as a server; one more program uses a library. Each round goes through all the ways in
turn, each on an empty directory. Buckets are 20 ms away, and so is the mount. The peer is plain JAX
on a full directory. Behind each way stand its phases: what happens before the program, and in the
program the imports, tracing and lowering, loading or compiling, and the rest, as JAX's own events
measure them. Rows of seconds are wall time, from the start of the first command.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ladder_programs import FRAME, PROGRAMS
from benchmarks.measure import (
    Absent,
    Row,
    Setting,
    environment,
    jaxcache,
    missing,
    relate,
    run_alone,
)

_TESTS = Path(__file__).parents[1] / "tests"
_AWAY_SECONDS = 0.02
_FULL = "plain JAX on a full directory"


@dataclass(frozen=True, slots=True)
class _Start:
    """One start: wall seconds of all of it, and its phases."""

    seconds: float
    phases: Mapping[str, float]


class _Ladder:
    """One program, its full cache in every form, and the ways from each to the first result."""

    def __init__(self, setting: Setting, name: str, buckets: "_Buckets | None") -> None:
        self._setting = setting
        self._directory = setting.scratch(name.replace(" ", "-").replace("'", ""))
        library, body = PROGRAMS[name]
        self._script = self._directory / "program.py"
        self._script.write_text(FRAME.format(LIBRARY=library, BODY=body))
        self._buckets = buckets
        self._number = 0
        self._full = self._directory / "full"
        self._url = buckets.make(self._directory.name) if buckets else ""
        self._fill()

    def _fill(self) -> None:
        """Fill a directory through the live layer's settings of keys, and pack it in every form."""
        self._run_program(self._full)
        self._run_program(self._full)  # warms the page cache with jax
        self._command(
            ["tar", "-cf", str(self._directory / "cache.tar"), "-C", str(self._full), "."]
        )
        self._command(jaxcache("export", self._directory / "cache.jxb", "-C", self._full))
        recipe = ["--record", self._directory / "cache.recipe", "--python", self._setting.python]
        other = self._directory / "recorded"
        self._command(jaxcache("warm", *recipe, "-C", other, self._script))
        if self._buckets:
            self._command(jaxcache("push", self._url, "-C", self._full), self._buckets.near)
            # As another machine has done before, whose list of entries the next one fetches ahead.
            tier = {"JAXCACHE_LIVE": "1", "JAXCACHE_LIVE_TIERS": self._url}
            self._run_program(self._empty(), {**self._buckets.near, **tier})

    def _env(self, cache: Path | None, more: Mapping[str, str] | None = None) -> dict[str, str]:
        where = {"JAX_COMPILATION_CACHE_DIR": str(cache)} if cache else {}
        return environment(
            {
                "JAXCACHE_LIVE": "0",
                "JAX_PLATFORMS": "cpu",
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
                "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
                "XDG_CACHE_HOME": str(self._directory / f"xdg-{self._number}"),
                **where,
                **(more or {}),
            }
        )

    def _command(self, words: list[str], more: Mapping[str, str] | None = None) -> None:
        done = subprocess.run(
            words, env=self._env(None, more), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr}")

    def _run_program(
        self,
        cache: Path | None,
        more: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> dict[str, float]:
        words = [*prefix, *([] if prefix else [self._setting.python]), str(self._script)]
        done = subprocess.run(
            words, check=True, env=self._env(cache, more), capture_output=True, text=True
        )
        phases: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return phases

    def _start(
        self,
        *fetch: list[str],
        cache: Path | None = None,
        more: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        bucket: Mapping[str, str] | None = None,
    ) -> _Start:
        """Run commands that bring the cache, then the program."""
        began = time.perf_counter()
        for words in fetch:
            self._command(words, bucket)
        fetched = time.perf_counter()
        phases = self._run_program(cache, more, prefix)
        ended = time.perf_counter()
        program = phases.pop("program")
        inside = sum(phases.values())
        before = {"before": fetched - began} if fetch else {}
        around = {"around": ended - fetched - program} if prefix else {}
        return _Start(ended - began, {**before, **phases, "rest": program - inside, **around})

    def _empty(self) -> Path:
        self._number += 1
        target = self._directory / f"empty-{self._number}"
        target.mkdir()
        return target

    def ways(self) -> dict[str, Callable[[], _Start]]:
        """Every way that this machine has, by what it is called in the table."""
        tar = str(self._directory / "cache.tar")
        bundle = self._directory / "cache.jxb"
        python = ("--python", self._setting.python)

        def unpack() -> _Start:
            target = self._empty()
            return self._start(["tar", "-xf", tar, "-C", str(target)], cache=target)

        def ours(verb: str, *words: str | Path) -> Callable[[], _Start]:
            def run() -> _Start:
                target = self._empty()
                fetch = jaxcache(*verb.split(), *words, "-C", target)
                far = self._buckets.far if self._buckets else None
                return self._start(fetch, cache=target, bucket=far)

            return run

        def through(*words: str | Path) -> Callable[[], _Start]:
            prefix = tuple(jaxcache(*words))
            return lambda: self._start(cache=self._full, prefix=prefix)

        def mounted() -> _Start:
            from mount_without_links import mounted_without_links

            mountpoint = self._empty()
            with mounted_without_links(self._full, mountpoint, str(_AWAY_SECONDS)):
                return self._start(cache=mountpoint)

        ways: dict[str, Callable[[], _Start]] = {
            "plain JAX without a cache": self._start,
            _FULL: lambda: self._start(cache=self._full),
            "`tar x` and plain JAX": unpack,
            "`import` and plain JAX": ours("import", bundle),
            "`ci restore` and plain JAX": ours("ci restore", bundle),
            "`warm` on a full directory": through("warm", *python),
            "`run` on a full directory": through("run", "--", self._setting.python),
            "`compile` of a recipe and plain JAX": ours(
                "compile", self._directory / "cache.recipe", *python, "--portable"
            ),
        }
        if _can_mount():
            ways["plain JAX on a mount 20 ms away"] = mounted
        if self._buckets:
            ways |= self._bucket_ways(self._buckets, ours)
        return ways

    def _bucket_ways(
        self, buckets: "_Buckets", ours: Callable[..., Callable[[], _Start]]
    ) -> dict[str, Callable[[], _Start]]:
        def sync() -> _Start:
            target = self._empty()
            words = ["s5cmd", "sync", f"{self._url}/*", f"{target}/"]
            return self._start(words, cache=target, bucket=buckets.far)

        def live(prefetch: str) -> Callable[[], _Start]:
            more = {
                **buckets.far,
                "JAXCACHE_LIVE": "1",
                "JAXCACHE_LIVE_TIERS": self._url,
                "JAXCACHE_LIVE_FLUSH": "0s",
                "JAXCACHE_LIVE_PREFETCH": prefetch,
            }
            return lambda: self._start(cache=self._empty(), more=more)

        ways = {
            "`pull` and plain JAX": ours("pull", self._url),
            "the live layer with the bucket as tier": live("1"),
            "the live layer where nobody has run the program": live("0"),
        }
        return ways if missing("s5cmd") else {"`s5cmd sync` and plain JAX": sync, **ways}


class _Buckets:
    """A server of buckets, and the same 20 ms away."""

    def __init__(self, near: str, far: str, make: Callable[[str, str], object]) -> None:
        self._endpoint = near
        self._make = make
        self.near = self._variables(near)
        self.far = self._variables(far)

    @staticmethod
    def _variables(endpoint: str) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": endpoint,
            "S3_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def make(self, name: str) -> str:
        """Make a bucket; its URL."""
        self._make(self._endpoint, name)
        return f"s3://{name}"


@contextlib.contextmanager
def _buckets() -> Iterator[_Buckets | None]:
    try:
        from object_server import make_bucket, run_proxy, run_s3_server
    except ImportError:
        yield None
        return
    with run_s3_server() as server, run_proxy(server.endpoint) as proxy:
        proxy.fault = lambda _: time.sleep(_AWAY_SECONDS)
        yield _Buckets(server.endpoint, proxy.endpoint, make_bucket)


def _can_mount() -> bool:
    from mount_without_links import can_mount

    return can_mount()


def measure(setting: Setting) -> Iterator[Row]:
    """Yield a row for each way to start each program, then ours against those that do the same."""
    sys.path.insert(0, str(_TESTS / "helpers"))
    if not setting.has_jax:
        yield Absent("the ladder", "no jax: name an interpreter that has it with --python")
        return
    names = [*PROGRAMS][:1] if setting.quick else [*PROGRAMS]
    if missing("s5cmd"):
        yield Absent("`s5cmd sync` and plain JAX", "no s5cmd here")
    if not _can_mount():
        yield Absent("plain JAX on a mount 20 ms away", "this user may not mount")
    with _buckets() as buckets:
        if buckets is None:
            yield Absent("ways from a bucket", "no moto here")
        for name in names:
            if name == "flax" and not _has(setting, name):
                yield Absent(f"first result, {name}", "that Python has no flax")
                continue
            yield from _rows(name, _Ladder(setting, name, buckets), setting.pairs)


def _rows(program: str, ladder: _Ladder, rounds: int) -> Iterator[Row]:
    """Go through all the ways in turn, as many times as there are rounds."""
    starts: defaultdict[str, list[_Start]] = defaultdict(list)
    for _ in range(rounds):
        for name, way in ladder.ways().items():
            starts[name].append(way())
    full = starts[_FULL]
    for name, some in sorted(starts.items(), key=lambda item: _median(item[1])):
        pairs = [(a.seconds, b.seconds) for a, b in zip(some, full, strict=True)]
        first = relate(f"{program}: {name} ({_shown(some)}) / {_FULL}", pairs)
        yield first.at("First result", name, program)
    for ours, peer, limit in (
        ("`pull` and plain JAX", "`s5cmd sync` and plain JAX", 1.05),
        ("`import` and plain JAX", "`tar x` and plain JAX", 1.05),
        ("`warm` on a full directory", _FULL, None),
        ("the live layer with the bucket as tier", "`s5cmd sync` and plain JAX", 1),
    ):
        if ours in starts and peer in starts:
            pairs = [
                (a.seconds, b.seconds) for a, b in zip(starts[ours], starts[peer], strict=True)
            ]
            more = 0.1 if limit is None else None
            asked = f"≤{limit:g}×" if limit else f"≤{more:g} s more"
            ratio = relate(f"{program}: {ours} / {peer}", pairs, at_most=limit, at_most_more=more)
            yield ratio.at("First result: goals", f"{ours} / {peer}, {asked}", program)


def _median(starts: list[_Start]) -> float:
    return statistics.median(start.seconds for start in starts)


def _shown(starts: list[_Start]) -> str:
    """The medians of the phases, in their order."""
    phases = {p: statistics.median(s.phases[p] for s in starts) for p in starts[0].phases}
    return ", ".join(f"{p} {seconds:.2f}" for p, seconds in phases.items() if seconds >= 0.005)


def _has(setting: Setting, module: str) -> bool:
    probe = [setting.python, "-c", f"import {module}"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
