"""Plain JAX as the judge: programs in fresh processes without jaxcache, and JAX's own counters.

A server for each Python imports what jax imports, and forks for each program: the child reads its
environment and imports jax itself, and ends without the collections of garbage at a Python's end.
"""

import atexit
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from conftest import clean_environment

_SERVER = """
import atexit, contextlib, gc, json, os, runpy, sys, threading, traceback, types, warnings
gc.set_threshold(200_000)
names = (
    "jaxlib.xla_client jaxlib.mlir.dialects.stablehlo jaxlib.mlir.dialects.sdy"
    " jaxlib.mlir.dialects.chlo jaxlib.mlir.dialects.mhlo jaxlib.mosaic.python.tpu"
    " ml_dtypes numpy opt_einsum scipy.linalg scipy.special"
)
for name in names.split():
    with contextlib.suppress(ImportError):
        __import__(name)
gc.freeze()

def run(env, cwd, words):
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    added = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    for text in filter(None, env.get("PYTHONWARNINGS", "").split(",")):
        warnings._setoption(text)
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path[:1] = ["", *added]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = words
        sys.path[:1] = [os.path.dirname(os.path.abspath(words[0])), *added]
        runpy.run_path(words[0], run_name="__main__")

def end_of(request):
    try:
        run(**request)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    else:
        return 0
    return 1

for line in sys.stdin:
    *files, request = json.loads(line)
    if not (pid := os.fork()):
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, path in enumerate(files, 1):
                os.dup2(os.open(path, os.O_WRONLY), number)
            status = end_of(request)
            threading._shutdown()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""

#: Whether and where Python keeps bytecode.
_BYTECODE = {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
#: What a Python reads when it starts; the children of the server read the first two.
_AT_START = {"PYTHONPATH", "PYTHONWARNINGS", "PYTHONHASHSEED", "PYTHONUNBUFFERED", *_BYTECODE}

_COUNTING = """
import json, os, runpy, sys
import jax
counts = {}
def count(name, **_):
    counts[name] = counts.get(name, 0) + 1
jax.monitoring.register_event_listener(count)
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
names = ("cache_hits", "cache_misses", "compile_requests_use_cache")
print(json.dumps([counts.get("/jax/compilation_cache/" + n, 0) for n in names]))
"""


class _Server:
    """Runs programs in fresh processes of one Python."""

    def __init__(self, python: str) -> None:
        own = {n: t for n, t in os.environ.items() if n in _BYTECODE or not n.startswith("PYTHON")}
        self._process = subprocess.Popen(
            [python, "-c", _SERVER],
            env=own | {"PYTHONHASHSEED": "0", "TF_CPP_MIN_LOG_LEVEL": "1"},  # as jax sets it
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)

    def run(
        self, words: Sequence[str], env: Mapping[str, str], cwd: str
    ) -> "subprocess.CompletedProcess[str]":
        assert self._process.stdin and self._process.stdout
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
            request = {"words": words, "env": dict(env), "cwd": cwd}
            self._process.stdin.write(json.dumps([out.name, err.name, request]) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            texts = [file.read().decode("utf-8", "replace") for file in (out, err)]
        return subprocess.CompletedProcess(words, code, *texts)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


_server = cache(_Server)


def run_plain(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    check: bool = True,
) -> "subprocess.CompletedProcess[str]":
    """Run ``PYTHON SCRIPT ARG…`` or ``PYTHON -c CODE ARG…``, as a program that has plain JAX.

    Args:
        env: the whole environment. Nothing in it may start jaxcache, or a ``sitecustomize``.
        check: whether the program must end with 0.
    """
    at_start = {name for name in env if name.startswith("PYTHON")} - _AT_START
    assert not at_start and "JAXCACHE_EVENTS" not in env, at_start
    python, *words = map(str, command)
    done = _server(python).run(words, env, str(cwd or Path.cwd()))
    assert not check or done.returncode == 0, done.stderr
    return done


#: Its ``bundle`` fills the cache that it is given, and prints its result and JAX's own counts.
WORKLOAD = Path(__file__).parents[1] / "integration" / "programs.py"


def run_workload(python: str, cache: Path | str, home: Path, **env: str) -> dict[str, Any]:
    """Run it by plain JAX, and return what it prints."""
    own = clean_environment(home) | {"PYTHONWARNINGS": ""} | env
    done = run_plain([python, WORKLOAD, "bundle", cache], env=own)
    return dict(json.loads(done.stdout))


class Counts(NamedTuple):
    """JAX's counts of one run."""

    hits: int
    writes: int
    """Entries that it made in order to write them; JAX calls them misses."""
    requests: int


def count_plain(
    python: str, script: Path, env: Mapping[str, str], cwd: Path | None = None
) -> "Counts | None":
    """Run a script by plain JAX; None where it fails."""
    done = run_plain([python, "-c", _COUNTING, script], env=env, cwd=cwd, check=False)
    return Counts(*json.loads(done.stdout.splitlines()[-1])) if done.returncode == 0 else None
