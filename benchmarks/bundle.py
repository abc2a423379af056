"""Bundles against ``tar | zstd -19 --long=27`` of the same cache, and imports against ``tar x``.

``python -m benchmarks.bundle --python JAX_PYTHON`` first fills a cache with the entries of a small
GPT (``gpt_cache.py``; not timed). Needs tar and zstd. Files are in the page cache.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import (
    Absent,
    Row,
    Setting,
    command,
    compare,
    jaxcache,
    missing,
    relate,
    run_alone,
)

#: Level: what was promised of the time and of the size.
_LEVELS = {12: (1.5, 0.46), 19: (None, 0.36)}
_MAKE = Path(__file__).with_name("gpt_cache.py")


def measure(setting: Setting) -> Iterator[Row]:
    """Seconds and sizes of exports, then imports."""
    if missing("zstd") or not setting.has_jax:
        yield Absent("`export`, `import` / tar, zstd", "no zstd, or no jax")
        return
    folder = setting.scratch("bundle")
    cache, archive, plain = folder / "cache", folder / "cache.tar.zst", folder / "cache.tar"
    sizes = (
        ["--layers", "2"]
        if setting.quick
        else ["--layers", "2", "3", "--lengths", "32", "48", "64", "80", "96", "128"]
    )
    subprocess.run([setting.python, _MAKE, cache, *sizes], check=True, capture_output=True)
    tar = ["sh", "-c", f"tar c -C {cache} . | zstd -q -19 --long=27 -f -o {archive}"]
    for level, (time_at_most, size_at_most) in _LEVELS.items():
        bundle = folder / f"{level}.jxb"
        yield compare(
            f"`export --level {level}` / `tar \\| zstd -19 --long=27`",
            command(jaxcache("export", bundle, "-C", cache, "--level", str(level))),
            command(tar),
            pairs=setting.pairs,
            at_most=time_at_most,
        )
        size = (bundle.stat().st_size / 1e6, archive.stat().st_size / 1e6)
        yield relate(
            f"the same: size of the bundle, level {level} / of the archive",
            [size],
            at_most=size_at_most,
            unit="MB",
        )
    subprocess.run(["tar", "c", "-f", plain, "-C", cache, "."], check=True)
    target = folder / "target"
    clean = f"rm -rf {target} && mkdir {target}"
    importing = " ".join(jaxcache("import", folder / "12.jxb", "-C", target))
    for label, unpack in (
        ("tar x` and `sync`", f"tar x -f {plain} -C {target} && sync -f {target}"),
        ("zstd -d \\| tar x`", f"zstd -q -d --long=27 -c {archive} | tar x -C {target}"),
    ):
        yield compare(
            f"`import` / `{label}",
            command(["sh", "-c", f"{clean} && {importing}"]),
            command(["sh", "-c", f"{clean} && {unpack}"]),
            pairs=setting.pairs,
            at_most=3,
        )


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
