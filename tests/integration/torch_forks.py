"""Runs scripts with torch, each in a fork of its own: a crash ends that one alone.

Reads one job a line, as JSON: ``cache``, ``words`` (a script and its arguments) and ``probes``;
writes ``status``, ``stdout`` and ``stderr`` of each. What the first job imports is imported once
for all, and what torch finds out about the compiler is found out once; a job with ``probes``
forgets that. Nothing is compiled before a fork.
"""

import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
import traceback

import torch  # noqa: F401 - imported before any fork

_SECONDS = 900


def run_script(words, probes):
    """Run a script in this fork; the status to end with."""
    if probes and (isa := sys.modules.get("torch._inductor.cpu_vec_isa")):
        for known in [*vars(isa).values(), *vars(isa.VecISA).values()]:
            getattr(known, "cache_clear", lambda: None)()
    sys.argv = words
    sys.path.insert(0, os.path.dirname(words[0]))
    try:
        runpy.run_path(words[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(job, modules):
    """Fork, and return what came of it; the names of modules go into a file."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            signal.alarm(_SECONDS)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = job["cache"]
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            status = run_script(job["words"], job["probes"])
            print(*(m for m in sys.modules if m.startswith("torch.")), file=modules, flush=True)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return {"status": status, "stdout": out.read(), "stderr": err.read()}


for number, line in enumerate(sys.stdin):
    job = json.loads(line)
    with tempfile.TemporaryFile("w+") as names:
        print(json.dumps(run(job, names)), flush=True)
        names.seek(0)
        for name in names.read().split() if number == 0 else ():
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    if number == 0:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = job["cache"]
        sys.modules["torch._inductor.cpu_vec_isa"].pick_vec_isa()
