"""Run a program by plain JAX: ``python plain_jax.py PROGRAM [ARG…]``.

Its last line of standard output is JSON: JAX's own counts of hits and misses, the seconds that JAX
says it spent in the compiler (or in loading), and the seconds after ``import jax``.
"""

import json
import runpy
import sys
import time

import jax

COUNTS = {"cache_hits": 0, "cache_misses": 0}
COMPILE = "/jax/core/compile/backend_compile_duration"
spent = []


def count(event, **_):
    """Count one of JAX's events."""
    name = event.rpartition("/")[2]
    if name in COUNTS:
        COUNTS[name] += 1


def note(event, seconds, **_):
    """Note the seconds of a compile or a load."""
    if event == COMPILE:
        spent.append(seconds)


jax.monitoring.register_event_listener(count)
jax.monitoring.register_event_duration_secs_listener(note)
started = time.perf_counter()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
facts = {
    "hits": COUNTS["cache_hits"],
    "misses": COUNTS["cache_misses"],
    "compile_seconds": round(sum(spent), 2),
    "seconds": round(time.perf_counter() - started, 2),
}
print(json.dumps(facts))
