"""Checks for what keeps JAX from writing entries."""

import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

from jaxcache.cache.doctor import inputs
from jaxcache.cache.verify.run_checks import CORRUPT
from jaxcache.core.configuration import JAX_DEFAULTS
from jaxcache.core.machine import ATIME_REQUIRED
from jaxcache.core.names import ATIME_SUFFIX, CACHE_SUFFIX
from jaxcache.core.runs import read_records
from jaxcache.core.system import expand_home
from jaxcache.entry.names import FileKind
from jaxcache.store.base import cannot_make
from jaxcache.units import NS_PER_SECOND, format_count, format_duration, format_size, join_some

#: A file system is nearly full below this share of it, unless that is still this much.
_NEARLY_FULL = 0.05
_PLENTY_BYTES = 10 << 30
#: JAX's scan of a directory is worth a note above this, from so many entries on.
_SLOW_SCAN_SECONDS = 0.05
_SCANNED = 500
#: A module whose key is this near to the longest name will not survive a longer function name.
_NAME_MARGIN = 8
_SHOWN_NAME = 60
#: ``tmp.`` and ten characters of coreutils' mktemp; ``tmp`` and eight of Python's tempfile.
_TEMPORARY = re.compile(r"/(tmp\.[A-Za-z0-9]{10}|tmp[a-z0-9_]{8})(/|$)")


def find_live_off(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """The live layer is switched on but will not run."""
    if error := facts.setting("live.error"):
        yield facts.finding("live-off", error=error)
    elif facts.setting("live.enabled") and not facts.setting("live.installed"):
        yield facts.finding("live-not-installed")


def find_cache_off(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """JAX is set not to cache, or no directory is set."""
    if facts.setting("jax_enable_compilation_cache") is False:
        yield facts.finding("cache-off")
    chosen = facts.setting("jax_compilation_cache_dir")
    if facts.settings and not chosen:
        yield facts.finding("no-cache-dir", directory=_directory(facts))
    elif isinstance(chosen, str) and os.path.realpath(chosen) != os.path.realpath(facts.cache.path):
        yield facts.finding("other-directory", chosen=chosen, quoted=shlex.quote(chosen))


def find_overridden(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """The program that was run chose another directory than the variable names."""
    exported_dir = facts.host.cache_dir_variable
    setting = next((s for s in facts.settings if s.name == "jax_compilation_cache_dir"), None)
    if exported_dir and setting and setting.origin == "script" and isinstance(setting.value, str):
        names = {"program_dir": setting.value, "quoted": shlex.quote(setting.value)}
        yield facts.finding("overridden", exported_dir=exported_dir, **names)


def find_temporary_directory(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """A directory as ``mktemp -d`` and Python's ``tempfile`` name them."""
    setting = facts.setting("jax_compilation_cache_dir")
    if isinstance(setting, str) and _TEMPORARY.search(setting):
        usual = _writable_directory(facts)
        yield facts.finding("temporary-directory", temporary_dir=setting, directory=usual)


def _directory(facts: inputs.Facts) -> str:
    """The directory that JAX should use: a bucket is pulled from."""
    path = shlex.quote(facts.cache.path)
    if not facts.cache.writable:
        return _writable_directory(facts)
    if not facts.cache.remote:
        return path
    if any(c.written_in_cache_dir == facts.cache.path for c in facts.cache.contents.values()):
        return f"{path} JAXCACHE_LIVE=1, or start programs with jaxcache run -C {path} -- CMD"
    return f"DIR; jaxcache pull {path} -C DIR"


def find_jax_failing(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """This environment keeps jax from starting, so that no program compiles anything."""
    refused = [
        f"{s.name.upper()}={s.value}"
        for s in facts.settings
        if isinstance(s.value, str) and isinstance(JAX_DEFAULTS.get(s.name), bool | int | float)
    ]
    if refused:
        error = facts.jax_error or f"{', '.join(refused)}: JAX refuses this value"
        fix = f"unset {' '.join(r.partition('=')[0] for r in refused)}"
        yield facts.finding("jax-fails", error=error, fix=fix)
    elif facts.jax_error:
        yield facts.finding("jax-fails", error=facts.jax_error)


def find_contents_checked(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """JAX compares each entry with a new compile, and so never uses it the first time."""
    if facts.setting(inputs.CONTENTS):
        yield facts.finding("contents-checked")


def find_cap_too_small(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """Not even the smallest entry fits below the cap."""
    cap = facts.setting(inputs.CAP)
    if not facts.capped or not isinstance(cap, int):
        return
    smallest = _smallest(facts)
    if cap <= 0 or (smallest is not None and cap < smallest):
        shown = "" if smallest is None else f", and the smallest entry has {smallest:,} bytes"
        yield facts.finding("cap-too-small", cap=cap, smallest=shown)
    elif not facts.cache.remote:
        yield from _find_evicted(facts, cap)


def _find_evicted(facts: inputs.Facts, cap: int) -> Iterator[inputs.Finding]:
    """The last recorded run needs more than the cap, and entries of it are gone."""
    records = read_records(facts.cache.path)
    runs = [run for record in records if not record.travelled for run in record.runs]
    if not runs:
        return
    last = max(runs, key=attrgetter("at"))
    used = {r.key for r in last.rows if r.outcome in ("hit", "written")}
    sizes = {e.key: e.size_bytes for e in facts.cache.entries if e.key in used}
    began_ns = int(last.at * NS_PER_SECOND)
    evicted = [
        record
        for key in sorted(used - sizes.keys())
        if (record := facts.cache.ledger.record(key)) and (record.removed_ns or 0) < began_ns
    ]
    needed = sum(sizes.values()) + sum(record.entry_bytes or 0 for record in evicted)
    # Larger than the cap, so that JAX wrote none, and no size is recorded.
    unwritten = [row.module for row in last.rows if row.reason == "over-cap"]
    if evicted and needed > cap:
        modules = dict.fromkeys(record.key.rpartition("-")[0] for record in evicted)
        larger = f"; larger than the cap: {join_some(unwritten, 3)}" if unwritten else ""
        yield facts.finding(
            "cap-evicts",
            cap=cap,
            count=format_count(len(sizes) + len(evicted), "entry"),
            program=last.program,
            needed=needed,
            evicted=join_some([*modules], 3) + larger,
            setting=inputs.UNCAP if unwritten else inputs.larger_cap(needed),
        )


def find_entry_size(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """JAX writes no entry below a size, and every entry that is known is smaller."""
    limit = facts.setting(inputs.LEAST_SIZE)
    sizes = [e.size_bytes for e in facts.cache.entries]
    largest = max(sizes, default=_smallest(facts))
    if isinstance(limit, int) and largest is not None and limit > largest:
        shown = f"the largest entry here has {largest:,} bytes" if sizes else "the cache is empty"
        yield facts.finding("entry-size", limit=limit, largest=shown)


def _smallest(facts: inputs.Facts) -> int | None:
    """The size of the smallest entry that is known: of the cache, or of a trivial program."""
    sizes = [e.size_bytes for e in facts.cache.entries if "empty" not in e.problems]
    trivial = facts.interpreter and facts.interpreter.smallest_entry_bytes
    return min([*sizes, trivial] if trivial else sizes, default=None)


def find_not_writable(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """Nothing can be written there."""
    if not facts.cache.writable:
        reason = facts.cache.why_not_writable or "cannot be written"
        yield facts.finding("not-writable", reason=reason, directory=_writable_directory(facts))


def _writable_directory(facts: inputs.Facts) -> str:
    """Another directory that this user can make: a user of a container may have no home."""
    with suppress(FileNotFoundError):
        usual = expand_home("~/.cache/jax")
        is_other = os.path.realpath(usual) != os.path.realpath(facts.cache.path)
        if is_other and not cannot_make(usual):
            return "~/.cache/jax"
    return "DIR, a directory of your own"


def find_disk_full(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """Little room is left; JAX's writes are not atomic, so a full disk leaves torn entries."""
    free = facts.host.free_bytes
    total = facts.host.total_bytes
    if facts.host.free_files == 0:
        yield facts.finding("no-file-left", half=max(len(facts.cache.entries) // 2, 1))
        return
    if free is None or not total:
        return
    largest = max((e.size_bytes for e in facts.cache.entries), default=0)
    if free < 2 * largest or (free < _NEARLY_FULL * total and free < _PLENTY_BYTES):
        sizes = {"free": format_size(free), "total": format_size(total)}
        yield facts.finding("disk-nearly-full", **sizes)


def find_lock_library_missing(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """A size cap takes ``filelock``, which JAX does not install."""
    mine = facts.interpreter
    if mine and facts.capped and not mine.has_filelock:
        install = inputs.install_into(mine.executable, "filelock")
        yield facts.finding("lock-library-missing", install=install)


def find_bucket_library_missing(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """A URL takes ``etils[epath]``, which JAX does not install."""
    mine = facts.interpreter
    if mine and facts.bucket and not mine.has_epath and not facts.setting("live.enabled"):
        library = "s3fs" if facts.bucket.startswith("s3://") else "gcsfs"
        install = inputs.install_into(mine.executable, f"'etils[epath]' {library}")
        yield facts.finding("bucket-library-missing", install=install)


def find_missing_atime(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """Before 0.11.2 one entry without its ``-atime`` stops all writes under a size cap."""
    inventory = facts.cache.inventory
    missing = [
        e.info.name
        for e in inventory.entries
        if e.kind is FileKind.ENTRY and e.key_text not in inventory.atimes
    ]
    if missing and (facts.capped or inventory.atimes) and _needs_atime(facts):
        others = "" if facts.capped else " next to others that have one"
        yield facts.finding("missing-atime", missing, others=others)


def _needs_atime(facts: inputs.Facts) -> bool:
    """Whether the jax here fails on an entry without its ``-atime``, as far as it is known."""
    return facts.jax_release is None or facts.jax_release < ATIME_REQUIRED.before


def find_foreign_names(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """Under a size cap JAX takes every name that ends in ``-cache`` for an entry."""
    if not facts.capped:
        return
    tops = {o.info.name.partition("/")[0] for o in facts.cache.inventory.others}
    named = sorted(name for name in tops if name.endswith(CACHE_SUFFIX))
    root = facts.cache.path
    is_old = _needs_atime(facts)
    broken = [n for n in named if not os.path.exists(os.path.join(root, n))]
    names = named if is_old else broken or named
    if names:
        rule = "foreign-name" if is_old or broken else "foreign-name-evicted"
        yield facts.finding(
            rule,
            names,
            names=join_some(names, 3),
            version="JAX before 0.11.2" if is_old else "JAX",
            paths=" ".join(shlex.quote(os.path.join(root, name)) for name in names),
            above=shlex.quote(os.path.dirname(root)),
        )


def find_lock_held(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """Somebody has held JAX's lock for a while."""
    if holders := facts.host.lock_holders:
        yield facts.finding("lock-held", (".lockfile",), holders=", ".join(holders))


def find_threshold(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """Compiles under a second, which is most of them, are not written by default."""
    limit = facts.setting("jax_persistent_cache_min_compile_time_secs")
    if not isinstance(limit, int | float) or limit <= 0 or not facts.cache.exists:
        return
    entries = facts.cache.entries
    if not entries:
        yield facts.finding("threshold", limit=limit)
        return
    # Entries record whole seconds, so a threshold below one leaves no trace in them.
    slow = (e.compile_seconds is not None and e.compile_seconds >= int(limit) for e in entries)
    if limit >= 1 and all(slow):
        count = format_count(len(entries), "entry")
        yield facts.finding("threshold-seen", limit=limit, count=count, seconds=int(limit))


def find_damage(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """Files that are visibly broken; JAX never replaces an entry that exists."""
    files = dict.fromkeys(p.file for p in facts.cache.problems if p.kind in CORRUPT)
    for entry in facts.cache.entries:
        contents = facts.cache.contents.get(entry.key)
        kinds = {kind for kind, _ in contents.problems} if contents else set()
        if kinds & CORRUPT and "unknown-format" not in entry.problems:
            files[entry.file] = None
    if files:
        yield facts.finding("damaged-entries", files)


def find_unreadable(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """Files that this user may not read."""
    entries = {e.info.name: e.info for e in facts.cache.inventory.entries}
    if links := [name for name, info in entries.items() if info.type == "symlink"]:
        target = shlex.quote(f"{facts.cache.path}-copy")
        yield facts.finding("links", links, target=target)
    unreadable = (p.file for p in facts.cache.problems if p.kind == "unreadable")
    files = dict.fromkeys(name for name in unreadable if name not in links)
    if files:
        count = format_count(len(files), "file")
        permission = _give_permission(facts, files)
        yield facts.finding("unreadable-entries", files, count=count, permission=permission)


def _give_permission(facts: inputs.Facts, files: Iterable[str]) -> str:
    """Say how a file can be read: its owner can make it so, and nobody else."""
    owners = {info.owner for _, info in facts.cache.inventory.files() if info.name in {*files}}
    if owners <= {facts.host.user}:
        paths = (shlex.quote(os.path.join(facts.cache.path, name)) for name in files)
        return f"chmod u+r {' '.join(paths)}"
    return (
        f"its owner (user {', '.join(map(str, sorted(owners)))}) can let you read it; or use a "
        f"cache of your own: export JAX_COMPILATION_CACHE_DIR={_writable_directory(facts)}"
    )


def find_long_names(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """Names longer than the file system takes are never cached."""
    limit = facts.host.name_max
    sizes = [(len(os.fsencode(f.info.name)), f.info.name) for f in facts.cache.inventory.entries]
    near = [name for size, name in sizes if size > limit - _NAME_MARGIN]
    if near:
        longest = max(size for size, _ in sizes)
        severity = "problem" if longest > limit else "note"
        yield facts.finding("name-too-long", near, longest=longest, severity=severity)


def find_uncacheable(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """Report compiles of a run that JAX refused to cache."""
    for reason, rule in (("name-too-long", "name-refused"), ("host-callbacks", "host-callbacks")):
        if modules := facts.uncacheable.get(reason):
            names = [m if len(m) <= _SHOWN_NAME else f"{m[:_SHOWN_NAME]}…" for m in modules]
            yield facts.finding(rule, modules=join_some(names, 3))


def find_slow_cap(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """Under a size cap every write reads every ``-atime`` file: as long as some take, scaled up."""
    entries = facts.cache.inventory.entries
    if not facts.capped or facts.cache.remote or len(entries) < _SCANNED:
        return
    started = time.perf_counter()
    for entry in entries[:_SCANNED]:
        file = Path(facts.cache.path, entry.info.name)
        with suppress(OSError):
            file.stat()
            file.with_name(file.name.removesuffix(CACHE_SUFFIX) + ATIME_SUFFIX).read_bytes()
    seconds = (time.perf_counter() - started) * len(entries) / _SCANNED
    if seconds >= _SLOW_SCAN_SECONDS:
        count = format_count(len(entries), "entry")
        yield facts.finding("slow-cap", count=count, seconds=format_duration(seconds))


def find_capped_bucket(facts: inputs.Facts) -> Iterator[inputs.Finding]:
    """A size cap over a bucket: JAX would evict there, and its lock is a local one."""
    if facts.bucket and facts.capped:
        yield facts.finding("capped-bucket")
