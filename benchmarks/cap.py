"""What JAX's own size cap costs at each write: ``python -m benchmarks.cap PYTHON...``.

Each Python has jax and filelock. Prints the milliseconds of one write into caches of 1,000 and
10,000 entries in each directory: the least of three means of five writes, without a cap and with
one. With one JAX scans the directory under its lock (``_evict_if_needed`` of
``jax/_src/lru_cache.py``), through ``etils.epath`` where that is installed.
"""

import argparse
import json
import subprocess
import tempfile

#: Fills a directory as JAX does, and times writes.
_WRITES = """
import json, os, sys, time
from importlib.util import find_spec
from jax import __version__
from jax._src.lru_cache import LRUCache
directory, entries = sys.argv[1], int(sys.argv[2])
for n in range(entries):
    for kind, data in (("cache", b"x" * 2000), ("atime", time.time_ns().to_bytes(8, "little"))):
        with open(os.path.join(directory, "jit_old-%064x-%s" % (n, kind)), "wb") as file:
            file.write(data)
told = {"jax": __version__, "etils": find_spec("etils") is not None}
for name, cap in (("capped", 1 << 40), ("uncapped", -1)):
    cache = LRUCache(directory, max_size=cap)
    times = []
    for run in range(3):
        started = time.perf_counter()
        for n in range(5):
            cache.put("jit_%s-%064x" % (name, 5 * run + n), b"x" * 2000)
        times.append((time.perf_counter() - started) / 5)
    told[name] = 1000 * min(times)
print(json.dumps(told))
"""


def main() -> None:
    """Print one row for each Python, directory and number of entries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--directory", action="append", help="default: /tmp and /dev/shm")
    parser.add_argument("--entries", type=int, nargs="+", default=[1_000, 10_000])
    chosen = parser.parse_args()
    print("| jax | etils | directory | entries | no cap | a cap |\n|---|---|---|---|---|---|")
    for python in chosen.pythons:
        for place in chosen.directory or ["/tmp", "/dev/shm"]:
            for entries in chosen.entries:
                with tempfile.TemporaryDirectory(dir=place) as directory:
                    line = [python, "-c", _WRITES, directory, str(entries)]
                    done = subprocess.run(line, capture_output=True, text=True, check=True)
                told = json.loads(done.stdout)
                row = (told["jax"], "yes" if told["etils"] else "no", place, f"{entries:,}")
                times = (f"{told[name]:.1f} ms" for name in ("uncapped", "capped"))
                print("|", " | ".join((*row, *times)), "|", flush=True)


if __name__ == "__main__":
    main()
