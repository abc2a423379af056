"""Write starting points for the fuzzer into a folder: payloads, entries and a kernel cache."""

import sys
from pathlib import Path

import zstandard

CORPUS = Path(__file__).parents[2] / "tests" / "data" / "corpus"


def main(folder: Path) -> None:
    """Write each real file under the byte that chooses how ``fuzz_decode`` reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(sorted(CORPUS.glob("*-zstd/*-cache"))):
        data = path.read_bytes()
        payload = zstandard.ZstdDecompressor().decompress(data)[4:]
        if len(payload) < 32_000:
            (folder / f"payload-{number}").write_bytes(b"\x00" + payload)
            (folder / f"checked-{number}").write_bytes(b"\x04" + payload)
        if len(data) < 8_000:
            (folder / f"entry-{number}").write_bytes(b"\x01" + data)
    for path in CORPUS.glob("*/xla_gpu_kernel_cache_file"):
        (folder / "kernels").write_bytes(b"\x02" + path.read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
