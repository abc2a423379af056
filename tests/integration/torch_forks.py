"""Runs the workload against one cache after another, each in a fork: a crash ends that one alone.

Takes the caches as arguments; prints for each, as JSON, its exit status and what it printed.
"""

import json
import os
import sys
import tempfile

import torch  # noqa: F401 - imported once, before any fork
import torch_workload


def run(cache):
    """Return exit status and output of one fork."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            os.dup2(output.fileno(), 1)
            status = 1
            try:
                torch_workload.main(["scale", "loss", "spread"])
                sys.stdout.flush()
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return {"cache": cache, "status": status, "output": output.read()}


for path in sys.argv[1:]:
    print(json.dumps(run(path)), flush=True)
