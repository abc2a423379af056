"""Checks of the directory and of the machine: CPU, bucket, permissions."""

import shlex
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from jaxcache.cache.doctor.inputs import Facts, Finding
from jaxcache.core.eviction import is_possible
from jaxcache.core.ledger import IMPORTED
from jaxcache.core.names import KERNEL_CACHE
from jaxcache.core.signing import describe_refusal, refusal_fix
from jaxcache.entry.names import FileKind
from jaxcache.model import FileInfo
from jaxcache.units import format_count, format_size, join_some

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
#: The first release whose keys and entries have the CPU's features.
_CPU_IN_KEY = (0, 8, 3)
_SHOWN_FEATURES = 4


def find_other_cpus(facts: Facts) -> Iterator[Finding]:
    """Entries for other CPUs than this one as the user's jaxlib reports it, or for several."""
    entries = [(f, c.device) for f, c in facts.decoded("cpu") if c.device.cpu_features]
    mine = facts.interpreter.cpu_features if facts.interpreter else None
    # Each LLVM has its own list: only features that all of them list distinguish CPUs.
    lists = [features for _, device in entries if (features := device.cpu_features)]
    listed = [{name[1:] for name in features} for features in (*lists, *([mine] if mine else ()))]
    common = set.intersection(*listed) if listed else set()
    kinds = Counter(_enabled(features) & common for features in lists)
    if mine and kinds and (here := _enabled(mine) & common) not in kinds:
        with_, without = frozenset.union(*kinds) - here, here - frozenset.intersection(*kinds)
        yield facts.finding(
            "cpu-features",
            (file for file, _ in entries),
            cpu=", ".join(sorted({str(device.cpu_name) for _, device in entries})),
            differing=" and ".join(
                f"{word} {join_some(sorted(names), _SHOWN_FEATURES)}"
                for word, names in (("with", with_), ("without", without))
                if names
            ),
            per_machine=_directory_per_machine(facts),
        )
    if len(kinds) > 1:
        differing = sorted(frozenset.union(*kinds) - frozenset.intersection(*kinds))
        yield facts.finding(
            "mixed-cpus",
            kinds=len(kinds),
            counts=", ".join(f"{n:,}" for n in kinds.values()),
            differing=", ".join(differing),
            per_machine=_directory_per_machine(facts),
        )


def find_cpu_not_in_key(facts: Facts) -> Iterator[Finding]:
    """A cache that reaches several machines, under a JAX whose entries and keys lack the CPU."""
    release = facts.jax_release
    records = facts.cache.records.values()
    moves = facts.cache.remote or facts.host.filesystem in NETWORK_FILESYSTEMS
    moves = moves or any(r.arrived_ns or IMPORTED in r.extra for r in records)
    if release is not None and release < _CPU_IN_KEY and moves and any(facts.decoded("cpu")):
        yield facts.finding("cpu-not-in-key", per_machine=_directory_per_machine(facts))


def _enabled(features: Iterable[str]) -> frozenset[str]:
    """Return the instructions among features; a preference of LLVM is none."""
    return frozenset(f[1:] for f in features if f[:1] == "+" and not f.startswith("+prefer-"))


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
        yield facts.finding("cpu-messages", files)


def find_large_on_macos(facts: Facts) -> Iterator[Finding]:
    """Large programs that jaxlib before 0.10 cannot load on macOS."""
    release = facts.jax_release
    if facts.host.system != "darwin" or release is None or release >= _LOADS_ON_MACOS:
        return
    files = facts.files_with(
        "cpu", lambda c: c.program and c.program.instructions > _MANY_INSTRUCTIONS
    )
    if files:
        yield facts.finding("large-on-macos", files, most=_MANY_INSTRUCTIONS)


def find_tpu_without_first(facts: Facts) -> Iterator[Finding]:
    """Programs for some of the TPU's devices, not including device 0."""
    files = facts.files_with(
        "tpu",
        lambda c: (rows := c.compile_options.device_assignment) and all(0 not in r for r in rows),
    )
    if files:
        yield facts.finding("tpu-without-device-0", files)


def find_bucket_unchecked(facts: Facts) -> Iterator[Finding]:
    """JAX opens a bucket without a timeout of its own, and does not check that it exists."""
    if facts.bucket and not facts.setting("live.enabled"):
        yield facts.finding("bucket-unchecked", url=shlex.quote(facts.bucket))


def find_xla_caches_in_bucket(facts: Facts) -> Iterator[Finding]:
    """JAX hands the bucket's URL to caches of XLA, which know directories only."""
    chosen = facts.setting("jax_persistent_cache_enable_xla_caches")
    if facts.bucket and chosen not in (None, "", "none"):
        severity = "problem" if any(facts.decoded("gpu")) else "note"
        yield facts.finding("xla-caches-in-bucket", chosen=chosen, severity=severity)


def find_autotune_incomplete(facts: Facts) -> Iterator[Finding]:
    """XLA's autotune directory does not hold every measurement that a GPU program depends on."""
    chosen = str(facts.setting("jax_persistent_cache_enable_xla_caches") or "")
    if (chosen == "all" or "autotune" in chosen) and any(facts.decoded("gpu")):
        yield facts.finding("autotune-incomplete")


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
    severity = "problem" if kept or files else "note"
    names = (info.name for info in kept)
    yield facts.finding("kernel-cache", names, is_on=is_on, severity=severity)


def find_unknown_directories(facts: Facts) -> Iterator[Finding]:
    """Directories of other programs below the cache."""
    for directory in facts.cache.inventory.unknown_directories():
        yield facts.finding("unknown-directory", directory=directory)


def find_refused_tiers(facts: Facts) -> Iterator[Finding]:
    """The last program that took entries of a tier refused some of them."""
    for refusal in facts.cache.refusals:
        refused = describe_refusal(refusal)
        yield facts.finding("tier-refused", refusal=refused, mend=refusal_fix(refusal))


def find_open_permissions(facts: Facts) -> Iterator[Finding]:
    """Others than the owner may write here. An entry is machine code, so that is: run code."""
    files = [f for f in _files(facts) if f.mode & _FOREIGN_WRITE and f.type != "symlink"]
    if not files:
        return
    who = "anybody" if any(f.mode & stat.S_IWOTH for f in files) else "the group"
    mine = all(f.owner == facts.host.user for f in files) or facts.host.user == _ROOT
    rule = "unsafe-permissions" if mine else "others-permissions"
    names = (f.name or "." for f in files)
    yield facts.finding(rule, names, who=who, what=_what(files, facts))


def find_foreign_owners(facts: Facts) -> Iterator[Finding]:
    """Files of other people; root's are as safe as the system."""
    trusted = {facts.host.user, _ROOT, -1}
    files = [f for f in _files(facts) if f.owner not in trusted]
    if files and facts.host.user != -1:
        owners = ", ".join(str(o) for o in sorted({f.owner for f in files}))
        names = (f.name or "." for f in files)
        yield facts.finding("foreign-owner", names, owners=owners, what=_what(files, facts))


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
    if facts.host.filesystem in NETWORK_FILESYSTEMS:
        yield facts.finding("network-filesystem")


def find_noatime(facts: Facts) -> Iterator[Finding]:
    """Uses of entries are not recorded (noatime); not reported for buckets."""
    cache = facts.cache
    if cache.exists and not (cache.remote or cache.keeps_atime or cache.inventory.atimes):
        yield facts.finding("noatime")


def find_future_dates(facts: Facts) -> Iterator[Finding]:
    """Files have dates in the future, which a wrong clock wrote."""
    now_ns = time.time_ns()
    atimes = facts.cache.inventory.atimes.values()
    files = [e.info for e in facts.cache.inventory.entries] + list(atimes)
    wrong = [f.name for f in files if f.mtime_ns > 0 and not is_possible(f.mtime_ns, now_ns)]
    if wrong:
        yield facts.finding("future-dates", wrong, count=format_count(len(wrong), "file"))
