"""Prune to half, against rm, JAX's own eviction, and ccache's cleanup of as many files.

``python -m benchmarks.prune --python JAX_PYTHON`` makes equal directories, lets JAX's ``LRUCache``
shrink one to half by writing one more entry under a cap, and ``jaxcache prune`` the other, in turn.
The start of JAX is not counted, ours is.
"""

import hashlib
import json
import shutil
import subprocess
import time
from collections import defaultdict
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
_LEVEL = {"at_most": 1.0}
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


def remove_files(directory: Path, names: bytes) -> float:
    """Seconds that the command rm takes for the same files: the floor."""
    started = time.perf_counter()
    subprocess.run(["xargs", "rm", "-f"], input=names, cwd=directory, check=True)
    return time.perf_counter() - started


def measure(setting: Setting) -> Iterator[Row]:
    """Both policies against JAX, then ``lru`` against rm and ccache; each round runs all in turn.

    ccache removes as many files as entries and dates are together.
    """
    count = setting.count(_ENTRIES)
    whole = setting.scratch("prune")
    make_cache(whole, count)
    entries = sorted(whole.glob("*-cache"), key=lambda p: (p.stat().st_mtime_ns, p.name))
    entries_bytes = sum(p.stat().st_size for p in entries)
    oldest = (p.name.removesuffix("cache") for p in entries[: count // 2])
    names = "\n".join(f"{name}{kind}" for name in oldest for kind in ("cache", "atime")).encode()
    # The bound of ours is on the whole directory: dates count, too.
    half = ("--max-size", str(entries_bytes // 2 + 8 * count // 2))
    has_jax, results = setting.has_jax, None
    if not missing("ccache"):
        results = make_results(setting.scratch("results"), 2 * count)
    took: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(setting.pairs):
        for policy in ("lru", "cost"):
            seconds, hold = _on_copy(whole, lambda copy, p=policy: prune(copy, p, *half))
            took[policy].append(seconds)
            took["hold"].append(hold)
        took["rm"].append(_on_copy(whole, lambda copy: remove_files(copy, names)))
        if has_jax:
            evict = lambda copy: evict_with_jax(setting.python, copy, entries_bytes // 2)  # noqa: E731
            took["jax"].append(_on_copy(whole, evict))
        if results:
            took["ccache"].append(_on_copy(results, lambda copy: clean_with_ccache(copy, count)))

    ours = f"`prune --policy {{}}` of {count:,} entries to half"
    claims = (
        ("lru", "rm", f"{ours} / `xargs rm` of the same files", "no rm", {}),
        ("cost", "rm", f"{ours} / `xargs rm` of as many files", "no rm", {}),
        ("lru", "jax", f"{ours} / JAX's eviction", "no jax: name one with --python", _LEVEL),
        ("cost", "jax", f"{ours} / JAX's eviction", "no jax: name one with --python", _LEVEL),
        ("lru", "ccache", f"{ours} / `ccache -c` of {2 * count:,} files", "no ccache", {}),
    )
    for policy, peer, claim, why, goal in claims:
        if took[peer]:
            pairs = list(zip(took[policy], took[peer], strict=True))
            yield relate(claim.format(policy), pairs, **goal)
        else:
            yield Absent(claim.format(policy), why)
    if took["jax"]:
        claim = f"the same: JAX's lock held at a stretch by `prune` ({count:,}) / by JAX's eviction"
        theirs = [seconds for seconds in took["jax"] for _ in range(2)]
        yield relate(claim, list(zip(took["hold"], theirs, strict=True)), ours_at_most=0.05)


def _on_copy(whole: Path, act: Callable[[Path], _T]) -> _T:
    copy = whole.with_name("copy")
    subprocess.run(["cp", "-a", whole, copy], check=True)
    try:
        return act(copy)
    finally:
        shutil.rmtree(copy)


def make_results(directory: Path, count: int) -> Path:
    """Fill a cache of ccache with results."""
    for first in _LEVELS:
        for second in _LEVELS:
            (directory / first / second).mkdir(parents=True)
    for number in range(count):
        digest = hashlib.sha256(number.to_bytes(8, "big")).hexdigest()
        (directory / digest[0] / digest[1] / f"{digest[2:34]}R").write_bytes(bytes(_FILE_BYTES))
    return directory


def clean_with_ccache(copy: Path, most: int) -> float:
    """Seconds that ccache takes to remove half of its results."""
    env = {"CCACHE_DIR": str(copy), "CCACHE_MAXFILES": str(most), "CCACHE_MAXSIZE": "0"}
    seconds = seconds_of(["ccache", "-c"], env)
    left = sum(1 for _ in copy.glob("?/?/*R"))
    if not 0.3 * most < left < 1.2 * most:
        raise RuntimeError(f"ccache left {left} of {2 * most} files, where {most} may stay")
    return seconds


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
