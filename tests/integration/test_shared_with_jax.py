"""A cache that root has changed serves the JAX of its owner, with a size cap."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from conftest import RunCli, clean_environment
from processes import sh

OWNER = 65534
pytestmark = [
    pytest.mark.jax,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users"),
]

#: Imports all that it needs in a cache of its own first: its user may not read this Python.
PROGRAM = """
import json, os, sys, tempfile
import jax, jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
def compile_all(cache):
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.clear_caches()
    for length in range(3, 6):
        jax.jit(lambda x: jnp.sort(jnp.tanh(x) @ x))(jnp.ones((length, length)))
with tempfile.TemporaryDirectory() as directory:
    for _ in range(2):
        compile_all(directory)
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
events.clear()
compile_all(sys.argv[1])
print(json.dumps({name: sum(e.endswith(name) for e in events) for name in
                  ("cache_hits", "cache_misses")}))
"""


def run_as_owner(python: str, cache: Path, home: Path) -> dict[str, int]:
    env = clean_environment(home) | {
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(10**9),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
        "JAX_RAISE_PERSISTENT_CACHE_ERRORS": "1",
        "JAX_PLATFORMS": "cpu",
        "PYTHONWARNINGS": "default",
    }
    done = sh([python, "-c", PROGRAM, str(cache), str(OWNER)], env=env)
    assert done.returncode == 0, done.stderr
    counted: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counted


def test_jax_hits_all_after_root_has_changed_a_cache(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        cache = Path(directory, "cache")
        cache.mkdir()
        os.chown(cache, OWNER, OWNER)
        cold = run_as_owner(jax_python, cache, tmp_path)
        assert cold["cache_misses"] > 0
        for stamp in list(cache.glob("*-atime"))[:1]:
            stamp.unlink()
        (cache / ".lockfile").unlink()
        for arguments in (("verify", "--fix", "--atimes"), ("seal",), ("pin", "*")):
            done = run_cli(*arguments, "-C", cache)
            assert done.returncode == 0, done.stderr
        hot = run_as_owner(jax_python, cache, tmp_path)
        assert hot == {"cache_hits": cold["cache_misses"] + cold["cache_hits"], "cache_misses": 0}
