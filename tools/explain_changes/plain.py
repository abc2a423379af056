"""Run a program by plain JAX: ``python plain.py REPORT PROGRAM [ARG…]``.

REPORT becomes a JSON file of JAX's own counts of hits and misses, and of what JAX itself logs of
each module: its name, its key, whether it hit, and whether JAX writes such a module at all.
"""

import json
import logging
import re
import runpy
import sys

import jax

LOOKED_UP = re.compile(r"ersistent compilation cache (hit|miss) for '(.+?)' with key '(.+?)'", re.I)
NEVER_WRITTEN = re.compile(r"'(.+?)' because it uses host callbacks")
report = {"hits": 0, "misses": 0, "modules": [], "uncacheable": []}


def count(event, **_):
    """Count one of JAX's events."""
    name = event.rpartition("/")[2]
    if name in ("cache_hits", "cache_misses"):
        report[name.removeprefix("cache_")] += 1


class Handler(logging.Handler):
    """Keeps what JAX logs of a module."""

    def emit(self, record):
        """Note one message."""
        text = record.getMessage()
        if match := LOOKED_UP.search(text):
            is_hit = match[1].lower() == "hit"
            report["modules"].append({"module": match[2], "key": match[3], "hit": is_hit})
        elif match := NEVER_WRITTEN.search(text):
            report["uncacheable"].append(match[1])


jax.monitoring.register_event_listener(count)
logger = logging.getLogger("jax._src.compiler")
logger.setLevel(logging.DEBUG)
logger.addHandler(Handler())
logger.propagate = False
target = sys.argv[1]
del sys.argv[:2]
sys.path[0] = sys.argv[0].rpartition("/")[0]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    with open(target, "w") as file:
        json.dump(report, file)
