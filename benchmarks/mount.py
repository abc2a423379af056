"""A mounted bucket as JAX's cache directory, next to a tier and to ``pull``; all 20 ms away.

``python -m benchmarks.mount`` mounts a directory through ``/dev/fuse``, which only root may do, and
waits 20 ms wherever a mount of a bucket sends a request (``mount_without_links.py`` of
``tests/helpers``). The bucket of the tier is moto's server, each of whose answers waits as long.
The program is the example at sixty lengths, with every module in the cache. Each start has a local
directory of its own.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import Absent, Row, Setting, jaxcache, relate, run_alone, seconds_of

_TESTS = Path(__file__).parents[1] / "tests"
_DELAY_SECONDS = 0.02
_LENGTHS = 60
_CLAIM = "a mount 20 ms away"


def measure(setting: Setting) -> Iterator[Row]:
    """Starts with a full cache behind each way, in turn."""
    sys.path.insert(0, str(_TESTS / "helpers"))
    try:
        from mount_without_links import can_mount, mounted_without_links
        from object_server import CREDENTIALS, make_bucket, run_proxy, run_s3_server
    except ImportError as error:
        yield Absent(_CLAIM, str(error))
        return
    if not can_mount():
        yield Absent(_CLAIM, "only root may mount, where there is FUSE")
        return
    directory = setting.scratch("mount")
    (directory / "mounted").mkdir()
    (directory / "behind").mkdir()
    with (
        run_s3_server() as server,
        run_proxy(server.endpoint) as proxy,
        mounted_without_links(
            directory / "behind", directory / "mounted", str(_DELAY_SECONDS)
        ) as mounted,
    ):
        make_bucket(server.endpoint, "team")
        starts = _Starts(setting, directory, CREDENTIALS | {"AWS_ENDPOINT_URL": proxy.endpoint})
        starts.plain(directory / "own")  # compiles
        shutil.copytree(directory / "own", directory / "behind", dirs_exist_ok=True)
        starts.push(directory / "own")
        proxy.fault = lambda _: time.sleep(_DELAY_SECONDS)
        sides: dict[str, Callable[[], float]] = {
            "own": lambda: starts.plain(directory / "own"),
            "mount": lambda: starts.plain(mounted),
            "tier": starts.tier,
            "pull": starts.pull,
        }
        rounds = [{name: start() for name, start in sides.items()} for _ in range(setting.pairs)]
    modules = len(list((directory / "own").glob("*-cache")))

    def row(claim: str, ours: str, peer: str) -> Row:
        return relate(f"{claim}, {modules} modules", [(r[ours], r[peer]) for r in rounds])

    yield row("plain JAX: from a mount 20 ms away / from its own directory", "mount", "own")
    yield row("live layer with a tier 20 ms away / plain JAX from the mount", "tier", "mount")
    yield row("`pull` from 20 ms away, then plain JAX / from the mount", "pull", "mount")


class _Starts:
    """The program, started with its cache in different places; each returns its seconds."""

    def __init__(self, setting: Setting, directory: Path, access: dict[str, str]) -> None:
        lengths = range(1, setting.count(_LENGTHS) + 1)
        script = str(_TESTS.parent / "examples" / "train.py")
        options = ["--layers", "2", "--width", "64", "--lengths", *map(str, lengths)]
        self._command = [setting.python, script, *options]
        self._directory = directory
        self._access = access
        self._number = 0

    def plain(self, cache: Path) -> float:
        return self._run(cache, {"JAXCACHE_LIVE": "0"})

    def tier(self) -> float:
        return self._run(
            self._empty(), {"JAXCACHE_LIVE": "1", "JAXCACHE_LIVE_TIERS": "s3://team/jax:ro"}
        )

    def pull(self) -> float:
        cache = self._empty()
        pulled = seconds_of(jaxcache("pull", "s3://team/jax", "-C", cache), self._access)
        return pulled + self.plain(cache)

    def push(self, cache: Path) -> None:
        seconds_of(jaxcache("push", "s3://team/jax", "-C", cache), self._access)

    def _empty(self) -> Path:
        self._number += 1
        return self._directory / f"empty-{self._number}"

    def _run(self, cache: Path, changes: dict[str, str]) -> float:
        env = {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
        }
        return seconds_of(self._command, self._access | env | changes)


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
