"""Children that are forked while the layer of their parent uses a bucket."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_server import CREDENTIALS, S3Server, make_bucket, run_s3_server

from live.conftest import live_environment
from live.test_tiers import UNREACHABLE

pytestmark = pytest.mark.jax

#: The parent imports jax, so that its layer asks the bucket; JAX starts in the children first.
POOL = """
import json, multiprocessing, os, sys
from jaxcache.injected import hook
hook.install()
import jax, jax.numpy as jnp

def work(number):
    jax.jit(lambda x: jnp.sin(x) @ x.T + number)(jnp.ones((4, 4)))
    return sys.modules["jaxcache.live.layer"].LAYER.counters.snapshot()

def fork(number):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(work(number)).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(os.read(reading, 1 << 16))

if __name__ == "__main__":
    if sys.argv[1] == "os.fork":
        children = [fork(number) for number in range(4)]
    else:
        with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
            children = pool.map(work, range(4))
    print(json.dumps({"children": children, "parent": work(9)}))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """An S3 server process with a bucket."""
    with run_s3_server() as running:
        make_bucket(running.endpoint, "team")
        yield running


@pytest.mark.parametrize("place", ["there", "refuses"])
@pytest.mark.parametrize("how", ["fork", "os.fork", "forkserver"])
def test_a_forked_child_leaves_the_bucket_to_its_parent(
    jax_python: str, server: S3Server, tmp_path: Path, how: str, place: str
) -> None:
    """The sockets of such a child would be polled by its parent, and the parent would die."""
    bucket = f"{how.replace('.', '-')}-{place}"
    make_bucket(server.endpoint, bucket)
    (tmp_path / "pool.py").write_text(POOL)
    env = live_environment(jax_python, tmp_path, tmp_path / "cache") | CREDENTIALS
    env |= {
        "JAXCACHE_LIVE_TIERS": f"s3://{bucket}/jax",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }
    env["AWS_ENDPOINT_URL"] = server.endpoint if place == "there" else UNREACHABLE
    done = subprocess.run(
        [jax_python, tmp_path / "pool.py", how], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)

    def asks(process: dict[str, int]) -> bool:
        return any("tier" in name for name in process)

    assert asks(counts["parent"])
    assert all(asks(child) == (how == "forkserver") for child in counts["children"])


#: Opens a bucket, and once more in a child.
OPEN = """
import os, sys, jaxcache
jaxcache.open("s3://team/jax")
if os.fork() == 0:
    try:
        jaxcache.open("s3://team/jax")
    except jaxcache.JaxcacheError as error:
        print(error, "|", error.hint)
    os._exit(0)
os.wait()
"""


def test_a_forked_child_of_a_program_that_has_opened_a_bucket_opens_none(
    newer_python: str, server: S3Server, tmp_path: Path
) -> None:
    env = live_environment(newer_python, tmp_path, None) | CREDENTIALS
    env["AWS_ENDPOINT_URL"] = server.endpoint
    done = subprocess.run([newer_python, "-c", OPEN], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the process that this one was forked from has opened a bucket" in done.stdout
