"""Make a large cache directory of real payloads under many keys.

``python -m benchmarks.make_cache DIR COUNT`` copies the entries of a real cache (by default the
newest CPU one of the tests' golden data) in turn, under keys that are new but of the right form,
with an ``-atime`` file each, uses spread over a hundred days.
"""

import argparse
import hashlib
import os
import random
import time
from pathlib import Path

import zstandard

from jaxcache.core import wire

DEFAULT_SOURCE = Path(__file__).parents[1] / "tests" / "data" / "corpus" / "0.12.0.1-cpu-zstd"
_SPREAD_SECONDS = 100 * 86_400


def make_cache(
    target: Path,
    count: int,
    *,
    source: Path = DEFAULT_SOURCE,
    atimes: bool = True,
    most_bytes: int | None = None,
    distinct: bool = False,
    padding_bytes: int = 0,
) -> None:
    """Fill ``target`` with ``count`` entries; the same arguments give the same names and bytes.

    Args:
        most_bytes: leave larger entries out.
        distinct: give each entry a payload of its own, as real caches have.
        padding_bytes: and so many random bytes in it.
    """
    target.mkdir(parents=True, exist_ok=True)
    entries = [
        (path.name.rsplit("-", 2)[0], path.read_bytes())
        for path in sorted(source.glob("*-cache"))
        if most_bytes is None or path.stat().st_size <= most_bytes
    ]
    order = random.Random(count)
    now_ns = time.time_ns()
    for number in range(count):
        module, data = entries[number % len(entries)]
        digest = hashlib.sha256(number.to_bytes(8, "big"))
        key = f"{module}-{digest.hexdigest()}"
        if distinct:
            data = _with_mark(data, digest.digest() + order.randbytes(padding_bytes))
        used_ns = now_ns - order.randrange(_SPREAD_SECONDS) * 10**9
        entry = target / f"{key}-cache"
        entry.write_bytes(data)
        os.utime(entry, ns=(used_ns, used_ns))
        if atimes:
            (target / f"{key}-atime").write_bytes(used_ns.to_bytes(8, "little"))


def _with_mark(frame: bytes, mark: bytes) -> bytes:
    """The same entry, its message ended by a field that no reader knows."""
    content = zstandard.ZstdDecompressor().decompressobj().decompress(frame)
    content += wire.write_field(wire.Field(1000, wire.BYTES, memoryview(mark)))
    return zstandard.ZstdCompressor().compress(content)


def settle(target: Path) -> None:
    """Make the files old enough to be remembered by what looks at them."""
    then = time.time() - 60
    for path in target.iterdir():
        os.utime(path, (then, then))


def main() -> None:
    """Read the command line and make the directory."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--source", type=Path, default=DEFAULT_SOURCE)
    parser.add_argument("--no-atimes", action="store_true")
    args = parser.parse_args()
    make_cache(args.directory, args.count, source=args.source, atimes=not args.no_atimes)


if __name__ == "__main__":
    main()
