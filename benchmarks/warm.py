"""What ``jaxcache warm`` adds to a program: the warmed script against the bare one, in turn.

``python -m benchmarks.warm --python JAX_PYTHON`` runs ``examples/train.py`` with the same cache
settings on both sides: cold, each time into an empty directory, and hot, each time from one that
the other rounds have filled.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Absent, Row, Setting, compare, jaxcache, run_alone, seconds_of

EXAMPLE = str(Path(__file__).parents[1] / "examples" / "train.py")
_SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def run_with_cache(args: list[str], cache: str | Path) -> float:
    """Wall seconds of a command that has its cache there, and caches everything."""
    return seconds_of(args, {**_SETTINGS, "JAX_COMPILATION_CACHE_DIR": str(cache)})


def measure(setting: Setting) -> Iterator[Row]:
    """Hot first, which fills the page cache with jax; cold takes longest."""
    claims = [f"`warm` of the example, {kind} / the bare script" for kind in ("hot", "cold")]
    if not setting.has_jax:
        for claim in claims:
            yield Absent(claim, "no jax: name an interpreter that has it with --python")
        return
    bare = [setting.python, EXAMPLE]
    ours = jaxcache("warm", "--python", setting.python, EXAMPLE)
    scratch = setting.scratch("warm")
    hot = scratch / "hot"

    def run_cold(args: list[str]) -> float:
        with tempfile.TemporaryDirectory(dir=scratch) as cache:
            return run_with_cache(args, cache)

    yield compare(
        claims[0],
        lambda: run_with_cache(ours, hot),
        lambda: run_with_cache(bare, hot),
        pairs=setting.pairs,
        at_most_more=0.1,
    )
    yield compare(
        claims[1],
        lambda: run_cold(ours),
        lambda: run_cold(bare),
        pairs=setting.long_pairs,
        at_most=1.01,
        warm_up=False,
    )


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
