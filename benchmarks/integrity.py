"""What verify and seal take, against the zstd command on the same files, side by side.

``python -m benchmarks.integrity [--size-mb 100] [--small 10000]``; needs the command ``zstd``.
Large entries are made of real payloads and random bytes (arrays), compressible like a program
with constants.
"""

import argparse
import hashlib
import random
import shutil
import sys
import tempfile
from pathlib import Path

import zstandard

from benchmarks.make_cache import DEFAULT_SOURCE, make_cache
from benchmarks.measure import HEADER, Ratio, command, compare

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


def run_cli(*args: str) -> list[str]:
    return [sys.executable, "-m", "jaxcache", *args]


def measure(folder: Path, size_mb: int, small: int, rounds: int) -> list[Ratio]:
    """Every comparison that the docs show."""
    large = folder / "large"
    make_large(large, 10, size_mb * 10**6)
    many = folder / "many"
    make_cache(many, small, atimes=False)
    files = [str(p) for p in large.glob("*-cache")]
    zstd_large = command(["zstd", "-q", "-t", *files])
    rows = []
    for jobs, target in (("1", "<= 1.1"), ("2", "< 1")):
        ours = run_cli("verify", "-q", "-C", str(large), "--no-payload", "--jobs", jobs)
        claim = f"verify full, no payload decoding, 10 × {size_mb} MB, {jobs} thread(s) / zstd -t"
        rows.append(compare(claim, command(ours), zstd_large, rounds=rounds, target=target))
    ours = run_cli("verify", "-q", "-C", str(many), "--no-payload", "--jobs", "1")
    theirs = ["sh", "-c", 'exec zstd -q -t "$0"/*-cache', str(many)]
    claim = f"verify full, no payload decoding, {small} small / zstd -t"
    rows.append(compare(claim, command(ours), command(theirs), rounds=rounds, target="<= 3"))
    recompress = [
        "sh",
        "-c",
        'for f in "$0"/*-cache; do zstd -dc "$f" | zstd -q -3 -o "$1/x" -f; done',
    ]
    two = folder / "two"
    two.mkdir()
    for name in sorted(files)[:3]:
        shutil.copy(name, two)
    claim = f"seal --level 3, 3 × {size_mb} MB, 1 thread / zstd -d piped into zstd -3"
    rows.append(
        compare(
            claim,
            command([sys.executable, "-c", _SEAL_AS_IS, str(two)]),
            command([*recompress, str(two), str(folder)]),
            rounds=rounds,
            target="<= 2",
        )
    )
    return rows


#: seal without the payload check, which synthetic payloads would not pass.
_SEAL_AS_IS = """
import sys, time
import jaxcache.cache.seal as seal
from jaxcache.store import open_store
seal.check_payload = lambda file, payload: iter(())
store = open_store(sys.argv[1])
plan = seal.plan_seal(store, level=3, again=True)
result = seal.execute_seal(store, plan, jobs=1, now_ns=time.time_ns())
assert not result.problems
"""


def main() -> None:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size-mb", type=int, default=100)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    args = parser.parse_args()
    if not shutil.which("zstd"):
        sys.exit("no zstd command here: nothing to compare with")
    with tempfile.TemporaryDirectory(dir=args.directory) as folder:
        print(HEADER)
        for r in measure(Path(folder), args.size_mb, args.small, args.rounds):
            print(r.row())


if __name__ == "__main__":
    main()
