"""``ci save`` of one new entry into a shared directory, against ``push`` of the same.

``python -m benchmarks.save`` makes a cache of small entries of which no two have the same payload,
and two directories that have all of them but one. Files are in the page cache.
"""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.make_cache import make_cache
from benchmarks.measure import Row, Setting, compare, jaxcache, run_alone, seconds_of

_ENTRIES = 1_500


def measure(setting: Setting) -> Iterator[Row]:
    """Seconds of each, into a directory of its own."""
    directory = setting.scratch("save")
    cache, count = directory / "cache", setting.count(_ENTRIES)
    make_cache(cache, count, distinct=True)
    new = min(path.name for path in cache.glob("*-cache"))
    saved, pushed = directory / "saved", directory / "pushed"
    for target in (saved, pushed):
        shutil.copytree(cache, target)

    def add(target: Path, *words: str | Path) -> float:
        (target / new).unlink()
        seconds = seconds_of(jaxcache(*words, target, "-C", cache))
        if not (target / new).exists():
            raise RuntimeError(f"{target} did not get the entry")
        return seconds

    yield compare(
        f"`ci save` of one new entry among {count:,} / `push` of it",
        partial(add, saved, "ci", "save"),
        partial(add, pushed, "push"),
        pairs=setting.pairs,
        at_most=1.5,
    )


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
