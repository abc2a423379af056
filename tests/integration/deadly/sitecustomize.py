"""On PYTHONPATH: makes a worker die while it compiles the module that ``DEADLY`` names.

With ``DEADLY_ONCE``, a file, only the first of them dies.
"""

import os
import signal
import sys
import threading
import time


def arm():
    """Wait for jax, then put the trap where every compile that misses passes."""
    while not hasattr(sys.modules.get("jax._src.compiler"), "_compile_and_write_cache"):
        time.sleep(0.001)
    compiler = sys.modules["jax._src.compiler"]
    compile_ = compiler._compile_and_write_cache

    def trap(*args):
        if os.environ["DEADLY"] in [a for a in args if isinstance(a, str)] and is_first():
            os.kill(os.getpid(), signal.SIGKILL)
        return compile_(*args)

    compiler._compile_and_write_cache = trap


def is_first():
    """Whether nobody has died yet, where one death is enough."""
    once = os.environ.get("DEADLY_ONCE")
    if once is None:
        return True
    try:
        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


if "DEADLY" in os.environ and "JAXCACHE_WORKER" in os.environ:
    threading.Thread(target=arm, daemon=True).start()
