"""A pytest plugin that writes what JAX itself counts in each process; see ``compare.py``."""

import json
import os
from collections import Counter
from pathlib import Path

import jax

NAMES = {"compile_requests_use_cache": "requests", "cache_hits": "hits", "cache_misses": "written"}
COUNTS: Counter[str] = Counter()


def count(name: str, **_: object) -> None:
    if short := NAMES.get(name.rpartition("/")[2]):
        COUNTS[short] += 1


def compiled(name: str, seconds: float, **_: object) -> None:
    if name == "/jax/core/compile/backend_compile_duration":
        COUNTS["backend_seconds"] += seconds


jax.monitoring.register_event_listener(count)
jax.monitoring.register_event_duration_secs_listener(compiled)


def pytest_sessionfinish() -> None:
    Path(os.environ["OWN_COUNTS"], f"{os.getpid()}.json").write_text(json.dumps(COUNTS))
