"""Checks for what keeps JAX from writing entries."""

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence

from jaxcache.cache.doctor.inputs import (
    CAP,
    CONTENTS,
    LEAST_SIZE,
    Facts,
    Finding,
    Severity,
    install_into,
)
from jaxcache.cache.verify.run_checks import CORRUPT
from jaxcache.core.configuration import JAX_DEFAULTS
from jaxcache.core.machine import ATIME_REQUIRED
from jaxcache.core.names import CACHE_SUFFIX
from jaxcache.core.system import expand_home
from jaxcache.entry.names import FileKind
from jaxcache.store import cannot_make
from jaxcache.units import format_command, format_count, format_size, join_some

#: A file system is nearly full below this share of it, unless that is still this much.
_NEARLY_FULL = 0.05
_PLENTY_BYTES = 10 << 30
_SLOW_CAP_ENTRIES = 5_000
#: A module whose key is this near to the longest name will not survive a longer function name.
_NAME_MARGIN = 8
_SHOWN_NAME = 60
_THRESHOLD_REPORTS = "jax-ml/jax#21908, OpenSourceEconomics/pylcm#397"


def find_live_off(facts: Facts) -> Iterator[Finding]:
    """The live layer is switched on but will not run."""
    if error := facts.setting("live.error"):
        yield Finding(
            "live-off",
            "problem",
            str(error),
            "the live layer stays off, and JAX runs as without it",
            "correct the setting",
        )
    elif facts.setting("live.enabled") and not facts.setting("live.installed"):
        yield Finding(
            "live-not-installed",
            "problem",
            "the live layer is enabled, but jaxcache is not installed next to this jax",
            "JAX does not find the layer",
            "install jaxcache in that Python, or start programs with jaxcache run --live --",
        )


def find_cache_off(facts: Facts) -> Iterator[Finding]:
    """JAX is set not to cache, or no directory is set."""
    enabled = facts.setting("jax_enable_compilation_cache")
    if enabled is False:
        yield Finding(
            "cache-off",
            "problem",
            "jax_enable_compilation_cache is off",
            "JAX neither reads nor writes the cache",
            "unset JAX_ENABLE_COMPILATION_CACHE",
        )
    chosen = facts.setting("jax_compilation_cache_dir")
    if facts.settings and not chosen:
        yield Finding(
            "no-cache-dir",
            "note",
            "jax_compilation_cache_dir is not set outside scripts",
            "only scripts that set it themselves use a cache",
            f"export JAX_COMPILATION_CACHE_DIR={_directory(facts)}",
        )
    elif isinstance(chosen, str) and os.path.realpath(chosen) != os.path.realpath(facts.cache.path):
        yield Finding(
            "other-directory",
            "note",
            f"jax_compilation_cache_dir is {chosen}, and this is {facts.cache.path}",
            "JAX does not use the cache that is examined here",
            f"jaxcache doctor -C {shlex.quote(chosen)}",
        )


def _directory(facts: Facts) -> str:
    """The directory that JAX should use: a bucket is pulled from."""
    path = shlex.quote(facts.cache.path)
    if not facts.cache.writable:
        return _writable_directory(facts)
    if not facts.cache.remote:
        return path
    if any(c.written_in_cache_dir == facts.cache.path for c in facts.cache.contents.values()):
        return f"{path} JAXCACHE_LIVE=1, or start programs with jaxcache run -C {path} -- CMD"
    return f"DIR; jaxcache pull {path} -C DIR"


def find_jax_failing(facts: Facts) -> Iterator[Finding]:
    """This environment keeps jax from starting, so that no program compiles anything."""
    refused = [
        f"{s.name.upper()}={s.value}"
        for s in facts.settings
        if isinstance(s.value, str) and isinstance(JAX_DEFAULTS.get(s.name), bool | int | float)
    ]
    if facts.jax_error or refused:
        yield Finding(
            "jax-fails",
            "problem",
            facts.jax_error or f"{', '.join(refused)}: JAX refuses this value",
            "JAX does not start in this environment, and a program ends with this error",
            f"unset {' '.join(r.partition('=')[0] for r in refused)}"
            if refused
            else "correct what the error names",
        )


def find_contents_checked(facts: Facts) -> Iterator[Finding]:
    """JAX compares each entry with a new compile, and so never uses it the first time."""
    if facts.setting(CONTENTS):
        yield Finding(
            "contents-checked",
            "problem",
            f"{CONTENTS} is on",
            "JAX compiles each program again in every run, and a difference from its entry ends "
            "the program",
            f"unset {CONTENTS.upper()}",
        )


def find_cap_too_small(facts: Facts) -> Iterator[Finding]:
    """Not even the smallest entry fits below the cap."""
    cap = facts.setting(CAP)
    if not facts.capped or not isinstance(cap, int):
        return
    smallest = _smallest(facts)
    if cap <= 0 or (smallest is not None and cap < smallest):
        fact = f"{CAP} is {cap:,}"
        if smallest is not None:
            fact += f", and the smallest entry has {smallest:,} bytes"
        yield Finding(
            "cap-too-small",
            "problem",
            fact,
            "JAX writes no entry, and compiles everything in every run",
            f"export {CAP.upper()}=-1 for no cap, and run jaxcache prune --max-size from time to "
            "time; or set a cap above all that one run needs",
        )


def find_entry_size(facts: Facts) -> Iterator[Finding]:
    """JAX writes no entry below a size, and every entry that is known is smaller."""
    limit = facts.setting(LEAST_SIZE)
    sizes = [e.size_bytes for e in facts.cache.entries]
    largest = max(sizes, default=_smallest(facts))
    if isinstance(limit, int) and largest is not None and limit > largest:
        yield Finding(
            "entry-size",
            "problem",
            f"{LEAST_SIZE} is {limit:,}, and "
            + (f"the largest entry here has {largest:,} bytes" if sizes else "the cache is empty"),
            "JAX writes no entry below that size, and compiles such a program in every run",
            f"export {LEAST_SIZE.upper()}=0",
        )


def _smallest(facts: Facts) -> int | None:
    """The size of the smallest entry that is known: of the cache, or of a trivial program."""
    sizes = [e.size_bytes for e in facts.cache.entries if "empty" not in e.problems]
    trivial = facts.interpreter and facts.interpreter.smallest_entry_bytes
    return min([*sizes, trivial] if trivial else sizes, default=None)


def find_not_writable(facts: Facts) -> Iterator[Finding]:
    """Nothing can be written there."""
    if not facts.cache.writable:
        yield Finding(
            "not-writable",
            "problem",
            f"{facts.cache.path}: {facts.cache.why_not_writable or 'cannot be written'}",
            "JAX warns at every write, and the next run compiles again",
            "choose another directory, such as: "
            f"export JAX_COMPILATION_CACHE_DIR={_writable_directory(facts)}",
        )


def _writable_directory(facts: Facts) -> str:
    """Another directory that this user can make: a user of a container may have no home."""
    with contextlib.suppress(FileNotFoundError):
        usual = expand_home("~/.cache/jax")
        is_other = os.path.realpath(usual) != os.path.realpath(facts.cache.path)
        if is_other and not cannot_make(usual):
            return "~/.cache/jax"
    return "DIR, a directory of your own"


def find_disk_full(facts: Facts) -> Iterator[Finding]:
    """Little room is left; JAX's writes are not atomic, so a full disk leaves torn entries."""
    free = facts.host.free_bytes
    total = facts.host.total_bytes
    if facts.host.free_files == 0:
        prune = f"prune --max-entries {max(len(facts.cache.entries) // 2, 1)}"
        yield Finding(
            "disk-nearly-full",
            "problem",
            "the file system takes no more files (it has no inode left)",
            "JAX can write no entry",
            f"{format_command(prune, facts.cache.path)}, or move the cache",
        )
        return
    if free is None or not total:
        return
    largest = max((e.size_bytes for e in facts.cache.entries), default=0)
    if free < 2 * largest or (free < _NEARLY_FULL * total and free < _PLENTY_BYTES):
        yield Finding(
            "disk-nearly-full",
            "problem",
            f"{format_size(free)} of {format_size(total)} are free",
            "a write that does not fit leaves a cut-off entry, which JAX then never replaces",
            f"{format_command('prune --max-size SIZE', facts.cache.path)}, or move the cache",
        )


def find_lock_library_missing(facts: Facts) -> Iterator[Finding]:
    """A size cap takes ``filelock``, which JAX does not install."""
    mine = facts.interpreter
    if mine and facts.capped and not mine.has_filelock:
        yield Finding(
            "lock-library-missing",
            "problem",
            f"jax_compilation_cache_max_size is set, and {mine.executable} has no filelock",
            "JAX cannot open the cache at all, and compiles everything",
            install_into(mine.executable, "filelock"),
        )


def find_bucket_library_missing(facts: Facts) -> Iterator[Finding]:
    """A URL takes ``etils[epath]``, which JAX does not install."""
    mine = facts.interpreter
    if mine and facts.bucket and not mine.has_epath and not facts.setting("live.enabled"):
        s3 = facts.bucket.startswith("s3://")
        yield Finding(
            "bucket-library-missing",
            "problem",
            f"jax_compilation_cache_dir is {facts.bucket}, and {mine.executable} has no "
            "etils[epath]",
            "JAX warns once, and runs without a cache",
            "run programs with jaxcache run -- CMD; or install jaxcache[remote] next to that jax, "
            "and export JAXCACHE_LIVE=1; or, for JAX's own way, "
            + install_into(mine.executable, f"'etils[epath]' {'s3fs' if s3 else 'gcsfs'}"),
            "jax-ml/jax#21819",
        )


def find_missing_atime(facts: Facts) -> Iterator[Finding]:
    """Before 0.11.2 one entry without its ``-atime`` stops all writes under a size cap."""
    inventory = facts.cache.inventory
    missing = [
        e.info.name
        for e in inventory.entries
        if e.kind is FileKind.ENTRY and e.key_text not in inventory.atimes
    ]
    if not missing or not (facts.capped or inventory.atimes):
        return
    release = facts.jax_release
    if release is not None and release >= ATIME_REQUIRED.before:
        return
    yield Finding(
        "missing-atime",
        "problem",
        f"{format_count(len(missing), 'entry')} without an -atime file"
        + ("" if facts.capped else " next to others that have one"),
        "with jax_compilation_cache_max_size set, JAX before 0.11.2 fails on the first of them, "
        "and then writes nothing",
        f"{format_command('doctor --fix', facts.cache.path)} writes them, dated to the last use",
        "jax-ml/jax#39880",
        fix_kind="write-atime",
        files=tuple(missing),
    )


def find_foreign_names(facts: Facts) -> Iterator[Finding]:
    """Under a size cap JAX takes every name that ends in ``-cache`` for an entry."""
    if not facts.capped:
        return
    others = ((o.info.name.partition("/")[0], o) for o in facts.cache.inventory.others)
    named = {name: o for name, o in others if name.endswith(CACHE_SUFFIX)}
    root = facts.cache.path
    is_old = facts.jax_release is None or facts.jax_release < ATIME_REQUIRED.before
    broken = [n for n in named if not os.path.exists(os.path.join(root, n))]
    if names := sorted(named) if is_old else broken:
        severity: Severity = "problem"
        version = "JAX before 0.11.2" if is_old else "JAX"
        cost = f"with jax_compilation_cache_max_size set, {version} fails on it and writes nothing"
    elif names := sorted(named):
        severity = "note"
        cost = (
            "JAX takes it for an entry, and removes a file first where the cap is reached; a "
            "directory it cannot remove, and then writes nothing"
        )
    else:
        return
    paths = " ".join(shlex.quote(os.path.join(root, name)) for name in names)
    yield Finding(
        "foreign-name",
        severity,
        f"{join_some(names, 3)}: no entry of JAX, and named like one",
        cost,
        f"mv -n {paths} {shlex.quote(os.path.dirname(root))}",
        files=tuple(names),
    )


def find_lock_held(facts: Facts) -> Iterator[Finding]:
    """Somebody has held JAX's lock for a while."""
    if holders := facts.host.lock_holders:
        yield Finding(
            "lock-held",
            "problem",
            f".lockfile is held by {', '.join(holders)}",
            "with a size cap, every read and write waits for it, up to 10 s each, and then "
            "compiles again",
            "wait for that process, or end it if it hangs",
            files=(".lockfile",),
        )


def find_threshold(facts: Facts) -> Iterator[Finding]:
    """Compiles under a second, which is most of them, are not written by default."""
    limit = facts.setting("jax_persistent_cache_min_compile_time_secs")
    if not isinstance(limit, int | float) or limit <= 0 or not facts.cache.exists:
        return
    entries = facts.cache.entries
    cost = f"JAX writes nothing that compiled in under {limit:g} s, and compiles it in every run"
    fix = "export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0"
    if not entries:
        evidence = f"the cache is empty, and the threshold is {limit:g} s"
        yield Finding("threshold", "problem", evidence, cost, fix, _THRESHOLD_REPORTS)
        return
    # Entries record whole seconds, so a threshold below one leaves no trace in them.
    slow = (e.compile_seconds is not None and e.compile_seconds >= int(limit) for e in entries)
    if limit >= 1 and all(slow):
        evidence = (
            f"the {format_count(len(entries), 'entry')} here took at least {int(limit)} s to "
            "compile, so shorter compiles are probably not kept"
        )
        yield Finding("threshold", "note", evidence, cost, fix, _THRESHOLD_REPORTS)


def find_damage(facts: Facts) -> Iterator[Finding]:
    """Files that are visibly broken; JAX never replaces an entry that exists."""
    files = dict.fromkeys(p.file for p in facts.cache.problems if p.kind in CORRUPT)
    for entry in facts.cache.entries:
        contents = facts.cache.contents.get(entry.key)
        kinds = {kind for kind, _ in contents.problems} if contents else set()
        if kinds & CORRUPT and "unknown-format" not in entry.problems:
            files[entry.file] = None
    if files:
        yield Finding(
            "damaged-entries",
            "problem",
            f"{format_count(len(files), 'entry')} that cannot be read",
            "JAX warns and compiles at every run, and never replaces them",
            format_command("verify --fix", facts.cache.path),
            files=tuple(files),
        )


def find_unreadable(facts: Facts) -> Iterator[Finding]:
    """Files that this user may not read."""
    entries = {e.info.name: e.info for e in facts.cache.inventory.entries}
    if links := [name for name, info in entries.items() if info.type == "symlink"]:
        target = shlex.quote(f"{facts.cache.path}-copy")
        yield Finding(
            "links",
            "note",
            f"{format_count(len(links), 'entry')} that are symbolic links",
            "JAX reads them; jaxcache follows no link, and neither checks nor carries them",
            f"cp -RL {shlex.quote(facts.cache.path)} {target} makes a cache of files",
            files=tuple(links),
        )
    unreadable = (p.file for p in facts.cache.problems if p.kind == "unreadable")
    files = dict.fromkeys(name for name in unreadable if name not in links)
    if files:
        yield Finding(
            "unreadable-entries",
            "problem",
            f"{format_count(len(files), 'file')} that you may not read",
            "JAX warns and compiles at every run",
            _give_permission(facts, files),
            files=tuple(files),
        )


def _give_permission(facts: Facts, files: Iterable[str]) -> str:
    """Say how a file can be read: its owner can make it so, and nobody else."""
    owners = {info.owner for _, info in facts.cache.inventory.files() if info.name in {*files}}
    if owners <= {facts.host.user}:
        paths = (shlex.quote(os.path.join(facts.cache.path, name)) for name in files)
        return f"chmod u+r {' '.join(paths)}"
    return (
        f"its owner (user {', '.join(map(str, sorted(owners)))}) can let you read it; or use a "
        f"cache of your own: export JAX_COMPILATION_CACHE_DIR={_writable_directory(facts)}"
    )


def find_long_names(facts: Facts) -> Iterator[Finding]:
    """Names longer than the file system takes are never cached."""
    limit = facts.host.name_max
    sizes = [(len(os.fsencode(f.info.name)), f.info.name) for f in facts.cache.inventory.entries]
    near = [name for size, name in sizes if size > limit - _NAME_MARGIN]
    if near:
        longest = max(size for size, _ in sizes)
        over = longest > limit
        yield Finding(
            "name-too-long",
            "problem" if over else "note",
            f"{format_count(len(near), 'entry')} with a name of up to {longest} bytes; "
            f"a name may have {limit}",
            "an entry whose name is longer cannot be written, and compiles in every run",
            "give the function a shorter __name__",
            files=tuple(near),
        )


def find_uncacheable(facts: Facts) -> Iterator[Finding]:
    """Report compiles of a run that JAX refused to cache."""
    if modules := facts.uncacheable.get("name-too-long"):
        yield Finding(
            "name-too-long",
            "problem",
            f"{_shown(modules)}: the file's name would have more than {facts.host.name_max} bytes",
            "such an entry cannot be written, and compiles in every run",
            "give the function a shorter __name__",
        )
    if modules := facts.uncacheable.get("host-callbacks"):
        yield Finding(
            "host-callbacks",
            "problem",
            f"{_shown(modules)} calls back into Python",
            "JAX before 0.11 never caches such a program",
            "remove debug.print and pure_callback from the compiled function, or use jax 0.11",
        )


def _shown(modules: Sequence[str]) -> str:
    return join_some([m if len(m) <= _SHOWN_NAME else f"{m[:_SHOWN_NAME]}…" for m in modules], 3)


def find_slow_cap(facts: Facts) -> Iterator[Finding]:
    """Under a size cap every write reads every ``-atime`` file."""
    entries = len(facts.cache.inventory.entries)
    if facts.capped and entries >= _SLOW_CAP_ENTRIES:
        yield Finding(
            "slow-cap",
            "note",
            f"jax_compilation_cache_max_size is set over {format_count(entries, 'entry')}",
            "every write reads all -atime files under the lock: 0.5 s at 10,000 entries, "
            "6 s at 100,000",
            "unset the cap, and run jaxcache prune --max-size from time to time",
            "jax-ml/jax#36753",
        )


def find_capped_bucket(facts: Facts) -> Iterator[Finding]:
    """A size cap over a bucket: JAX would evict there, and its lock is a local one."""
    if facts.bucket and facts.capped:
        yield Finding(
            "capped-bucket",
            "problem",
            f"jax_compilation_cache_max_size is set, and JAX's cache is {facts.bucket}",
            "JAX lists the bucket at every write, puts an -atime object at every use, and locks "
            "a local directory, which other machines do not see",
            "unset the cap, and run jaxcache prune --max-size from time to time",
        )
