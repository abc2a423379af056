"""Makes caches of entries that are as old, as large and as dear as a test wants them."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import zstandard

from jaxcache.cache.listing import ReadCache
from jaxcache.cache.prune.plan import PrunePlan, plan_cache_prune
from jaxcache.layouts import load_layout
from jaxcache.options import PruneOptions
from jaxcache.store.local import LocalStore

JAX = load_layout("jax")
HOUR = 3600
NS = 1_000_000_000
NOW = 1_700_000_000 * NS


def key(number: int, module: str = "jit_f") -> str:
    return f"{module}-{number:064x}"


def put(
    cache: Path,
    name: str,
    *,
    size: int = 100,
    used_ago: float = HOUR,
    made_ago: float | None = None,
    atime: bool = True,
    seconds: int = 0,
) -> None:
    """Write an entry whose header tells ``seconds``, and its ``-atime`` file."""
    made = NOW - int((used_ago if made_ago is None else made_ago) * NS)
    content = seconds.to_bytes(4, "big") + os.urandom(max(4, size - 24))
    path = cache / f"{name}-cache"
    path.write_bytes(zstandard.ZstdCompressor().compress(content))
    os.utime(path, ns=(made, made))
    if atime:
        (cache / f"{name}-atime").write_bytes((NOW - int(used_ago * NS)).to_bytes(8, "little"))


def plan(cache: Path, keep: tuple[str, ...] = (), **options: object) -> PrunePlan:
    chosen = PruneOptions(**options)  # type: ignore[arg-type]
    return plan_cache_prune(ReadCache(LocalStore(cache), JAX, NOW), chosen.replace(keep=keep))


def gone(made: PrunePlan) -> dict[str, str]:
    return {r.key or r.file.name: r.reason for r in made.removals}


def size_of(cache: Path) -> int:
    """What a bound on the size counts: all but the ledger and the tag."""
    own = {cache / ".jaxcache" / "ledger", cache / "CACHEDIR.TAG"}
    return sum(
        p.stat().st_size
        for p in cache.rglob("*")
        if p.is_file() and own.isdisjoint((p, *p.parents))
    )


@contextlib.contextmanager
def cache_of(entries: list[dict], litter: bool, root: Path) -> Iterator[Path]:
    cache = Path(tempfile.mkdtemp(dir=root))
    for number, entry in enumerate(entries):
        put(cache, key(number, f"jit_f{number % 4}"), **entry)
    if litter:
        old = NOW - 30 * 24 * HOUR * NS
        for name in (
            f"jit_old-{'e' * 64}",
            "_temp_jit_x",
            key(999) + "-atime",
            "xla_gpu_kernel_cache_file",
            "xla_gpu_per_fusion_autotune_cache_dir/a.textproto",
            ".jaxcache/quarantine/b-cache",
            "notes.txt",
        ):
            (cache / name).parent.mkdir(parents=True, exist_ok=True)
            (cache / name).write_bytes(b"x" * 500)
            os.utime(cache / name, ns=(old, old))
    yield cache
    shutil.rmtree(cache)
