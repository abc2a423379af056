"""Run a command for which system calls are refused that not every system or file system has.

``python refuse_calls.py locks COMMAND [ARG…]``: ``flock`` and record locks fail with ENOLCK, as on
a network file system without a lock server. ``python refuse_calls.py linux COMMAND [ARG…]``: what
Linux alone has fails (``renameat2``, extended attributes), and /proc is empty; with
``all`` ``flock`` fails, too. By a seccomp filter, which needs no privilege, on Linux on x86-64 or
aarch64; to hide /proc takes root.
"""

import ctypes
import errno
import fcntl
import os
import platform
import struct
import sys

#: The kernel's numbers of system calls, by machine.
_MACHINES = {
    "x86_64": (0xC000003E, {"flock": 73, "fcntl": 72, "renameat2": 316}, 188),
    "aarch64": (0xC00000B7, {"flock": 32, "fcntl": 25, "renameat2": 276}, 5),
}
#: setxattr, lsetxattr, fsetxattr, and so on for getxattr, listxattr and removexattr: in a row.
_XATTR_CALLS = 12
#: F_OFD_SETLK and F_OFD_SETLKW have no names in Python.
_LOCKING = (fcntl.F_SETLK, fcntl.F_SETLKW, 37, 38)
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_ARCHITECTURE_AT, _NUMBER_AT, _SECOND_ARGUMENT_AT = 4, 0, 24
_CLONE_NEWNS, _MS_PRIVATE, _MS_REC = 0x20000, 1 << 18, 1 << 14


def why_not(mode: str = "locks") -> "str | None":
    """Why calls cannot be refused here; None where they can."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return "needs Linux on x86-64 or aarch64"
    if mode != "locks" and os.geteuid() != 0:
        return "needs root, to hide /proc"
    return None


def _refusals(mode: str) -> "list[tuple[int, int]]":
    """The numbers of the calls that fail whatever their arguments, each with its error."""
    _, numbers, first_xattr = _MACHINES[platform.machine()]
    if mode == "locks":
        return [(numbers["flock"], errno.ENOLCK)]
    attributes = [(first_xattr + n, errno.ENOTSUP) for n in range(_XATTR_CALLS)]
    missing = [(numbers["renameat2"], errno.ENOSYS)]
    locks = [(numbers["flock"], errno.ENOTSUP)] if mode == "all" else []
    return [*attributes, *missing, *locks]


def _filter(mode: str) -> bytes:
    """Classic BPF."""
    architecture, numbers, _ = _MACHINES[platform.machine()]
    words = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    for number, error in _refusals(mode):
        words += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE | error)]
    if mode == "locks":
        words += [
            (_JUMP_EQUAL, 1, 0, numbers["fcntl"]),
            (_RETURN, 0, 0, _ALLOW),
            (_LOAD, 0, 0, _SECOND_ARGUMENT_AT),
        ]
        for command in _LOCKING:
            words += [(_JUMP_EQUAL, 0, 1, command), (_RETURN, 0, 0, _REFUSE | errno.ENOLCK)]
    words.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *word) for word in words)


def refuse(mode: str = "locks") -> None:
    """Refuse the calls of this process and of all that it starts.

    Raises:
        OSError: this kernel or container has no such filters, or hides nothing.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments):
            raise OSError(ctypes.get_errno(), f"cannot refuse calls: {name}")

    if mode != "locks":
        call("unshare", _CLONE_NEWNS)
        call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
        call("mount", b"none", b"/proc", b"tmpfs", 0, None)
    program = _filter(mode)
    code = (ctypes.c_char * len(program)).from_buffer_copy(program)
    header = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    call("prctl", no_new_privileges, 1, 0, 0, 0)
    call("prctl", set_seccomp, filter_mode, header, 0, 0)


if __name__ == "__main__":
    refuse(sys.argv[1])
    os.execvp(sys.argv[2], sys.argv[2:])
