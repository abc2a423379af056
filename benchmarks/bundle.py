"""Bundles against ``tar | zstd -19 --long=27`` of the same cache, and imports against ``tar x``.

``python -m benchmarks.bundle --python JAX_PYTHON`` first fills a cache with the entries of a small
GPT (``gpt_cache.py``), and others with 500, 5,000 and 10,000 small entries of which no two have the
same payload; neither is timed. Needs tar and zstd. Files are in the page cache. Imports are timed
without the forecast, which asks jax: its two seconds run beside them. The floor of an import is
``tar x`` and ``sync``, which writes the files as they are, and one pass of zstd and SHA-256 over
the bytes.
"""

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.make_cache import make_cache
from benchmarks.measure import (
    Absent,
    Row,
    Setting,
    check_bytes,
    command,
    compare,
    jaxcache,
    missing,
    relate,
    run_alone,
    seconds_of,
)

#: Level: what was promised of the time and of the size.
_LEVELS = {12: (1.2, 0.46), 19: (None, 0.36)}
#: Entries: the seconds that were promised of their import.
_IMPORTS = {500: 0.5, 10_000: 5.4}
_MANY = 5_000
_MAKE = Path(__file__).with_name("gpt_cache.py")


def measure(setting: Setting) -> Iterator[Row]:
    """Seconds and sizes of exports, then imports."""
    if missing("zstd") or not setting.has_jax:
        yield Absent("`export`, `import` / tar, zstd", "no zstd, or no jax")
        return
    directory = setting.scratch("bundle")
    cache, archive = directory / "cache", directory / "cache.tar.zst"
    sizes = (
        ["--layers", "2"]
        if setting.quick
        else ["--layers", "2", "3", "--lengths", "32", "48", "64", "80", "96", "128"]
    )
    subprocess.run([setting.python, _MAKE, cache, *sizes], check=True, capture_output=True)
    tar = ["sh", "-c", f"tar c -C {cache} . | zstd -q -19 --long=27 -f -o {archive}"]
    for level, (time_at_most, size_at_most) in _LEVELS.items():
        bundle = directory / f"{level}.jxb"
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
    yield _import(setting, directory, cache, "a GPT's cache")
    for count, at_most in _IMPORTS.items():
        small = directory / f"small-{count}"
        make_cache(small, setting.count(count), atimes=False, distinct=True)
        yield _import(setting, directory, small, f"{setting.count(count):,} entries", at_most)
    many = directory / "many"
    make_cache(many, setting.count(_MANY), atimes=False, distinct=True)
    yield compare(
        f"`export` of {setting.count(_MANY):,} small entries / `tar \\| zstd -19 --long=27`",
        command(jaxcache("export", directory / "many.jxb", "-C", many)),
        command(["sh", "-c", f"tar c -C {many} . | zstd -q -19 --long=27 -f -o {archive}"]),
        pairs=setting.long_pairs,
        at_most=1,
        warm_up=False,
    )


def _import(
    setting: Setting, directory: Path, cache: Path, what: str, at_most: float | None = None
) -> Row:
    """Import into an empty directory, against ``tar x``, ``sync`` and a check of the bytes."""
    bundle, plain, without_jax = (
        directory / f"{cache.name}.{end}" for end in ("jxb", "tar", "path")
    )
    seconds_of(jaxcache("export", bundle, "-C", cache))
    subprocess.run(["tar", "c", "-f", plain, "-C", cache, "."], check=True)
    without_jax.mkdir()
    (without_jax / "sitecustomize.py").write_text("import sys; sys.modules['jax'] = None")
    targets = (directory / f"{cache.name}-{number}" for number in itertools.count())

    def ours() -> float:
        return seconds_of(
            jaxcache("import", bundle, "-C", next(targets)), {"PYTHONPATH": str(without_jax)}
        )

    def peer() -> float:
        target = next(targets)
        target.mkdir()
        files = f"tar x -f {plain} -C {target} && sync -f {target}"
        return seconds_of(["sh", "-c", f"{files} && {check_bytes(target)}"])

    claim = (
        f"`import` of {what}, forecast aside / floor: `tar x`, `sync` and one pass over the bytes"
    )
    return compare(claim, ours, peer, pairs=setting.pairs, ours_at_most=at_most)


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
