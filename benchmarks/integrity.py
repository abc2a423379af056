"""What verify and seal take, against the zstd command on the same files.

``python -m benchmarks.integrity`` needs the command ``zstd``. Large entries are made of real
payloads and random bytes (arrays), compressible like a program with constants.
"""

import hashlib
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import zstandard

from benchmarks.make_cache import DEFAULT_SOURCE, make_cache
from benchmarks.measure import (
    Absent,
    Row,
    Setting,
    command,
    compare,
    jaxcache,
    missing,
    run_alone,
)

_LARGE_MB, _SMALL = 60, 5_000
_PIECE_BYTES = 1 << 16
_RANDOM_SHARE = 0.25


def make_large(target: Path, count: int, size_bytes: int) -> None:
    """Entries whose files are about so large, as JAX would write them."""
    target.mkdir(parents=True, exist_ok=True)
    real = b"".join(zstandard.decompress(p.read_bytes()) for p in DEFAULT_SOURCE.glob("*-cache"))
    chance = random.Random(1)
    for number in range(count):
        stream = zstandard.ZstdCompressor().compressobj()
        written = 0
        contents = [bytes(4)]
        while written < size_bytes:
            if chance.random() < _RANDOM_SHARE:
                piece = chance.randbytes(_PIECE_BYTES)
            else:
                at = chance.randrange(max(1, len(real) - _PIECE_BYTES))
                piece = real[at : at + _PIECE_BYTES]
            contents.append(piece)
            written += len(stream.compress(piece))
        data = zstandard.ZstdCompressor().compress(b"".join(contents))
        key = f"jit_large-{hashlib.sha256(bytes([number])).hexdigest()}"
        (target / f"{key}-cache").write_bytes(data)


def measure(setting: Setting) -> Iterator[Row]:
    """Large entries by one and two threads, many small ones, and a recompression."""
    megabytes, small = (_LARGE_MB // 10, _SMALL // 10) if setting.quick else (_LARGE_MB, _SMALL)
    if missing("zstd"):
        yield Absent("`verify` / `zstd -t`, `seal` / `zstd -d | zstd`", "no zstd here")
        return
    directory = setting.scratch("integrity")
    large, many, few = directory / "large", directory / "many", directory / "few"
    make_large(large, 10, megabytes * 10**6)
    make_cache(many, small, atimes=False)
    files = sorted(str(p) for p in large.glob("*-cache"))
    for jobs in (1, 2):
        ours = jaxcache("verify", "-q", "-C", large, "--no-payload", "--jobs", str(jobs))
        yield compare(
            f"`verify --no-payload --jobs {jobs}` of 10 × {megabytes} MB / `zstd -t`",
            command(ours),
            command(["zstd", "-q", "-t", *files]),
            pairs=setting.pairs,
        )
    yield compare(
        f"`verify --no-payload --jobs 1` of {small:,} small entries / `zstd -t`",
        command(jaxcache("verify", "-q", "-C", many, "--no-payload", "--jobs", "1")),
        command(["sh", "-c", 'exec zstd -q -t "$0"/*-cache', str(many)]),
        pairs=setting.pairs,
        at_most=3,
    )
    again = ["sh", "-c", 'rm -rf "$1"; cp -r "$0" "$1"; shift; exec "$@"', str(large), str(few)]
    for jobs in (1, 2):
        yield compare(
            f"`seal` of 10 × {megabytes} MB, {jobs} thread{'s' * (jobs > 1)} / {_SEAL_FLOOR}",
            command([*again, sys.executable, "-c", _SEAL_AS_IS, str(few), str(jobs)]),
            command([*again, "sh", "-c", _READ_AND_WRITE, str(few)]),
            pairs=setting.pairs,
        )
    subprocess.run([*again, sys.executable, "-c", _SEAL_AS_IS, str(few), "2"], check=True)
    yield compare(
        f"`verify --no-payload --jobs 2` of the sealed ones / {_DIGEST_FLOOR}",
        command(jaxcache("verify", "-q", "-C", few, "--no-payload", "--jobs", "2")),
        command(["sh", "-c", _DIGEST, str(few)]),
        pairs=setting.pairs,
        at_most=1.15,
    )


_DIGEST_FLOOR = "floor: `zstd -d` and `sha256sum` on two cores"
_DIGEST = 'printf "%s\\n" "$0"/*-cache | xargs -n 1 -P 2 sh -c \'zstd -q -d -c "$0" | sha256sum\''
_SEAL_FLOOR = "floor: `zstd -d`, `sha256sum`, `cp` and `sync` of each"
_READ_AND_WRITE = """
for file in "$0"/*-cache; do
  zstd -q -d -c "$file" | sha256sum >"$file.sum"
  cp "$file" "$file.new" && sync "$file.new" && mv "$file.new" "$file"
done
"""
#: seal without the payload check, which synthetic payloads would not pass.
_SEAL_AS_IS = """
import sys, time
import jaxcache.cache.seal as seal
from jaxcache.store import open_store
seal.check_payload = lambda file, payload: iter(())
store = open_store(sys.argv[1])
plan = seal.plan_seal(store)
result = seal.execute_seal(store, plan, jobs=int(sys.argv[2]), now_ns=time.time_ns())
assert len(result.sealed) == 10, result
"""


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
