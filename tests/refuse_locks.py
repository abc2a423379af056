"""Run a command whose locks are all refused, as by a network file system without a lock server.

``python refuse_locks.py COMMAND [ARG…]``: ``flock`` and record locks fail with ENOLCK, by a seccomp
filter, which needs no privilege. Linux on x86-64 or aarch64.
"""

import ctypes
import errno
import fcntl
import os
import platform
import struct
import sys

#: The kernel's numbers of (architecture, flock, fcntl).
_MACHINES = {"x86_64": (0xC000003E, 73, 72), "aarch64": (0xC00000B7, 32, 25)}
#: F_OFD_SETLK and F_OFD_SETLKW have no names in Python.
_LOCKING = (fcntl.F_SETLK, fcntl.F_SETLKW, 37, 38)
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.ENOLCK
_ARCHITECTURE_AT, _NUMBER_AT, _SECOND_ARGUMENT_AT = 4, 0, 24


def why_not() -> "str | None":
    """Why locks cannot be refused here; None where they can."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return "needs Linux on x86-64 or aarch64"
    return None


def _filter() -> bytes:
    """Classic BPF."""
    architecture, flock, control = _MACHINES[platform.machine()]
    words = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_EQUAL, 3 + len(_LOCKING), 0, flock),
        (_JUMP_EQUAL, 0, 1 + len(_LOCKING), control),
        (_LOAD, 0, 0, _SECOND_ARGUMENT_AT),
        *((_JUMP_EQUAL, len(_LOCKING) - i, 0, n) for i, n in enumerate(_LOCKING)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("=HBBI", *word) for word in words)


def refuse() -> None:
    """Refuse the locks of this process and of all that it starts.

    Raises:
        OSError: this kernel or container has no such filters.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    program = _filter()
    code = (ctypes.c_char * len(program)).from_buffer_copy(program)
    header = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    for arguments in ((no_new_privileges, 1, 0, 0, 0), (set_seccomp, filter_mode, header, 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "cannot refuse locks")


if __name__ == "__main__":
    refuse()
    os.execvp(sys.argv[1], sys.argv[1:])
