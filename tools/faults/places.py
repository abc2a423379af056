"""Surroundings that are in the way: a disk that is full, a lock whose holder stands still."""

import contextlib
import ctypes
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tools.faults.process import run_cli
from tools.faults.promises import Failure, Plan, after_fault, afterwards, judge
from tools.faults.trials import Lab
from tools.faults.world import look

#: Room on the disk beyond what the world takes, in blocks.
ROOMS = (0, 1, 2, 3, 5, 8, 12, 18, 26)
_BLOCK_BYTES = 4096
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_PRIVATE, _REMOUNT = (1 << 18) | (1 << 14), 32


def why_no_mounts() -> str | None:
    """Leave the mounts of everybody else; why that is impossible, or None."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_NEW_MOUNTS) and libc.unshare(_NEW_MOUNTS | _NEW_USER):
        return f"no mounts of one's own: {os.strerror(ctypes.get_errno())}"
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    if libc.mount(b"none", b"/", None, _PRIVATE, None):
        return f"no mounts of one's own: {os.strerror(ctypes.get_errno())}"
    return None


def full_disks(lab: Lab, plan: Plan, rooms: Iterable[int]) -> Iterator[Failure | None]:
    """Run it where there are only so many blocks left; then with room enough."""
    for room in rooms:
        with _small_disk(lab.template.parent / "disk") as (disk, resize):
            root = disk / "world"
            shutil.copytree(lab.template, root, symlinks=True)
            resize(_used_blocks(disk) + room)
            done = run_cli(root, plan.row.argv)
            broken = after_fault(plan, done, look(root))
            resize(1 << 16)
            broken += afterwards(root, plan)
            yield judge(plan, f"with {room} blocks left on the disk", broken)


@contextlib.contextmanager
def _small_disk(where: Path) -> Iterator[tuple[Path, Callable[[int], None]]]:
    libc = ctypes.CDLL(None, use_errno=True)
    where.mkdir()

    def mount(blocks: int, flags: int) -> None:
        size = f"size={blocks * _BLOCK_BYTES}".encode()
        if libc.mount(b"tmpfs", os.fsencode(where), b"tmpfs", flags, size):
            raise OSError(ctypes.get_errno(), "mount")

    mount(1 << 16, 0)
    try:
        yield where, lambda blocks: mount(blocks, _REMOUNT)
    finally:
        libc.umount2(os.fsencode(where), 2)
        where.rmdir()


def _used_blocks(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_blocks - status.f_bfree


def stopped_holder(lab: Lab, plan: Plan) -> Iterator[Failure | None]:
    """Run it while a process that holds JAX's lock is stopped; then let that one go."""
    with lab.fresh() as root:
        holder = _hold_and_stop([root / "cache", root / "other"])
        done = run_cli(root, plan.row.argv)
        broken = after_fault(plan, done, look(root))
        os.kill(holder, signal.SIGCONT)
        os.waitpid(holder, 0)
        broken += afterwards(root, plan)
        yield judge(plan, "the lock's holder stopped", broken)


def _hold_and_stop(caches: list[Path]) -> int:
    import filelock

    pid = os.fork()
    if not pid:
        with contextlib.ExitStack() as held:
            for cache in caches:
                held.enter_context(filelock.FileLock(cache / ".lockfile"))
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    return pid
