"""The first and the second ``stats`` of a large cache, against find and JAX's own eviction scan.

``python -m benchmarks.listing --python JAX_PYTHON``. The page cache is warm.
"""

from collections.abc import Iterator

from benchmarks.make_cache import make_cache, settle
from benchmarks.measure import (
    Absent,
    Row,
    Setting,
    command,
    compare,
    jaxcache,
    peak_bytes_of,
    relate,
    reported,
    run_alone,
)

_ENTRIES, _LISTED = 100_000, 10_000
#: A place that cannot be written: nothing is remembered from one run to the next.
_FORGET = {"XDG_CACHE_HOME": "/dev/null"}
#: JAX's own pass over a directory, as every write under a size cap makes it.
_JAX_SCAN = """
import sys, time
from jax._src.lru_cache import LRUCache
cache = LRUCache(sys.argv[1], max_size=10**15)
started = time.perf_counter()
cache._evict_if_needed()
print(time.perf_counter() - started)
"""


def measure(setting: Setting) -> Iterator[Row]:
    """Nothing remembered first, then with the index."""
    count = setting.count(_ENTRIES)
    big = setting.scratch("listing")
    make_cache(big, count)
    settle(big)
    stats = jaxcache("stats", "-C", big)
    first, second = command(stats, _FORGET), command(stats)
    some = ["find", str(big), "-printf", "%s %T@\\n"]
    find = command(some)
    label = f"`stats` of {count:,} entries"
    yield compare(f"first {label} / `find -printf '%s %T@'`", first, find, pairs=setting.pairs)
    limited = command(jaxcache("ls", "--limit", "20", "--sort", "size", "-C", big), _FORGET)
    claim = f"first `ls --limit 20 --sort size` of {count:,} entries / `find -printf '%s %T@'`"
    yield compare(claim, limited, find, pairs=setting.pairs)
    few = setting.scratch("listing-few")
    make_cache(few, count // 10)
    listed = ["ls", "-l"]
    per_entry = [
        (peak_bytes_of([*args, str(big)], _FORGET) - peak_bytes_of([*args, str(few)], _FORGET))
        / (count - count // 10)
        for args in (jaxcache("stats", "-C"), listed)
    ]
    claim = f"memory of the first `stats` of {count:,}, per entry / of `ls -l`"
    yield relate(claim, [(per_entry[0], per_entry[1])], unit="bytes")
    claims = [
        (f"first {label} / JAX's eviction scan", first, 2.0),
        (f"second {label} / JAX's eviction scan", second, None),
    ]
    for claim, ours, at_most in claims:
        if setting.has_jax:
            scan = reported([setting.python, "-W", "ignore", "-c", _JAX_SCAN, str(big)])
            yield compare(claim, ours, scan, pairs=setting.pairs, at_most=at_most)
        else:
            yield Absent(claim, "no jax: name an interpreter that has it with --python")
    small = setting.scratch("listing-long")
    listed = setting.count(_LISTED)
    make_cache(small, listed)
    settle(small)
    long = jaxcache("ls", "--long", "-C", small)
    yield compare(
        f"second `ls --long` of {listed:,} entries / the first",
        command(long),
        command(long, _FORGET),
        pairs=setting.pairs,
        at_most=0.2,
    )


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
