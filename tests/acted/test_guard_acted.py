"""What a guard prints about the threads that it does not guard makes it guard them."""

import re
import subprocess
from pathlib import Path

import pytest
from conftest import clean_environment, jax_version
from processes import sh

pytestmark = pytest.mark.jax

SERVER = """
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import jax, jax.numpy as jnp, numpy as np
import jaxcache

@jax.jit
def step(x):
    return x * 3 + 1

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        try:
            np.asarray(step(np.ones(int(self.path[1:]), np.float32)))
            self.send_response(200)
        except jaxcache.UnexpectedCompileError:
            self.send_response(503)
        self.end_headers()
    def log_message(self, *_):
        pass

step(np.ones(4, np.float32))  # the warm-up
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

def ask():
    for size in (4, 5, 6):
        connection = HTTPConnection(*server.server_address)
        connection.request("GET", f"/{{size}}")
        print(size, connection.getresponse().status)
    server.shutdown()

threading.Thread(target=ask).start()
with {guard}:
    server.serve_forever()

def elsewhere(call):  # nothing is printed where no guard is up, or all allow it
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()

elsewhere(lambda: step(np.ones(2, np.float32)))
with jaxcache.guard(eager="allow"):
    elsewhere(lambda: step(np.ones(2, np.float32)))
    elsewhere(lambda: jnp.zeros(7))
"""


def test_the_guard_that_is_printed_refuses_what_the_server_compiles(
    each_jax_python: str, tmp_path: Path
) -> None:
    if jax_version(each_jax_python) < (0, 6):
        pytest.skip("below JAX 0.6 a guard only warns")
    more = {"JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": ""}
    env = clean_environment(tmp_path) | more

    def serve(guard: str) -> "subprocess.CompletedProcess[str]":
        return sh([each_jax_python, "-c", SERVER.format(guard=guard)], env=env, check=True)

    alone = serve("jaxcache.guard()")
    assert alone.stdout.splitlines() == ["4 200", "5 200", "6 200"]
    (line,) = [line for line in alone.stderr.splitlines() if line.startswith("jaxcache: ")]
    assert "about to compile step (" in line
    printed = re.search(r"jaxcache\.guard\(.*?\)", line)
    assert printed, line

    everywhere = serve(printed[0])
    assert everywhere.stdout.splitlines() == ["4 200", "5 503", "6 503"]
    assert "no guard is up" not in everywhere.stderr
