"""Checks for changes of the key, after which JAX never finds the stored entries."""

import contextlib
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

from jaxcache.cache.doctor.inputs import Facts, Finding, install_into
from jaxcache.core.machine import hashes_path
from jaxcache.core.names import XLA_CACHES
from jaxcache.core.system import expand_home
from jaxcache.entry.options import same_generation
from jaxcache.units import format_count, format_size

#: pmap of these versions goes through ``jit``, under this name, and puts an address into the key.
_PMAP_CHURN = ((0, 8), (0, 10))
_PMAP_MODULE = "jit_call_wrapped"
METADATA = "jax_compilation_cache_include_metadata_in_key"
METADATA_COST = (
    "files and line numbers are part of the keys, so every program below an edited line, or of a "
    "file that was moved, misses"
)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
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
        for path, names in sorted(moved.items()):
            use = _pull_into(path, here)
            yield facts.finding("bucket-in-key", names, written_in=path, use=use)
        return
    for written_in, names in sorted(moved.items()):
        old = shlex.quote(written_in)
        new = shlex.quote(here)
        same = _is_same_place(written_in, here)
        link = "" if same else f"ln -s {new} {old}; "
        back = f"use the cache under its old path: {link}export JAX_COMPILATION_CACHE_DIR={old}. "
        if not same and os.path.lexists(written_in):
            back = ""
        yield facts.finding("cache-dir-in-key", names, written_in=written_in, here=here, back=back)


def find_never_used(facts: Facts) -> Iterator[Finding]:
    """Entries that a move brought and no run hit, while one compiled modules of their names."""
    entries = facts.cache.entries
    recorded = [(e, r) for e in entries if (r := facts.cache.records.get(e.key))]
    own = sorted((r.compiled_ns or 0, e.key, e.module) for e, r in recorded if not r.arrived_ns)
    latest = {module: (compiled_ns, key) for compiled_ns, key, module in own}
    pairs = [
        (entry, latest[entry.module][1])
        for entry in entries
        if entry.last_used_from == "arrival"
        and latest.get(entry.module, (0, ""))[0] > entry.last_used_ns
    ]
    if pairs:
        names = [entry.file for entry, _ in pairs]
        entry, own_key = pairs[0]
        yield facts.finding("never-used", names, brought_key=entry.key, own_key=own_key)


def find_metadata_in_key(facts: Facts) -> Iterator[Finding]:
    """Source lines are part of the keys, so that an edit that changes no program misses."""
    if facts.setting(METADATA):
        yield facts.finding("metadata-in-key", metadata=METADATA_COST)


def find_directory_spelling(facts: Facts) -> Iterator[Finding]:
    """A directory that is another one elsewhere, or that only this spelling hits."""
    setting = facts.setting("jax_compilation_cache_dir")
    if not isinstance(setting, str) or not setting or facts.bucket:
        return
    absolute = os.path.abspath(setting)
    meant = _as_a_shell_reads(setting)
    mine = facts.interpreter
    is_hashed = mine is not None and hashes_path(mine.jax_version, facts.setting(XLA_CACHES))
    hashed = "; JAX 0.4.36 to 0.10 hash this spelling into the key, and no other one hits"
    if setting.startswith("file://"):
        cost = (
            f"without etils JAX treats it as the path {absolute}, and with it the first compile "
            "ends with KeyError: 'file://'"
        )
        absolute = setting.removeprefix("file://")
    elif meant != setting:
        cost = f"JAX expands no ~ and no variable and keeps quotes: the cache is {absolute}"
        absolute = os.path.abspath(meant)
    elif not setting.startswith(os.sep):
        cost = (
            "each working directory has a cache of its own, and a program that changes its "
            "working directory (Hydra does) uses another one than before"
        )
    elif is_hashed and os.path.realpath(setting) != str(PurePath(setting)):
        cost = f"it is a link or contains .., and leads to {os.path.realpath(setting)}"
    else:
        return
    effect = cost + (hashed if is_hashed else "")
    quoted = shlex.quote(absolute)
    yield facts.finding("directory-spelling", setting=setting, effect=effect, absolute=quoted)


def _as_a_shell_reads(setting: str) -> str:
    """The setting without quotes, which docker's ``--env-file`` keeps; variables and ~ expanded."""
    text = setting[1:-1] if setting[0] == setting[-1] and setting[0] in "'\"" else setting
    text = _VARIABLE.sub(lambda match: os.environ.get(match[1] or match[2], ""), text)
    with contextlib.suppress(FileNotFoundError):
        return expand_home(text)
    return text


def _is_same_place(written_in: str, here: str) -> bool:
    """Whether it is this directory, spelt another way: relative, or through a link."""
    if not written_in.startswith(os.sep):
        return os.path.normpath(here).endswith(os.sep + os.path.normpath(written_in))
    return os.path.realpath(written_in) == os.path.realpath(here)


def _pull_into(written_in: str, url: str) -> str:
    """Say how the entries of a bucket hit, which are written and used elsewhere."""
    new = shlex.quote(url)
    if "://" in written_in:
        return f"fill it under its own address: jaxcache warm -C {new} SCRIPT"
    return f"jaxcache pull {new} -C {shlex.quote(written_in)}"


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
    if others:
        rule = "zstandard-missing" if mine.written_codec == "zlib" else "zstandard-differs"
        install = install_into(mine.executable, "zstandard")
        yield facts.finding(rule, (e.file for e in others), install=install)


def find_codec_clash(facts: Facts) -> Iterator[Finding]:
    """Python 3.14: JAX compresses with the standard library's zstd, but the key contains zlib."""
    mine = facts.interpreter
    if mine is not None and mine.written_codec != _CODEC_OF_KEY.get(mine.key_codec):
        yield facts.finding("codec-clash")


def find_pmap_churn(facts: Facts) -> Iterator[Finding]:
    """``pmap`` of JAX 0.8 and 0.9 makes a new key in every process."""
    release = facts.jax_release
    if release is not None and not _PMAP_CHURN[0] <= release < _PMAP_CHURN[1]:
        return
    entries = [e for e in facts.cache.entries if e.module == _PMAP_MODULE]
    if len(entries) < 2:
        return
    size = format_size(sum(e.size_bytes for e in entries))
    yield facts.finding("pmap-churn", (e.file for e in entries), modules=_PMAP_MODULE, size=size)


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
        yield facts.finding(
            "mixed-jaxlib-builds",
            (files[k] for some in by_build.values() for k in some if k in files),
            builds=format_count(len(by_build), "build"),
            version=version,
            names=", ".join(sorted(b[:12] for b in by_build)),
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
    recorded = {r.jaxlib_version for k in orphans if (r := facts.cache.records.get(k))}
    filters = "".join(f" --filter jaxlib={v}" for v in recorded if len(recorded) == 1 and v)
    yield facts.finding(
        "orphaned-generations",
        (sizes[k][0] for k in orphans),
        versions=", ".join(f"{n:,} of {v}" for v, n in Counter(orphans.values()).most_common()),
        size=format_size(sum(sizes[k][1] for k in orphans)),
        filters=filters,
        unused_for="0s" if filters else "7d",
    )
