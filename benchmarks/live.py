"""The live layer beside plain JAX: writes under a cap, hits, the start, and a bucket's prefetch.

``peer`` is JAX's own ``LRUCache`` of the same Python, taken from below the layer. Both get the
same directories, copied, and the same entries.
"""

import json
import os
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
    parser,
    print_rows,
    relate,
    seconds_of,
)

_TESTS = Path(__file__).parents[1] / "tests"

#: Fills a directory and prints the seconds per write of the layer and of JAX.
WRITES = """
import json, os, random, sys, time
import jax
jax.devices()
from jax._src import compilation_cache as cc
entries, directory, ours, theirs = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
live, plain = cc.LRUCache, cc.LRUCache.__mro__[1]
value = cc.compress_executable(b"\\0\\0\\0\\1" + random.randbytes(3000))
cap = entries * len(value)
told = {"floor": 0.0}
for name, cache, writes in (("ours", live, ours), ("peer", plain, theirs)):
    path = os.path.join(directory, name)
    os.makedirs(path)
    now = time.time_ns().to_bytes(8, "little")
    for n in range(entries):
        key = "jit_filled-%064x" % n
        for suffix, data in (("-cache", value), ("-atime", now)):
            with open(os.path.join(path, key + suffix), "wb") as file:
                file.write(data)
    made = cache(path, max_size=cap)
    made.put("jit_first-%064x" % 0, value)
    layer = getattr(cache, "jaxcache_live", None)
    if layer:
        layer.background.finish(60)
    os.sync()  # what was filled in must not be written back while others are timed
    told[name] = 0.0
    for n in range(writes):
        started = time.perf_counter()
        made.put("jit_new-%064x" % n, value)
        told[name] += (time.perf_counter() - started) / writes
        if not layer:
            continue
        # The floor: the two files of an entry, each written whole, and no more. In turn, because
        # a file system takes longer to make a file just after many were removed.
        started = time.perf_counter()
        for kind, data in (("atime", now), ("cache", value)):
            with open(os.path.join(path, "temporary-%d" % n), "xb", buffering=0) as file:
                file.write(data)
            os.replace(file.name, os.path.join(path, "jit_bare-%064x-%s" % (n, kind)))
        told["floor"] += (time.perf_counter() - started) / writes
print(json.dumps(told))
"""
#: Prints the seconds of one hit, with its decompression, of the layer and of JAX.
HITS = """
import json, os, random, sys, time
import jax
jax.devices()
from jax._src import compilation_cache as cc
directory = sys.argv[1]
live, plain = cc.LRUCache(directory, max_size=-1), cc.LRUCache.__mro__[1](directory, max_size=-1)
plain_decompress = cc.decompress_executable.__wrapped__
content = b"\\0\\0\\0\\1" + b"".join(random.randbytes(64) * 12 for _ in range(2000))
key = "jit_hit-" + "0" * 64
live.put(key, cc.compress_executable(content))
told = {"ours": [], "peer": []}
for n in range(300):
    for name, cache, decode in (
        ("ours", live, cc.decompress_executable), ("peer", plain, plain_decompress)
    ):
        started = time.perf_counter()
        value = cache.get(key)
        assert len(decode(value)) == len(content)
        told[name].append(time.perf_counter() - started)
print(json.dumps({name: sorted(times)[len(times) // 2] for name, times in told.items()}))
"""
#: Prints the processor seconds of ``enable()``; Python's own garbage collection is not ours.
ENABLE = """
import gc, json, sys, time
import jax
import jaxcache
gc.disable()
started = time.process_time()
jaxcache.enable(sys.argv[1])
print(json.dumps({"seconds": time.process_time() - started}))
"""
START = """
import json, time
import jax
started = time.process_time()
jax.devices()
print(json.dumps({"seconds": time.process_time() - started}))
"""


def ask(setting: Setting, script: str, *args: object, live: str = "1") -> dict[str, float]:
    """Run a script in the Python that has jax."""
    env = environment({"JAXCACHE_LIVE": live, "JAX_PLATFORMS": "cpu"})
    done = subprocess.run(
        [setting.python, "-c", script, *map(str, args)],
        env=env,
        cwd=setting.directory,
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def measure(setting: Setting) -> Iterator[Row]:
    """Yield the rows."""
    if not setting.has_jax:
        yield Absent("the live layer / plain JAX", "no jax")
        return
    script = "import sys, jax; jax.devices(); print('jaxcache.live.layer' in sys.modules)"
    env = environment({"JAXCACHE_LIVE": "1", "JAX_PLATFORMS": "cpu"})
    command = [setting.python, "-c", script]
    asked = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    if asked.stdout.strip() != "True":
        yield Absent("the live layer / plain JAX", "jaxcache is not installed beside that jax")
        return
    pairs = range(setting.pairs)
    many, few = setting.count(10_000), setting.count(1_000)

    def directory(name: str) -> str:
        return os.fspath(setting.scratch(name))

    told = [ask(setting, WRITES, many, directory(f"writes-{n}"), 1000, 10) for n in pairs]
    yield relate(
        f"JAX / live layer: a write, cap full at {many:,} entries",
        [(t["peer"], t["ours"]) for t in told],
        at_least=200,
    )
    large = setting.count(100_000)
    measured, floor = [], []
    for n in pairs:
        far = ask(setting, WRITES, large, directory(f"large-{n}"), 1000, 0)
        near = ask(setting, WRITES, few, directory(f"small-{n}"), 1000, 0)
        measured.append((1000 * far["ours"], 1000 * near["ours"]))
        floor.append((1000 * far["ours"], 1000 * far["floor"]))
    yield relate(
        f"live layer: a write at {large:,} / at {few:,} entries", measured, at_most=1, unit="ms"
    )
    claim = f"live layer / its two files written and renamed, at {large:,} entries"
    yield relate(claim, floor, at_most=1.5, unit="ms")
    told = [ask(setting, HITS, directory(f"hits-{n}")) for n in pairs]
    yield relate(
        "live layer / JAX: a hit of 1.5 MB, decompressed",
        [(1000 * t["ours"], 1000 * t["peer"]) for t in told],
        at_most_more=0.15,
        unit="ms",
    )
    started = [
        (1000 * ask(setting, START)["seconds"], 1000 * ask(setting, START, live="0")["seconds"])
        for _ in range(4 * setting.pairs)
    ]
    claim = "live layer on / off: processor time of jax.devices()"
    yield relate(claim, started, at_most_more=5, unit="ms")
    cost = [
        1000 * ask(setting, ENABLE, directory(f"enable-{n}"), live="")["seconds"] for n in range(9)
    ]
    yield relate(
        "enable() / nothing, beyond importing jax: processor time",
        [(each, 0.001) for each in cost],
        ours_at_most=5,
        unit="ms",
    )
    yield _from_bucket(setting)


def _from_bucket(setting: Setting) -> Row:
    """The example program: prefetched from a bucket 20 ms away, and from its local directory."""
    claim = "live layer: the example from a bucket 20 ms away / from its own directory"
    sys.path.insert(0, str(_TESTS / "helpers"))
    try:
        from object_server import CREDENTIALS, make_bucket, run_proxy, run_s3_server
    except ImportError as error:
        return Absent(claim, str(error))
    directory = setting.scratch("bucket")
    with run_s3_server() as server, run_proxy(server.endpoint) as proxy:
        make_bucket(server.endpoint, "team")

        def run(name: str, tiers: str = "") -> float:
            env = {
                **CREDENTIALS,
                "AWS_ENDPOINT_URL": proxy.endpoint,
                "JAXCACHE_LIVE": "1",
                "JAXCACHE_LIVE_TIERS": tiers,
                "JAXCACHE_LIVE_FLUSH": "60s",
                "JAX_PLATFORMS": "cpu",
                "JAX_COMPILATION_CACHE_DIR": str(directory / name),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
            }
            return seconds_of([setting.python, str(_TESTS.parent / "examples" / "train.py")], env)

        run("own", "s3://team/jax")  # compiles, and fills the bucket
        proxy.fault = lambda _: time.sleep(0.02)
        pairs = [(run(f"new-{n}", "s3://team/jax"), run("own")) for n in range(setting.pairs)]
        for n in range(setting.pairs):
            assert len(list((directory / f"new-{n}").glob("*-cache"))) > 5, "nothing came"
    return relate(claim, pairs, at_most=1.1)


def main() -> None:
    """Print the table."""
    import tempfile

    options = parser(__doc__ or "").parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        print_rows(measure(Setting(Path(directory), options.python, options.pairs, options.quick)))


if __name__ == "__main__":
    main()
