"""Mount a directory through FUSE without hard links and ``renameat2``, as many network mounts are.

Speaks to ``/dev/fuse`` itself (``linux/fuse.h``, protocol 7.31), so that it needs root and nothing
else: ``python mount_without_links.py DIRECTORY MOUNTPOINT`` serves until it is unmounted. Words may
follow. With ``ignore-case`` names of another case are the same, and are kept as first written, as
on the volumes of macOS. With ``SECONDS``, such as ``0.02``, the mount waits so long where one of a
bucket sends a request: to look up a name, list, begin to read, finish a write, rename and remove.
"""

import contextlib
import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_MNT_DETACH = 2
_HEADER = struct.Struct("<IIQQIIII")
_ATTRIBUTES = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4Q2I")
_SETATTR = struct.Struct("<II6Q8I")
_OPEN_FLAGS = os.O_ACCMODE | os.O_TRUNC | os.O_APPEND
_LOOKUP, _GETATTR, _SETATTR_OP, _MKDIR, _UNLINK, _RMDIR, _RENAME = 1, 3, 4, 9, 10, 11, 12
_LINK, _OPEN, _READ, _WRITE, _STATFS, _RELEASE, _FSYNC, _FLUSH = 13, 14, 15, 16, 17, 18, 20, 25
_INIT, _OPENDIR, _READDIR, _RELEASEDIR, _CREATE, _DESTROY = 26, 27, 28, 29, 35, 38
_UNANSWERED = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET
_REQUESTS = frozenset({_LOOKUP, _MKDIR, _UNLINK, _RMDIR, _RENAME, _FLUSH})
_FIRST_PARTS = frozenset({_READ, _READDIR})


def can_mount() -> bool:
    """Whether this user may mount FUSE file systems here."""
    needed = ("/dev/fuse", "/proc/self")
    return sys.platform == "linux" and os.geteuid() == 0 and all(map(os.path.exists, needed))


@contextlib.contextmanager
def mounted_without_links(directory: Path, mountpoint: Path, *words: str) -> Iterator[Path]:
    """Mount a directory while the context lasts.

    Raises:
        OSError: the system refused the mount.
    """
    server = subprocess.Popen(
        [sys.executable, __file__, str(directory), str(mountpoint), *words], stdout=subprocess.PIPE
    )
    assert server.stdout
    try:
        if server.stdout.readline() != b"mounted\n":
            raise OSError(errno.EPERM, "cannot mount a FUSE file system")
        yield mountpoint
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(mountpoint), _MNT_DETACH)
        server.kill()  # which it would outlive as long as anything there is open
        server.wait()
        server.stdout.close()


class _Server:
    def __init__(
        self, directory: str, device: int, *, ignore_case: bool, delay_seconds: float
    ) -> None:
        self.device = device
        self.ignore_case = ignore_case
        self.delay_seconds = delay_seconds
        self.nodes = {1: os.open(directory, os.O_PATH)}
        self.numbers: dict[tuple[int, int], int] = {}

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self.device, 1 << 21)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                return  # unmounted
            _, operation, unique, node, uid, gid, _, _ = _HEADER.unpack_from(request)
            if operation in _UNANSWERED:
                continue
            number, answer = 0, b""
            if self.delay_seconds and _asks_the_bucket(operation, request[_HEADER.size :]):
                time.sleep(self.delay_seconds)
            try:
                answer = self.answer(operation, node, request[_HEADER.size :], (uid, gid))
            except OSError as error:
                number = error.errno or errno.EIO
            with contextlib.suppress(OSError):  # the caller was interrupted
                os.write(
                    self.device, struct.pack("<IiQ", 16 + len(answer), -number, unique) + answer
                )
            if operation == _DESTROY:
                return

    def answer(self, operation: int, node: int, body: bytes, owner: tuple[int, int]) -> bytes:
        directory = self.nodes.get(node, -1)
        if operation == _INIT:
            print("mounted", flush=True)
            return struct.pack("<4I2H2I2HI28x", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 32, 0, 0)
        if operation == _LOOKUP:
            return self.entry(directory, self.spelt(directory, _name(body)))
        if operation == _GETATTR:
            return self.attributes(directory)
        if operation == _SETATTR_OP:
            return self.change(directory, body)
        if operation == _MKDIR:
            name = self.spelt(directory, _name(body[8:]))
            os.mkdir(name, struct.unpack_from("<I", body)[0], dir_fd=directory)
            os.chown(name, *owner, dir_fd=directory, follow_symlinks=False)
            return self.entry(directory, name)
        if operation == _CREATE:
            flags, mode = struct.unpack_from("<2I", body)
            name = self.spelt(directory, _name(body[16:]))
            flags = flags & (_OPEN_FLAGS | os.O_EXCL) | os.O_CREAT
            file = os.open(name, flags, mode & 0o7777, dir_fd=directory)
            os.fchown(file, *owner)
            return self.entry(directory, name) + struct.pack("<QII", file, 0, 0)
        if operation in (_UNLINK, _RMDIR):
            name = self.spelt(directory, _name(body))
            (os.unlink if operation == _UNLINK else os.rmdir)(name, dir_fd=directory)
            return b""
        if operation == _RENAME:
            target = self.nodes[struct.unpack_from("<Q", body)[0]]
            old, new, _ = body[8:].split(b"\0")
            old, there = self.spelt(directory, old), self.spelt(target, new)
            new = new if there == old and target == directory else there
            os.rename(old, new, src_dir_fd=directory, dst_dir_fd=target)
            return b""
        if operation == _LINK:
            raise OSError(errno.EPERM, "no hard links here")
        return self.answer_for_files(operation, directory, body)

    def answer_for_files(self, operation: int, node: int, body: bytes) -> bytes:
        if operation in (_OPEN, _OPENDIR):
            flags = struct.unpack_from("<I", body)[0] & _OPEN_FLAGS
            return struct.pack("<QII", os.open(f"/proc/self/fd/{node}", flags), 0, 0)
        if operation == _STATFS:
            return struct.pack("<5Q10I", *(1 << 20,) * 5, 4096, 255, 4096, *(0,) * 7)
        if operation == _FLUSH:
            return b""
        file = struct.unpack_from("<Q", body)[0]
        if operation == _FSYNC:
            os.fsync(file)
        elif operation in (_RELEASE, _RELEASEDIR):
            os.close(file)
        elif operation == _READ:
            offset, size = struct.unpack_from("<QI", body, 8)
            return os.pread(file, size, offset)
        elif operation == _WRITE:
            offset, size = struct.unpack_from("<QI", body, 8)
            return struct.pack("<II", os.pwrite(file, body[40 : 40 + size], offset), 0)
        elif operation == _READDIR:
            return _listing(file, *struct.unpack_from("<QI", body, 8))
        else:
            raise OSError(errno.ENOSYS, "not served")
        return b""

    def spelt(self, directory: int, name: bytes) -> bytes:
        """The name as it is there, where case does not matter."""
        if self.ignore_case:
            for there in map(os.fsencode, os.listdir(f"/proc/self/fd/{directory}")):
                if there.lower() == name.lower():
                    return there
        return name

    def entry(self, directory: int, name: bytes) -> bytes:
        node = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=directory)
        status = os.fstat(node)
        number = self.numbers.setdefault((status.st_dev, status.st_ino), len(self.numbers) + 2)
        if number in self.nodes:
            os.close(node)
        self.nodes.setdefault(number, node)
        return _ENTRY.pack(number, 0, 0, 0, 0, 0) + _attributes(status)

    def attributes(self, node: int) -> bytes:
        return bytes(16) + _attributes(os.fstat(node))

    def change(self, node: int, body: bytes) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = (
            _SETATTR.unpack_from(body)
        )
        path = f"/proc/self/fd/{node}"
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 8:
            os.truncate(path, size)
        if valid & 0x30:
            now = os.fstat(node)
            times = (
                atime * 10**9 + atime_ns if valid & 0x10 else now.st_atime_ns,
                mtime * 10**9 + mtime_ns if valid & 0x20 else now.st_mtime_ns,
            )
            os.utime(path, ns=times)
        return self.attributes(node)


def _asks_the_bucket(operation: int, body: bytes) -> bool:
    """Whether a mount of a bucket sends a request: it knows the rest, or reads ahead."""
    is_first = operation in _FIRST_PARTS and struct.unpack_from("<Q", body, 8)[0] == 0
    return is_first or operation in _REQUESTS


def _name(body: bytes) -> bytes:
    return body.partition(b"\0")[0]


def _attributes(s: os.stat_result) -> bytes:
    times = [divmod(ns, 10**9) for ns in (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)]
    return _ATTRIBUTES.pack(
        s.st_ino,
        s.st_size,
        s.st_blocks,
        *(t[0] for t in times),
        *(t[1] for t in times),
        s.st_mode,
        s.st_nlink,
        s.st_uid,
        s.st_gid,
        0,
        4096,
        0,
    )


def _listing(directory: int, offset: int, size: int) -> bytes:
    listed = b""
    for number, name in enumerate(sorted(os.listdir(directory)), 1):
        if number <= offset:
            continue
        raw = os.fsencode(name)
        one = struct.pack("<QQII", number, number, len(raw), 0) + raw
        one += bytes(-len(one) % 8)
        if len(listed) + len(one) > size:
            break
        listed += one
    return listed


def main() -> int:
    """Mount and serve."""
    directory, mountpoint, *words = sys.argv[1:]
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"without-links", os.fsencode(mountpoint), b"fuse", 0, options.encode()):
        print(os.strerror(ctypes.get_errno()), flush=True)
        return 1
    delays = [float(word) for word in words if word != "ignore-case"]
    server = _Server(
        directory, device, ignore_case="ignore-case" in words, delay_seconds=sum(delays)
    )
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
