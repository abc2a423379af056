"""kill -9 at random instants while entries are sealed."""

import hashlib
import io
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxcache.cache.seal import execute_seal, plan_seal
from jaxcache.entry.codec import decompress_chunks
from jaxcache.store import open_store

#: Seals the whole cache over and over, at levels that give different bytes.
_SEALER = """
import sys, time
from jaxcache.cache.seal import execute_seal, plan_seal
from jaxcache.options import SealOptions
from jaxcache.store import open_store
for n in range(10_000):
    if n == 1:
        print("ready", flush=True)
    store = open_store(sys.argv[1])
    plan = plan_seal(store, SealOptions(recompress=(None, 1, 9, 19)[n % 4]))
    # Levels that gain nothing are skipped, so every other turn starts from unsealed entries.
    execute_seal(store, plan, jobs=2, now_ns=time.time_ns())
    for name, data in ORIGINALS.items():
        store.write(name, [data])
"""


def payloads(cache: Path) -> dict[str, str]:
    found = {}
    for path in cache.glob("*-cache"):
        data = path.read_bytes()
        content = b"".join(decompress_chunks(io.BytesIO(data), len(data)))
        found[path.name] = hashlib.sha256(content).hexdigest()
    return found


def temporaries(cache: Path) -> list[Path]:
    return list(cache.rglob(".jaxcache-tmp-*"))


def kill_while_sealing(cache: Path, times: int, seed: int) -> int:
    """Kill a sealer that many times; returns how often it left a temporary file behind."""
    before = payloads(cache)
    originals = {p.name: p.read_bytes() for p in cache.glob("*-cache")}
    source = f"ORIGINALS = {originals!r}\n{_SEALER}"
    script = cache.parent / "sealer.py"
    script.write_text(source)
    chance = random.Random(seed)
    dirty = 0
    for _ in range(times):
        process = subprocess.Popen([sys.executable, script, cache], stdout=subprocess.PIPE)
        with process:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0, 0.25))
            process.kill()
        assert process.returncode == -signal.SIGKILL  # it was at work until then
        assert payloads(cache) == before
        dirty += bool(temporaries(cache))
    store = open_store(str(cache))
    execute_seal(store, plan_seal(store), jobs=2, now_ns=time.time_ns())
    assert not temporaries(cache)
    assert payloads(cache) == before
    assert not plan_seal(store).todo
    return dirty


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "cache"
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd-maxsize", copy)
    return copy


def test_killed_seals_lose_nothing(cache: Path) -> None:
    kill_while_sealing(cache, 5, seed=1)


@pytest.mark.slow
def test_two_hundred_killed_seals_lose_nothing(cache: Path) -> None:
    assert kill_while_sealing(cache, 200, seed=2) > 0
