"""A plain JAX with a size cap and the layer at work in one directory."""

import json
import subprocess
from pathlib import Path

import pytest

from live.conftest import live_environment

pytestmark = pytest.mark.jax

#: Reads and writes for some seconds, through the layer or through JAX's own class below it.
WORK = """
import json, os, random, sys, time
import jax
jax.devices()
from jax._src import compilation_cache as cc
directory, live, seconds = sys.argv[1], sys.argv[2] == "live", float(sys.argv[3])
made = (cc.LRUCache if live else cc.LRUCache.__mro__[1])(directory, max_size=300_000)
choice = random.Random(sys.argv[2])
deadline, done, errors = time.monotonic() + seconds, 0, []
while time.monotonic() < deadline:
    key = "jit_%d-%064x" % (choice.randrange(150), 7)
    try:
        value = made.get(key)
        if value is None:
            made.put(key, cc.compress_executable(b"\\0\\0\\0\\1" + choice.randbytes(4000)))
        else:
            assert len(cc.decompress_executable(value)) == 4004
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
    done += 1
print(json.dumps({"done": done, "errors": errors[:5]}))
"""


def test_a_capped_jax_and_the_layer_disturb_neither(jax_python: str, tmp_path: Path) -> None:
    env = live_environment(jax_python, tmp_path, None)
    (tmp_path / "cache").mkdir()
    running = [
        subprocess.Popen(
            [jax_python, "-c", WORK, str(tmp_path / "cache"), who, "6"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for who in ("live", "plain", "live")
    ]
    for process in running:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        told = json.loads(out.splitlines()[-1])
        assert told["errors"] == []
        assert told["done"] > 10

    def size_bytes() -> int:
        return sum(p.stat().st_size for p in (tmp_path / "cache").glob("*-cache"))

    assert size_bytes() < 2 * 300_000
    last = [jax_python, "-c", WORK, str(tmp_path / "cache"), "live", "0.5"]
    subprocess.run(last, env=env, capture_output=True, timeout=240, check=True)
    assert size_bytes() <= 300_000
