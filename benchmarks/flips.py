"""How many single-bit flips of an entry ``verify`` detects, unsealed and sealed.

python -m benchmarks.flips [FLIPS]; prints the table in docs/integrity.md. Flips that decompress to
the same bytes are harmless and counted as such.
"""

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from jaxcache.cache.files import take_inventory
from jaxcache.cache.verify.check import check_entry
from jaxcache.entry.codec import CodecError, decompress_chunks, seal_frame
from jaxcache.store import open_store

CORPUS = Path(__file__).parents[1] / "tests" / "data" / "corpus"
CACHES = [
    "0.4.38-cpu-zlib",
    "0.4.38-cpu-zstd",
    "0.8.3-cpu-zstd",
    "0.10.2-cpu-zstd",
    "0.12.0.1-cpu-zstd",
    "0.8.3-cuda13-h200-zstd",
    "0.10.2-cuda13-h200-kernelcache",
    "0.12.0.1-cuda13-h200-zstd",
]


def decompress(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return b"".join(decompress_chunks(file, path.stat().st_size))
    except CodecError:
        return None


def count(data: bytes, name: str, flips: int, chance: random.Random) -> Counter[str]:
    """Flip one bit at a time and have ``verify --level full`` look."""
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, name)
        path.write_bytes(data)
        before = decompress(path)
        for _ in range(flips):
            bad = bytearray(data)
            bit = chance.randrange(8 * len(data))
            bad[bit >> 3] ^= 1 << (bit & 7)
            path.write_bytes(bad)
            store = open_store(directory)
            (file,) = take_inventory(store).entries
            if check_entry(store, file, None, decode=False).problems:
                seen["codec"] += 1
            elif check_entry(store, file, None, decode=True).problems:
                seen["payload"] += 1
            elif decompress(path) == before:
                seen["harmless"] += 1
            else:
                seen["silent"] += 1
    return seen


def main() -> None:
    flips = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    chance = random.Random(4)
    print("| entries of | flips | by the codec | by the payload | harmless | not detected |")
    print("|---|---|---|---|---|---|")
    for cache in CACHES:
        paths = sorted(CORPUS.joinpath(cache).glob("*-cache"), key=lambda p: p.stat().st_size)[:4]
        for sealed in (False, True):
            seen: Counter[str] = Counter()
            for path in paths:
                data = path.read_bytes()
                if sealed:
                    content = decompress(path) or b""
                    data = seal_frame(data, content, 19)
                seen += count(data, path.name, flips // len(paths), chance)
            label = f"{cache}{', sealed' if sealed else ''}"
            cells = [seen["codec"], seen["payload"], seen["harmless"], seen["silent"]]
            print(f"| {label} | {seen.total()} |", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
