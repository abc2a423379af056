"""Checks for changes of the key, after which JAX never finds the stored entries."""

import contextlib
import os
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

from jaxcache.cache.doctor.inputs import Facts, Finding, install_into
from jaxcache.core.machine import XLA_CACHES, hashes_path
from jaxcache.core.system import expand_home
from jaxcache.entry.options import same_generation
from jaxcache.units import format_count, format_size

#: pmap of these versions goes through ``jit``, under this name, and puts an address into the key.
_PMAP_CHURN = ((0, 8), (0, 10))
_PMAP_MODULES = frozenset({"jit_call_wrapped"})
METADATA = "jax_compilation_cache_include_metadata_in_key"
METADATA_COST = (
    "files and line numbers are part of the keys, so every program below an edited line, or of a "
    "file that was moved, misses"
)
_CODEC_OF_KEY = {"zstandard": "zstd", "zlib": "zlib"}


def find_cache_dir_in_key(facts: Facts) -> Iterator[Finding]:
    """Entries that were written while the cache had another path, by a JAX that hashes it."""
    here = _spelt_by_jax(facts)
    files = {e.key: e.file for e in facts.cache.entries}
    moved: dict[str, list[str]] = {}
    for key, contents in facts.cache.contents.items():
        written_in = contents.written_in_cache_dir
        if written_in is None or written_in == here:
            continue
        if hashes_path(facts.version_of(key), kernel_cache=contents.kernel_cache):
            moved.setdefault(written_in, []).append(files[key])
    if facts.cache.remote:
        yield from (_pushed_from(path, names, here) for path, names in sorted(moved.items()))
        return
    for written_in, names in sorted(moved.items()):
        old = shlex.quote(written_in)
        new = shlex.quote(here)
        same = _is_same_place(written_in, here)
        link = "" if same else f"ln -s {new} {old}; "
        back = f"use the cache under its old path: {link}export JAX_COMPILATION_CACHE_DIR={old}. "
        yield Finding(
            "cache-dir-in-key",
            "problem",
            f"{format_count(len(names), 'entry')} written in {written_in}, "
            f"and the cache is {here} now",
            "JAX 0.4.36 to 0.10 hash that path into the key: these never hit here",
            f"{'' if not same and os.path.lexists(written_in) else back}For caches that move, and "
            "tiers: JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none (the live layer: "
            "JAXCACHE_LIVE_PORTABLE_KEYS=1) before the first run, or jax 0.11",
            files=tuple(names),
        )


def find_metadata_in_key(facts: Facts) -> Iterator[Finding]:
    """Source lines are part of the keys, so that an edit that changes no program misses."""
    if facts.setting(METADATA):
        yield Finding(
            "metadata-in-key",
            "note",
            f"{METADATA} is on",
            METADATA_COST,
            f"unset {METADATA.upper()}",
        )


def find_directory_spelling(facts: Facts) -> Iterator[Finding]:
    """A directory that is another one elsewhere, or that only this spelling hits."""
    setting = facts.setting("jax_compilation_cache_dir")
    if not isinstance(setting, str) or not setting or facts.bucket:
        return
    absolute = os.path.abspath(setting)
    mine = facts.interpreter
    is_hashed = mine is not None and hashes_path(mine.jax_version, facts.setting(XLA_CACHES))
    hashed = "; JAX 0.4.36 to 0.10 hash this spelling into the key, and no other one hits"
    if setting.startswith("file://"):
        cost = (
            f"without etils JAX treats it as the path {absolute}, and with it the first compile "
            "ends with KeyError: 'file://'"
        )
        absolute = setting.removeprefix("file://")
    elif setting.startswith("~"):
        cost = f"JAX treats ~ as the name of a directory: the cache is {absolute}"
        with contextlib.suppress(FileNotFoundError):
            absolute = expand_home(setting)
    elif not setting.startswith(os.sep):
        cost = (
            "each working directory has a cache of its own, and a program that changes its "
            "working directory (Hydra does) uses another one than before"
        )
    elif is_hashed and os.path.realpath(setting) != str(PurePath(setting)):
        cost = f"it is a link or contains .., and leads to {os.path.realpath(setting)}"
    else:
        return
    yield Finding(
        "directory-spelling",
        "note",
        f"jax_compilation_cache_dir is {setting}",
        cost + (hashed if is_hashed else ""),
        f"name the directory by one absolute path everywhere: "
        f"export JAX_COMPILATION_CACHE_DIR={shlex.quote(absolute)}",
    )


def _is_same_place(written_in: str, here: str) -> bool:
    """Whether it is this directory, spelt another way: relative, or through a link."""
    if not written_in.startswith(os.sep):
        return os.path.normpath(here).endswith(os.sep + os.path.normpath(written_in))
    return os.path.realpath(written_in) == os.path.realpath(here)


def _pushed_from(written_in: str, names: list[str], url: str) -> Finding:
    """Return the finding for a bucket, whose entries are written and used elsewhere."""
    old = shlex.quote(written_in)
    new = shlex.quote(url)
    use = f"jaxcache pull {new} -C {old}"
    if "://" in written_in:
        use = f"fill it under its own address: jaxcache warm -C {new} SCRIPT"
    return Finding(
        "cache-dir-in-key",
        "note",
        f"{format_count(len(names), 'entry')} written in {written_in}",
        "JAX 0.4.36 to 0.10 hash that path into the key: these hit only in a cache of that path",
        f"{use}. For caches that move: "
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none before the first run, or jax 0.11",
        files=tuple(names),
    )


def _spelt_by_jax(facts: Facts) -> str:
    """The directory as JAX would hash it: the very string of the setting, if it means this one."""
    setting = facts.setting("jax_compilation_cache_dir")
    # Without etils, JAX takes a file URL for a relative path.
    if isinstance(setting, str) and setting and not facts.bucket:
        real = os.path.realpath
        if setting == facts.cache.path or real(setting) == real(facts.cache.path):
            return str(PurePath(setting))  # as jax/_src/compiler.py does
    return facts.cache.path


def find_codec_missing(facts: Facts) -> Iterator[Finding]:
    """Entries of a Python that compressed otherwise: the codec's name is part of the key."""
    mine = facts.interpreter
    if mine is None or mine.written_codec != _CODEC_OF_KEY.get(mine.key_codec):
        return  # find_codec_clash explains more
    others = [e for e in facts.cache.entries if e.codec not in (mine.written_codec, "unknown")]
    if not others:
        return
    missing = mine.written_codec == "zlib"
    yield Finding(
        "zstandard-differs",
        "problem",
        f"{mine.executable} {'lacks' if missing else 'has'} zstandard, and "
        f"{format_count(len(others), 'entry')} came from a Python that "
        f"{'has' if missing else 'lacks'} it",
        "the codec's name is part of the key: one Python never hits the entries of the other",
        install_into(mine.executable, "zstandard")
        if missing
        else "install zstandard in every environment that shares this cache",
        files=tuple(e.file for e in others),
    )


def find_codec_clash(facts: Facts) -> Iterator[Finding]:
    """Python 3.14: JAX compresses with the standard library's zstd, but the key contains zlib."""
    mine = facts.interpreter
    if mine is None or mine.written_codec == _CODEC_OF_KEY.get(mine.key_codec):
        return
    yield Finding(
        "codec-clash",
        "problem",
        f"{mine.executable} (Python {mine.python_version}, jax {mine.jax_version}) writes "
        f"{mine.written_codec} under keys that name {mine.key_codec}",
        "a Python without zstandard makes the same keys, reads zlib, and fails on such an entry "
        "at every run; a Python with zstandard never hits them",
        "give Python 3.14 and older Pythons different cache directories",
    )


def find_pmap_churn(facts: Facts) -> Iterator[Finding]:
    """``pmap`` of JAX 0.8 and 0.9 makes a new key in every process."""
    release = facts.jax_release
    if release is not None and not _PMAP_CHURN[0] <= release < _PMAP_CHURN[1]:
        return
    entries = [e for e in facts.cache.entries if e.module in _PMAP_MODULES]
    if len(entries) < 2:
        return
    size_bytes = sum(e.size_bytes for e in entries)
    yield Finding(
        "pmap-churn",
        "problem",
        f"{format_count(len(entries), 'entry')} of pmap "
        f"({', '.join(sorted({e.module for e in entries}))}), "
        f"{format_size(size_bytes)}",
        "pmap of jax 0.8.3 and 0.9.2 makes a new key in every run: it never hits, and every "
        "run adds entries",
        "use jax.jit with shardings, or a jax that is not 0.8 or 0.9; "
        "remove them: jaxcache rm 'jit_call_wrapped-*'",
        files=tuple(e.file for e in entries),
    )


def find_mixed_builds(facts: Facts) -> Iterator[Finding]:
    """Entries of another build of jaxlib with the same version: their keys do not differ."""
    mine = facts.interpreter
    builds: dict[str, dict[str, list[str]]] = {}
    for key, record in facts.cache.records.items():
        build = record.extra.get("jaxlib_digest")
        if record.jaxlib_version and isinstance(build, str):
            builds.setdefault(record.jaxlib_version, {}).setdefault(build, []).append(key)
    if mine and mine.jaxlib_digest and mine.jaxlib_version in builds:
        builds[mine.jaxlib_version].setdefault(mine.jaxlib_digest, [])
    files = {e.key: e.file for e in facts.cache.entries}
    for version, by_build in sorted(builds.items()):
        if len(by_build) < 2:
            continue
        named = ", ".join(sorted(b[:12] for b in by_build))
        keys = [k for some in by_build.values() for k in some if k in files]
        yield Finding(
            "mixed-jaxlib-builds",
            "problem",
            f"{format_count(len(by_build), 'build')} of jaxlib {version} "
            f"share this cache ({named})",
            "the key contains only the version: one build runs the machine code of the other, "
            "which can crash or compute wrong results",
            "give each build a cache directory of its own, and remove this one's entries",
            files=tuple(files[k] for k in keys),
        )


def find_orphaned_generations(facts: Facts) -> Iterator[Finding]:
    """Entries of another jaxlib than the one in use: its version is part of the key."""
    mine = facts.interpreter
    if mine is None:
        return
    sizes = {e.key: (e.file, e.size_bytes) for e in facts.cache.entries}
    orphans: dict[str, str] = {}
    for key in sizes:
        record = facts.cache.records.get(key)
        contents = facts.cache.contents.get(key)
        if record and record.jaxlib_version:
            if record.jaxlib_version != mine.jaxlib_version:
                orphans[key] = record.jaxlib_version
        elif (contents and contents.flags and mine.flags) and not same_generation(
            contents.flags, mine.flags
        ):
            orphans[key] = facts.version_of(key) or "another version"
    if not orphans:
        return
    by_version = ", ".join(f"{n:,} of {v}" for v, n in Counter(orphans.values()).most_common())
    size_bytes = sum(sizes[k][1] for k in orphans)
    recorded = {r.jaxlib_version for k in orphans if (r := facts.cache.records.get(k))}
    by_name = "".join(f" --filter jaxlib={v}" for v in recorded if len(recorded) == 1 and v)
    yield Finding(
        "orphaned-generations",
        "note",
        f"{format_count(len(orphans), 'entry')} ({by_version}), {format_size(size_bytes)}, "
        f"while {mine.executable} has jaxlib {mine.jaxlib_version}",
        "another jaxlib never reads them; after an upgrade they only use space",
        "if the other version is no longer used: jaxcache prune"
        f"{by_name} --unused-for {'0s' if by_name else '7d'}",
        files=tuple(sizes[k][0] for k in orphans),
    )
