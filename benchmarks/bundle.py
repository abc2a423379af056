"""Bundles against ``tar | zstd -19 --long=27`` of the same cache, and imports against ``tar x``.

``python -m benchmarks.bundle DIR [--rounds N]`` prints a Markdown table. DIR is a cache such as
``benchmarks/gpt_cache.py`` makes. Needs tar and zstd. Files are in the page cache.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import HEADER, Ratio, command, compare


def measure(cache: Path, rounds: int, folder: Path) -> tuple[list[Ratio], list[str]]:
    """Run every comparison; also one line per file with its size."""
    jaxcache = [sys.executable, "-m", "jaxcache"]
    archive, plain = folder / "cache.tar.zst", folder / "cache.tar"
    tar = ["sh", "-c", f"tar c -C {cache} . | zstd -q -19 --long=27 -f -o {archive}"]
    ratios = []
    for level, target in ((12, "≤ 1.5 ×"), (19, "—")):
        bundle = folder / f"{level}.jxb"
        export = [*jaxcache, "export", str(bundle), "-C", str(cache), "--level", str(level)]
        ratios.append(
            compare(
                f"`export --level {level}` / `tar \\| zstd -19 --long=27`",
                command(export), command(tar), rounds=rounds, target=target,
            )
        )  # fmt: skip
    subprocess.run(["tar", "c", "-f", plain, "-C", cache, "."], check=True)
    target_dir = folder / "target"
    clean = f"rm -rf {target_dir} && mkdir {target_dir}"
    importing = " ".join([*jaxcache, "import", str(folder / "12.jxb"), "-C", str(target_dir)])
    for label, unpack in (
        ("tar x`, durable", f"tar x -f {plain} -C {target_dir} && sync -f {target_dir}"),
        ("tar x`", f"tar x -f {plain} -C {target_dir}"),
        ("tar x --zstd`", f"zstd -q -d --long=27 -c {archive} | tar x -C {target_dir}"),
    ):
        ratios.append(
            compare(
                f"`import` / `{label}",
                command(["sh", "-c", f"{clean} && {importing}"]),
                command(["sh", "-c", f"{clean} && {unpack}"]),
                rounds=rounds, target="≤ 3 ×",
            )
        )  # fmt: skip
        shutil.rmtree(target_dir)
    files = sum(p.stat().st_size for p in cache.iterdir() if p.is_file())
    packed = archive.stat().st_size
    sizes = [f"files {files / 1e6:.2f} MB", f"tar+zstd {packed / 1e6:.2f} MB"]
    for level in (12, 19):
        size = (folder / f"{level}.jxb").stat().st_size
        sizes.append(f"bundle, level {level}: {size / 1e6:.2f} MB, {size / packed:.3f} × tar+zstd")
    return ratios, sizes


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cache", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jaxcache-bench-") as folder:
        ratios, sizes = measure(args.cache.resolve(), args.rounds, Path(folder))
    print(HEADER)
    for ratio in ratios:
        print(ratio.row())
    print()
    for line in sizes:
        print(f"- {line}")


if __name__ == "__main__":
    main()
