"""Prune to half, against JAX's own eviction, and ccache's cleanup of as many files.

``python -m benchmarks.prune --python JAX_PYTHON`` makes equal directories, lets JAX's ``LRUCache``
shrink one to half by writing one more entry under a cap, and ``jaxcache prune`` the other, in turn.
The start of JAX is not counted, ours is.
"""

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from benchmarks.make_cache import make_cache
from benchmarks.measure import (
    Absent,
    Row,
    Setting,
    environment,
    jaxcache,
    missing,
    relate,
    run_alone,
    seconds_of,
)

_T = TypeVar("_T")
_ENTRIES = 50_000
_FILE_BYTES = 4_096
_LEVELS = "0123456789abcdef"
_JAX_EVICTS = """
import sys, time
from jax._src.lru_cache import LRUCache
cache = LRUCache(sys.argv[1], max_size=int(sys.argv[2]))
started = time.perf_counter()
cache.put("jit_new-" + "0" * 64, b"x" * 1000)
print(time.perf_counter() - started)
"""


def evict_with_jax(python: str, directory: Path, cap_bytes: int) -> float:
    """Seconds that JAX's eviction takes inside a running process."""
    done = subprocess.run(
        [python, "-W", "ignore", "-c", _JAX_EVICTS, str(directory), str(cap_bytes)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def prune(directory: Path, policy: str, *bound: str) -> tuple[float, float]:
    """Seconds of the whole command, and its longest hold of JAX's lock."""
    started = time.perf_counter()
    done = subprocess.run(
        jaxcache(
            "prune", "-C", directory, *bound, "--policy", policy, "--grace", "0s", "--yes", "--json"
        ),
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    seconds = time.perf_counter() - started
    return seconds, json.loads(done.stdout)["longest_lock_seconds"]


def measure(setting: Setting) -> Iterator[Row]:
    """Both policies against JAX, then ``lru`` against ccache."""
    count = setting.count(_ENTRIES)
    whole = setting.scratch("prune")
    make_cache(whole, count)
    entries_bytes = sum(p.stat().st_size for p in whole.glob("*-cache"))
    # The bound of ours is on the whole directory: dates count, too.
    half = ("--max-size", str(entries_bytes // 2 + 8 * count // 2))
    holds: list[tuple[float, float]] = []
    for policy in ("lru", "cost"):
        claim = f"`prune --policy {policy}` of {count:,} entries to half / JAX's eviction"
        if not setting.has_jax:
            yield Absent(claim, "no jax: name an interpreter that has it with --python")
            continue
        measured = []
        for _ in range(setting.pairs):
            ours, hold = _on_copy(whole, lambda copy, p=policy: prune(copy, p, *half))
            theirs = _on_copy(
                whole, lambda copy: evict_with_jax(setting.python, copy, entries_bytes // 2)
            )
            measured.append((ours, theirs))
            holds.append((hold, theirs))
        yield relate(claim, measured, at_most=0.333)
    if holds:
        claim = f"the same: JAX's lock held at a stretch by `prune` ({count:,}) / by JAX's eviction"
        yield relate(claim, holds, ours_at_most=0.05)
    yield _against_ccache(setting, whole, count)


def _on_copy(whole: Path, act: Callable[[Path], _T]) -> _T:
    copy = whole.with_name("copy")
    shutil.copytree(whole, copy)
    try:
        return act(copy)
    finally:
        shutil.rmtree(copy)


def _against_ccache(setting: Setting, whole: Path, count: int) -> Row:
    """As many files as entries and dates together; half of them go."""
    claim = (
        f"`prune --policy lru` of {count:,} entries to half / `ccache -c` of {2 * count:,} files"
    )
    if missing("ccache"):
        return Absent(claim, "no ccache here")
    results = setting.scratch("results")
    for first in _LEVELS:
        for second in _LEVELS:
            (results / first / second).mkdir(parents=True)
    for number in range(2 * count):
        digest = hashlib.sha256(number.to_bytes(8, "big")).hexdigest()
        place = results / digest[0] / digest[1] / f"{digest[2:34]}R"
        place.write_bytes(bytes(_FILE_BYTES))

    def clean(copy: Path) -> float:
        env = {"CCACHE_DIR": str(copy), "CCACHE_MAXFILES": str(count), "CCACHE_MAXSIZE": "0"}
        seconds = seconds_of(["ccache", "-c"], env)
        left = sum(1 for _ in copy.glob("?/?/*R"))
        if not 0.3 * count < left < 1.2 * count:
            raise RuntimeError(f"ccache left {left} of {2 * count} files, where {count} may stay")
        return seconds

    entries = ("--max-entries", str(count // 2))
    return relate(
        claim,
        [
            (
                _on_copy(whole, lambda copy: prune(copy, "lru", *entries))[0],
                _on_copy(results, clean),
            )
            for _ in range(setting.pairs)
        ],
    )


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
