"""Plain JAX as the judge: what its own counters say in a fresh process without jaxcache.

A process imports what jax imports, and forks for each run: the child reads its environment and
imports jax itself.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_SERVER = """
import json, os, runpy, sys
import jaxlib.xla_client, ml_dtypes, numpy, opt_einsum, scipy.linalg, scipy.special

def run(request):
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = [request["script"]]
    import jax
    counts = {}
    def count(name, **_):
        counts[name] = counts.get(name, 0) + 1
    jax.monitoring.register_event_listener(count)
    runpy.run_path(request["script"], run_name="__main__")
    names = ("cache_hits", "cache_misses", "compile_requests_use_cache")
    return [counts.get("/jax/compilation_cache/" + n, 0) for n in names]

for line in sys.stdin:
    read, write = os.pipe()
    if not (pid := os.fork()):
        status = 1
        try:
            os.write(write, json.dumps(run(json.loads(line))).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as answer:
        counts = answer.read()
    os.waitpid(pid, 0)
    print(counts or "null", flush=True)
"""


class Counts(NamedTuple):
    """JAX's counts of one run."""

    hits: int
    writes: int
    """Entries that it made in order to write them; JAX calls them misses."""
    requests: int


class PlainJax:
    """Runs scripts in fresh processes of one Python."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, script: Path, env: Mapping[str, str], cwd: Path) -> "Counts | None":
        """Run a script; None where it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"script": str(script), "env": dict(env), "cwd": str(cwd)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        counts = json.loads(self._process.stdout.readline())
        return None if counts is None else Counts(*counts)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
