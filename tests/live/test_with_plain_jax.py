"""A plain JAX with a size cap and the layer at work in one directory."""

from pathlib import Path

import pytest

from live.conftest import entries
from live.test_leases import start_together

pytestmark = pytest.mark.jax

#: Reads and writes through the layer; the first process, through JAX's own class below it.
WORK = """
import random
from jax._src import compilation_cache as cc
try:
    os.close(os.open(directory + "/plain", os.O_CREAT | os.O_EXCL))
    kind, looks = cc.LRUCache.__mro__[1], 200
except FileExistsError:
    kind, looks = cc.LRUCache, 2000
made = kind(os.environ["JAX_COMPILATION_CACHE_DIR"], max_size=300_000)
choice = random.Random(os.getpid())
for _ in range(looks):
    key = "jit_%d-%064x" % (choice.randrange(150), 7)
    value = made.get(key)
    if value is None:
        made.put(key, cc.compress_executable(b"\\0\\0\\0\\1" + choice.randbytes(4000)))
    else:
        assert len(cc.decompress_executable(value)) == 4004
result = []
"""


def test_a_capped_jax_and_the_layer_disturb_neither(jax_python: str, tmp_path: Path) -> None:
    def size_bytes() -> int:
        return sum(path.stat().st_size for path in entries(tmp_path / "cache"))

    for number, limit_bytes in ((3, 600_000), (1, 300_000)):
        ended = start_together(jax_python, tmp_path, number, WORK, JAXCACHE_LIVE_SINGLE_FLIGHT="0s")
        assert all(p.returncode == 0 for p, _, _ in ended), [err for _, _, err in ended]
        assert size_bytes() <= limit_bytes
