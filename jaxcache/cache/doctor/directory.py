"""Checks of the directory and of the machine: CPU, bucket, permissions."""

import shlex
import stat
import time
from collections import Counter
from collections.abc import Iterator

from jaxcache.cache.doctor.inputs import Facts, Finding
from jaxcache.core.names import KERNEL_CACHE
from jaxcache.core.refusals import describe_refusal, refusal_fix
from jaxcache.core.use import is_possible
from jaxcache.entry.names import FileKind
from jaxcache.model import FileInfo
from jaxcache.units import format_command, format_count, format_size

#: Types of mounts that reach another machine, as Linux names them.
_NETWORK = """
nfs nfs4 cifs smb3 smbfs 9p afs ceph fuse.ceph lustre gpfs beegfs glusterfs fuse.glusterfs
fuse.sshfs fuse.gcsfuse fuse.s3fs fuse.juicefs fuse.rclone fuse.goofys fuse.mountpoint-s3 pvfs2
orangefs ocfs2 gfs2 wekafs panfs
"""
NETWORK_FILESYSTEMS = frozenset(_NETWORK.split())
_FOREIGN_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0
#: The first release that logs nothing of ``prefer-*`` (tried: 0.8.3, 0.9.2, 0.10.0, 0.10.1 log).
_PREFERENCES_IGNORED = (0, 10, 2)
_LOADS_ON_MACOS = (0, 10)
#: One of 2,107 kernels was reported to crash; the bound depends on the stack.
_MANY_INSTRUCTIONS = 1_000
#: Preferences of LLVM among its features, not instructions that a CPU needs.
_PREFERENCE = "prefer-"


def find_cpu_features(facts: Facts) -> Iterator[Finding]:
    """Entries for a CPU that has what this one lacks, as the user's jaxlib reports it."""
    mine = facts.interpreter
    if mine is None or mine.cpu_features is None:
        return
    absent = {name[1:] for name in mine.cpu_features if name[:1] == "-"}
    lacking = {file: features & absent for file, features in _cpu_needs(facts).items()}
    if files := [file for file, lacks in lacking.items() if lacks]:
        yield Finding(
            "cpu-features",
            "problem",
            f"{format_count(len(files), 'entry')} need features that this CPU does not have: "
            f"{', '.join(sorted(set().union(*lacking.values())))}",
            "JAX warns that they may end in SIGILL; under a version that does not hash the CPU "
            "they do",
            f"{_directory_per_machine(facts)}; or remove these: jaxcache rm KEY",
            files=tuple(files),
        )


def find_mixed_cpus(facts: Facts) -> Iterator[Finding]:
    """Hosts of several kinds fill one directory."""
    # Each LLVM has its own list: only features that all of them list distinguish CPUs.
    listed = [
        {name[1:] for name in contents.device.cpu_features}
        for _, contents in facts.decoded("cpu")
        if contents.device.cpu_features
    ]
    common = set.intersection(*listed) if listed else set()
    kinds = Counter(needs & common for needs in _cpu_needs(facts).values())
    if len(kinds) > 1:
        counts = ", ".join(f"{n:,}" for n in kinds.values())
        differing = sorted(frozenset.union(*kinds) - frozenset.intersection(*kinds))
        yield Finding(
            "mixed-cpus",
            "note",
            f"entries for {len(kinds)} kinds of CPU ({counts}), which differ in "
            f"{', '.join(differing)}",
            "the CPU is part of the key: each kind hits only what its own kind wrote, and "
            "prune, copies and CI caches carry all of them",
            _directory_per_machine(facts),
        )


def _cpu_needs(facts: Facts) -> dict[str, frozenset[str]]:
    """The features that each entry for a CPU was compiled with."""
    return {
        file: frozenset(
            name[1:]
            for name in contents.device.cpu_features
            if name[:1] == "+" and not name[1:].startswith(_PREFERENCE)
        )
        for file, contents in facts.decoded("cpu")
        if contents.device.cpu_features
    }


def _directory_per_machine(facts: Facts) -> str:
    path = shlex.quote(facts.cache.path)
    return (
        "give each kind of machine a directory of its own, in the script that starts programs: "
        f"key=$(jaxcache ci key -C {path}) && export JAX_COMPILATION_CACHE_DIR={path}/$key"
    )


def find_cpu_messages(facts: Facts) -> Iterator[Finding]:
    """Errors that jaxlib before 0.10.2 logs of preferences of LLVM; the entries load and run."""
    release = facts.jax_release
    if release is None or release >= _PREFERENCES_IGNORED:
        return
    files = facts.files_with(
        "cpu", lambda c: any(f.startswith("+prefer-") for f in c.device.cpu_features or ())
    )
    if files:
        yield Finding(
            "cpu-messages",
            "note",
            f"{format_count(len(files), 'entry')} compiled with +prefer-no-gather or the like",
            "jaxlib logs that the feature is not supported on the host machine at every load, also "
            "on the machine that compiled it; it is a preference and no instruction, and the "
            "entries hit and run",
            "ignore the message where it names only prefer-*; jaxlib 0.10.2 does not log it",
            "jax-ml/jax#38445, openxla/xla#44565",
            files=files,
        )


def find_large_on_macos(facts: Facts) -> Iterator[Finding]:
    """Large programs that jaxlib before 0.10 cannot load on macOS."""
    release = facts.jax_release
    if facts.host.system != "darwin" or release is None or release >= _LOADS_ON_MACOS:
        return
    files = facts.files_with(
        "cpu", lambda c: c.program and c.program.instructions > _MANY_INSTRUCTIONS
    )
    if files:
        yield Finding(
            "large-on-macos",
            "problem",
            f"{format_count(len(files), 'entry')} of more than {_MANY_INSTRUCTIONS:,} "
            "instructions, on macOS",
            "jaxlib before 0.10 overflows a stack while it loads such an entry: the process dies "
            "with SIGBUS or SIGILL at the second run",
            "use jaxlib 0.10, or no cache on macOS; and remove these: jaxcache rm KEY",
            "uwplasma/vmex#142",
            files=files,
        )


def find_tpu_without_first(facts: Facts) -> Iterator[Finding]:
    """Programs for some of the TPU's devices, not including device 0."""
    files = facts.files_with(
        "tpu",
        lambda c: (rows := c.compile_options.device_assignment) and all(0 not in r for r in rows),
    )
    if files:
        yield Finding(
            "tpu-without-device-0",
            "problem",
            f"{format_count(len(files), 'entry')} for TPU devices without device 0",
            "libtpu checks positions of devices that it stored, and the second run halts the TPU: "
            "Core halted unexpectedly (seen on v6e with libtpu 0.0.30)",
            "run such programs with JAX_ENABLE_COMPILATION_CACHE=0, or on devices from 0 on; "
            "and remove these: jaxcache rm KEY",
            "jax-ml/jax#38004, sgl-project/sglang-jax#1225",
            files=files,
        )


def find_bucket_unchecked(facts: Facts) -> Iterator[Finding]:
    """JAX opens a bucket without a timeout of its own, and does not check that it exists."""
    if facts.bucket and not facts.setting("live.enabled"):
        url = shlex.quote(facts.bucket)
        yield Finding(
            "bucket-unchecked",
            "note",
            f"jax_compilation_cache_dir is {facts.bucket}",
            "JAX sends requests to it at every compile; a bucket that does not exist or "
            "refuses access has hung programs, and Ctrl-C did not end them",
            f"try it first (exit code 10: it does not exist): jaxcache stats -C {url}; or "
            f"use a directory: jaxcache pull {url} -C DIR before, jaxcache push {url} -C DIR after",
            "jax-ml/jax#22364",
        )


def find_xla_caches_in_bucket(facts: Facts) -> Iterator[Finding]:
    """JAX hands the bucket's URL to caches of XLA, which know directories only."""
    chosen = facts.setting("jax_persistent_cache_enable_xla_caches")
    if facts.bucket and chosen not in (None, "", "none"):
        gpu = any(facts.decoded("gpu"))
        yield Finding(
            "xla-caches-in-bucket",
            "problem" if gpu else "note",
            f"jax_compilation_cache_dir is {facts.bucket}, and "
            f"jax_persistent_cache_enable_xla_caches is {chosen}",
            "XLA keeps its autotune and kernel caches below that URL, and does not support "
            "such a file system: a compile for a GPU ends with UNIMPLEMENTED: File system "
            "scheme",
            "export JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none",
            "marin-community/marin#3195, marin-community/marin#6953",
        )


def find_autotune_incomplete(facts: Facts) -> Iterator[Finding]:
    """XLA's autotune directory does not hold every measurement that a GPU program depends on."""
    chosen = str(facts.setting("jax_persistent_cache_enable_xla_caches") or "")
    if (chosen == "all" or "autotune" in chosen) and any(facts.decoded("gpu")):
        yield Finding(
            "autotune-incomplete",
            "note",
            "entries for a GPU, and XLA's autotune directory",
            "XLA times some fusions in every compile and does not store the results: the "
            "next compile may give results that differ in the last digits",
            "keep and copy the entries, which contain the choice; to compile the same again: "
            "XLA_FLAGS=--xla_gpu_dump_autotune_results_to=FILE, then "
            "--xla_gpu_load_autotune_results_from=FILE",
            "openxla/xla#37902",
        )


def find_kernel_cache(facts: Facts) -> Iterator[Finding]:
    """XLA's cache of kernels, which takes the code of one GPU for another."""
    chosen = str(facts.setting("jax_persistent_cache_enable_xla_caches") or "")
    files = facts.files_with("gpu", lambda contents: contents.kernel_cache)
    kept = [i for k, i in facts.cache.inventory.files() if k is FileKind.KERNEL_CACHE]
    if not (kept or files or chosen == "all" or KERNEL_CACHE in chosen):
        return
    is_on = f"jax_persistent_cache_enable_xla_caches is {chosen}"
    if kept:
        is_on = f"{kept[0].name} is here ({format_size(kept[0].size_bytes)})"
    elif files:
        is_on = f"{format_count(len(files), 'entry')} compiled with {KERNEL_CACHE}"
    yield Finding(
        "kernel-cache",
        "problem" if kept or files else "note",
        is_on,
        "XLA takes kernels from that file for any GPU without a check, so that a program may get "
        "code of another GPU; and a truncated file ends every compile with OUT_OF_RANGE",
        "set neither jax_persistent_cache_enable_xla_caches=all nor "
        f"--{KERNEL_CACHE}, and remove the file",
        "openxla/xla#35951, openxla/xla#33220",
        files=tuple(info.name for info in kept),
    )


def find_unknown_directories(facts: Facts) -> Iterator[Finding]:
    """Directories of other programs below the cache."""
    for directory in facts.cache.inventory.unknown_directories():
        yield Finding(
            "unknown-directory",
            "note",
            f"{directory.name} holds {directory}",
            "push, copy and export leave it, and limits on the size do not count it",
            "copy what the other program needs separately, or keep it outside the cache",
        )


def find_refused_tiers(facts: Facts) -> Iterator[Finding]:
    """The last program that took entries of a tier refused some of them."""
    for refusal in facts.cache.refusals:
        yield Finding(
            "tier-refused",
            "problem",
            f"the live layer refused {describe_refusal(refusal)}",
            "such an entry is fetched, but the program compiles it anyway",
            refusal_fix(refusal),
        )


def find_open_permissions(facts: Facts) -> Iterator[Finding]:
    """Others than the owner may write here. An entry is machine code, so that is: run code."""
    files = [f for f in _files(facts) if f.mode & _FOREIGN_WRITE and f.type != "symlink"]
    if not files:
        return
    who = "anybody" if any(f.mode & stat.S_IWOTH for f in files) else "the group"
    mine = all(f.owner == facts.host.user for f in files) or facts.host.user == _ROOT
    yield Finding(
        "unsafe-permissions",
        "problem",
        f"{who} may write {_what(files, facts)}",
        "an entry is machine code that JAX runs without a check: a user who can write here can "
        "run code as you",
        f"{format_command('doctor --fix', facts.cache.path)} removes those permissions"
        if mine
        else f"its owner should run: chmod -R go-w {shlex.quote(facts.cache.path)}",
        fix_kind="drop-permissions" if mine else None,
        files=tuple(f.name or "." for f in files),
    )


def find_foreign_owners(facts: Facts) -> Iterator[Finding]:
    """Files of other people; root's are as safe as the system."""
    trusted = {facts.host.user, _ROOT, -1}
    files = [f for f in _files(facts) if f.owner not in trusted]
    if files and facts.host.user != -1:
        owners = ", ".join(str(o) for o in sorted({f.owner for f in files}))
        yield Finding(
            "foreign-owner",
            "problem",
            f"owned by user {owners}: {_what(files, facts)}",
            "an entry is machine code that JAX runs without a check, and another user can "
            "change it",
            "use a cache of your own, or have an owner that you trust seal and sign it",
            files=tuple(f.name or "." for f in files),
        )


def _files(facts: Facts) -> Iterator[FileInfo]:
    """The directory itself, which has no name, and what is in it."""
    if facts.cache.root is not None:
        yield facts.cache.root
    inventory = facts.cache.inventory
    yield from (e.info for e in inventory.entries)
    yield from inventory.atimes.values()
    yield from (o.info for o in inventory.others if o.kind is not FileKind.UNKNOWN)


def _what(files: list[FileInfo], facts: Facts) -> str:
    root = [f for f in files if not f.name]
    parts = [facts.cache.path] if root else []
    if len(files) > len(root):
        parts.append(
            format_count(len(files) - len(root), "file") + (" in it" if root else " in the cache")
        )
    return " and ".join(parts)


def find_network_filesystem(facts: Facts) -> Iterator[Finding]:
    """The cache is on another machine."""
    kind = facts.host.filesystem
    if kind in NETWORK_FILESYSTEMS:
        yield Finding(
            "network-filesystem",
            "note",
            f"the cache is on {kind}",
            "JAX writes entries in place, without a temporary file: another host can read half "
            "of one; locks and times of use may not work",
            "keep the cache on a local disk, and copy it between hosts",
        )


def find_noatime(facts: Facts) -> Iterator[Finding]:
    """Uses of entries are not recorded (noatime); not reported for buckets."""
    cache = facts.cache
    if cache.exists and not (cache.remote or cache.keeps_atime or cache.inventory.atimes):
        yield Finding(
            "noatime",
            "note",
            "the file system does not record reads (noatime), and the cache has no -atime files",
            "an entry in daily use looks as old as an unused one: prune --unused-for is refused",
            "mount it with relatime, or run programs through jaxcache run, which keeps a record",
        )


def find_future_dates(facts: Facts) -> Iterator[Finding]:
    """Files have dates in the future, which a wrong clock wrote."""
    now_ns = time.time_ns()
    atimes = facts.cache.inventory.atimes.values()
    files = [e.info for e in facts.cache.inventory.entries] + list(atimes)
    wrong = [f.name for f in files if f.mtime_ns > 0 and not is_possible(f.mtime_ns, now_ns)]
    if wrong:
        yield Finding(
            "future-dates",
            "note",
            f"{format_count(len(wrong), 'file')} written in the future, by the clock of this host",
            "the clock of some host was wrong; JAX's own eviction removes these entries last, and "
            "jaxcache ignores the dates",
            "set the clocks; touch sets new dates",
            files=tuple(wrong),
        )
