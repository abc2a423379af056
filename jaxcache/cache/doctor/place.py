"""Traps of the place that the cache lies in: file system, permissions, CPU."""

import shlex
import stat
from collections.abc import Iterator

from jaxcache.cache.doctor.facts import Facts, Finding
from jaxcache.model import FileInfo
from jaxcache.units import format_count

#: Types of mounts that reach another machine, as Linux names them.
_NETWORK = """
nfs nfs4 cifs smb3 smbfs 9p afs ceph fuse.ceph lustre gpfs beegfs glusterfs fuse.glusterfs
fuse.sshfs fuse.gcsfuse fuse.s3fs fuse.juicefs fuse.rclone fuse.goofys fuse.mountpoint-s3 pvfs2
orangefs ocfs2 gfs2 wekafs panfs
"""
NETWORK_FILESYSTEMS = frozenset(_NETWORK.split())
_FOREIGN_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0
#: LLVM's names of x86 features, with Linux's where that is another; only features that Linux lists
#: in /proc/cpuinfo can be judged. Source: llvm/lib/Target/X86/X86.td, arch/x86/.../cpufeatures.h.
_X86_FEATURES = """
sse sse2 sse3:pni ssse3 sse4.1:sse4_1 sse4.2:sse4_2 sse4a avx avx2 fma fma4 f16c bmi:bmi1 bmi2 adx
aes sha:sha_ni pclmul:pclmulqdq gfni vaes vpclmulqdq popcnt lzcnt:abm movbe cx16 xop tbm
rdrnd:rdrand rdseed clwb clflushopt sahf:lahf_lm avx512f avx512bw avx512cd avx512dq avx512vl
avx512vbmi avx512ifma avx512vbmi2:avx512_vbmi2 avx512vnni:avx512_vnni
avx512bitalg:avx512_bitalg avx512vpopcntdq:avx512_vpopcntdq avx512bf16:avx512_bf16
avx512fp16:avx512_fp16 avxvnni:avx_vnni amx-bf16:amx_bf16 amx-int8:amx_int8 amx-tile:amx_tile
"""
TOLD_BY_SYSTEM = {
    llvm: linux or llvm
    for llvm, _, linux in (word.partition(":") for word in _X86_FEATURES.split())
}


def find_cpu_features(facts: Facts) -> Iterator[Finding]:
    """Entries for a CPU that has what this one lacks. ``prefer-*`` are preferences, not needs."""
    here = facts.host.cpu_features
    if here is None:
        return
    missing: set[str] = set()
    files = []
    names = {e.key: e.file for e in facts.cache.entries}
    for key, contents in facts.cache.contents.items():
        if contents.device.platform != "cpu" or not contents.device.cpu_features:
            continue
        wanted = {f[1:] for f in contents.device.cpu_features if f.startswith("+")}
        if lacking := {f for f in wanted if f in TOLD_BY_SYSTEM and f not in here}:
            missing |= lacking
            files.append(names[key])
    if files:
        yield Finding(
            "cpu-features",
            "problem",
            f"{format_count(len(files), 'entry')} need what this CPU lacks: "
            f"{', '.join(sorted(missing))}",
            "JAX warns that they may end in SIGILL; under a version that does not hash the CPU "
            "they do",
            "give each kind of CPU its own cache directory, or remove these: jaxcache rm KEY",
            files=tuple(files),
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
        "an entry is machine code that JAX runs unasked: whoever writes here runs code as you",
        "jaxcache doctor --fix takes those permissions away"
        if mine
        else f"its owner should run: chmod -R go-w {shlex.quote(facts.cache.path)}",
        mend="drop-permissions" if mine else None,
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
            f"{_what(files, facts)} belongs to user {owners}",
            "an entry is machine code that JAX runs unasked, and another user can change it",
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
    yield from (o.info for o in inventory.others)


def _what(files: list[FileInfo], facts: Facts) -> str:
    root = [f for f in files if not f.name]
    parts = [facts.cache.path] if root else []
    if len(files) > len(root):
        parts.append(
            format_count(len(files) - len(root), "file") + (" in it" if root else " in the cache")
        )
    return " and ".join(parts)


def find_network_filesystem(facts: Facts) -> Iterator[Finding]:
    """The cache lies on another machine."""
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
            "the file system does not record reads (noatime), and there are no -atime files",
            "an entry in daily use looks as old as one nobody needs: "
            "prune --unused-for goes by the date of writing",
            "mount it with relatime, or run programs through jaxcache run, which keeps a record",
        )
