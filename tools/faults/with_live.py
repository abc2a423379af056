"""Kill a program with the live layer at its writing calls, and let calls of it fail.

``python -m tools.faults.with_live [N]`` makes N kills and N faults with the Python that runs it, which
has jax and jaxcache. The calls are those of the program and of the process that serves its tier.
"""

import atexit
import errno
import json
import os
import runpy
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.faults.intercept import (
    Call,
    Decide,
    Verdict,
    adopt_orphans,
    go_on,
    start,
    wait_for_orphans,
    why_not,
)

PROGRAM = Path(__file__).parents[2] / "tests" / "conformance" / "compile_program.py"
#: Entries that no program uses, with which the cache exceeds its limit.
_BALLAST = "jit_ballast"
_BALLAST_BYTES = 150_000
_LIMIT_BYTES = 1_500_000
_TAKES_ROOM = frozenset({"write", "pwrite64", "writev", "open", "openat", "mkdirat", "ftruncate"})
#: Of so many trials one is looked at by plain JAX, too.
_PLAIN_EVERY = 5
_FAULTS = ("EIO", "EACCES", "full")


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended."""

    code: int
    found: dict[str, Any]
    stderr: str
    calls: int


class Lab:
    """A cache that exceeds its limit and a tier, each with entries that the other lacks."""

    def __init__(self, directory: Path) -> None:
        self.world = directory / "world"
        self.cache = self.world / "cache"
        self.tier = self.world / "tier"
        self._template = directory / "template"
        self._looks = 0
        for name in ("cache", "tier", "home"):
            (self.world / name).mkdir(parents=True)
        os.environ.update(
            HOME=str(self.world / "home"),
            JAX_PLATFORMS="cpu",
            JAX_COMPILATION_CACHE_DIR=str(self.cache),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
            JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
            JAXCACHE_LIVE_TIERS=str(self.tier),
            JAXCACHE_LIVE_MAX_SIZE=str(_LIMIT_BYTES),
            JAXCACHE_LIVE_POLICY="lru",
            JAXCACHE_LIVE_SINGLE_FLIGHT="5s",
        )
        warnings.filterwarnings("ignore", message=r"os\.fork")
        import jax  # before any fork, so that a trial need not

        self._compress = __import__("jax._src.compilation_cache", fromlist=["x"])
        assert jax.__version__
        cold = self.run()
        assert cold.code == 0, cold.stderr
        self.results = cold.found["results"]
        self.keys = sorted(p.name for p in self.cache.glob("*-cache"))
        assert len(self.keys) > 4, self.keys
        assert sorted(p.name for p in self.tier.glob("*-cache")) == self.keys, cold.stderr
        self._arrange()
        shutil.copytree(self.world, self._template)
        self.before = self.look()

    def _arrange(self) -> None:
        """Take entries from the cache, from the tier, from both, and damage some."""
        from jaxcache.core.names import spool_name

        shutil.rmtree(self.cache / ".jaxcache")
        spool = self.cache / ".jaxcache" / "live" / "spool" / spool_name(str(self.tier))
        spool.mkdir(parents=True)
        for number, name in enumerate(self.keys):
            here, there = self.cache / name, self.tier / name
            if number % 5 in (1, 3):
                here.unlink()
            if number % 5 in (2, 3):
                there.unlink()
            if number % 5 == 2:
                (spool / name.removesuffix("-cache")).touch()
            if number % 5 == 4:
                os.truncate(here, here.stat().st_size // 2)
        for number in range(12):
            content = b"\0\0\0\1" + os.urandom(_BALLAST_BYTES)
            path = self.cache / f"{_BALLAST}-{number:064x}-cache"
            path.write_bytes(self._compress.compress_executable(content))
            os.utime(path, (1e9, 1e9))

    def reset(self) -> None:
        """Put everything back to where it was."""
        shutil.rmtree(self.world)
        shutil.copytree(self._template, self.world)

    def run(self, decide: Decide = go_on, *, live: bool = True) -> Ran:
        """Run the program in a forked process."""
        out = os.memfd_create("out")
        errors = os.memfd_create("errors")

        def prepare() -> None:
            os.environ["JAXCACHE_LIVE"] = "1" if live else "0"
            os.chdir(self.world)
            os.dup2(out, 1)
            os.dup2(errors, 2)

        process = start(_use_cache, decide, prepare=prepare, is_family=True)
        code = process.run(timeout_seconds=240)
        assert code is not None
        wait_for_orphans()  # whoever serves the tier ends a little later
        printed = os.pread(out, 1 << 20, 0).decode().splitlines()
        stderr = os.pread(errors, 1 << 20, 0).decode(errors="replace")
        os.close(out)
        os.close(errors)
        found = json.loads(printed[-1]) if printed else {}
        return Ran(code, found, stderr, len(process.calls))

    def look(self) -> dict[str, bytes]:
        """The entries of the cache and of the tier, by path."""
        paths = (*self.cache.glob("*-cache"), *self.tier.glob("*-cache"))
        return {str(path.relative_to(self.world)): path.read_bytes() for path in paths}

    def lost(self) -> Iterator[str]:
        """What no fault may do to the entries."""
        now = self.look()
        quarantine = self.cache / ".jaxcache" / "quarantine"
        moved = {path.name for path in quarantine.rglob("*-cache")}
        for name, data in now.items():
            if data != self.before.get(name) and not is_sealed(data):
                yield f"{name} is neither as it was nor whole"
        for name, data in self.before.items():
            base = os.path.basename(name)
            is_needed = _BALLAST not in base and (is_sealed(data) or name.startswith("tier"))
            if is_needed and name not in now and base not in moved:
                yield f"{name} is lost"
        for segment in (self.cache / ".jaxcache" / "ledger").glob("*.jsonl"):
            for line in segment.read_bytes().splitlines():
                json.loads(line)

    def waits_or_is_up(self) -> Iterator[str]:
        """Entries of the program that the tier lacks and no marker names."""
        spool = self.cache / ".jaxcache" / "live" / "spool"
        waiting = {path.name for path in spool.rglob("jit_*")}
        for name in self.keys:
            here, there = self.cache / name, self.tier / name
            if here.exists() and not there.exists() and name.removesuffix("-cache") not in waiting:
                yield f"{name} will never be in the tier"

    def later(self) -> Iterator[str]:
        """What must hold after the next run, without a fault, and of plain JAX over its files."""
        again = self.run()
        yield from self._is_right("run again, it", again)
        yield from self.lost()
        for directory in (self.cache, self.tier):
            for name in self.keys:
                if not (directory / name).exists():
                    yield f"run again, {directory.name} has no {name}"
        size_bytes = sum(path.stat().st_size for path in self.cache.glob("*-cache"))
        if size_bytes > _LIMIT_BYTES:
            yield f"run again, the cache has {size_bytes} bytes"
        self._looks += 1
        if self._looks % _PLAIN_EVERY == 0:
            yield from self._plain()

    def _plain(self) -> Iterator[str]:
        plain = self.run(live=False)
        yield from self._is_right("plain JAX", plain)
        if plain.found and plain.found["hits"] != plain.found["requests"]:
            yield f"plain JAX has {plain.found['hits']} hits of {plain.found['requests']}"

    def _is_right(self, who: str, ran: Ran) -> Iterator[str]:
        warned = ran.found.get("warnings")
        if (ran.code, ran.found.get("results"), warned) != (0, self.results, []):
            yield f"{who} ends with {ran.code}, {ran.found}: {ran.stderr[-400:]}"
        if "Traceback" in ran.stderr:
            yield f"{who} prints {ran.stderr[-400:]}"

    def kill(self, number: int) -> list[str]:
        """Kill whoever makes a call."""
        self.reset()
        ran = self.run(lambda call: Verdict.KILL if call.number == number else Verdict.GO_ON)
        broken = [*self.lost(), *self.waits_or_is_up(), *self.later()]
        if ran.code not in (0, -9):
            broken.append(f"it ends with {ran.code}: {ran.stderr[-400:]}")
        return broken

    def fail(self, number: int, kind: str) -> list[str]:
        """Let a call fail, or all from it on that take room; the program must not notice."""
        self.reset()

        def decide(call: Call) -> Verdict | int:
            if kind == "full":
                is_full = call.number >= number and call.name in _TAKES_ROOM
                return errno.ENOSPC if is_full else Verdict.GO_ON
            return getattr(errno, kind) if call.number == number else Verdict.GO_ON

        ran = self.run(decide)
        broken = [*self.lost()]
        if (ran.code, ran.found.get("results")) != (0, self.results) or "Traceback" in ran.stderr:
            broken.append(f"it ends with {ran.code}, {ran.found}: {ran.stderr[-400:]}")
        return [*broken, *self.later()]


def is_sealed(data: bytes) -> bool:
    """Whether an entry is whole, which its checksum proves."""
    from jaxcache.live.frame import DamagedEntryError, decode

    try:
        return decode(data).sealed
    except DamagedEntryError:
        return False


def _use_cache() -> int:
    """Run the program to its end in this process."""
    runpy.run_path(str(PROGRAM))
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return 0


def main() -> int:
    """Run; 1 if a promise was broken, 77 if nothing can be run."""
    wanted = int((*sys.argv[1:], "50")[0])
    if reason := why_not():
        print(f"skipped: {reason}")
        return 77
    adopt_orphans()
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    failed = 0
    lab = Lab(directory)
    lab.reset()
    calls = lab.run().calls
    print(f"an undisturbed run makes {calls} calls that write", flush=True)
    trials = [
        (kind, 1 + (2 * i + 1) * calls // (2 * wanted))
        for i in range(wanted)
        for kind in ("kill", _FAULTS[i % len(_FAULTS)])
    ]
    for done, (kind, number) in enumerate(trials, 1):
        broken = lab.kill(number) if kind == "kill" else lab.fail(number, kind)
        if broken:
            failed += 1
            print(f"FAILED {kind} at call {number}", *broken[:6], sep="\n    ", flush=True)
        if done % 50 == 0:
            print(f"{done} tried, {failed} failed", flush=True)
    shutil.rmtree(directory)
    print(f"{len(trials)} tried, {failed} failed, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
