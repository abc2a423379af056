"""Remember which entry is being loaded, so that an entry that kills the process does it once.

A damaged executable can crash the process in the loader, where no Python code runs any more. So
the key is written to a file of this process before the load and taken out after it. The file is
held by a record lock: a file with a key in it and nobody's lock belongs to a process that died.
"""

import contextlib
import os
import threading

from .files import own_folder, try_lock

_MAX_BYTES = 64 << 10
_FOLDER = ("live", "loading")
#: Names of the files of this process; after a fork those of the parent, too.
_OWN: "set[str]" = set()


class Loading:
    """The keys that this process is loading from one directory; a forked child has its own."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._keys: list[str] = []
        self._fd = -1
        self._path = ""

    def begin(self, *keys: str) -> None:
        """Note that a key is about to be loaded.

        Args:
            keys: none where an entry is about to be written: the next process then learns that
                this one died.

        Raises:
            OSError: the directory cannot be written; nothing is remembered then.
        """
        with self._lock:
            if self._fd < 0:
                self._open()
            if keys:
                self._keys += keys
                self._write()

    def end(self, key: str) -> None:
        """Note that a load is over, however it ended."""
        with self._lock:
            if key in self._keys:
                self._keys.remove(key)
                with contextlib.suppress(OSError):
                    self._write()

    def close(self) -> None:
        """Remove the file of this process."""
        with self._lock:
            if self._fd >= 0:
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
                os.close(self._fd)
                self._fd, self._keys = -1, []

    def _open(self) -> None:
        folder = own_folder(self._root, *_FOLDER)
        name = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._path = os.path.join(folder, name)
        hidden = os.path.join(folder, f".{name}")  # nobody may look at it before it is locked
        fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try_lock(fd)
            _OWN.add(name)
            os.replace(hidden, self._path)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def _write(self) -> None:
        text = "\n".join(self._keys).encode()
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))


def find_dead(root: str) -> "tuple[set[str], bool]":
    """The keys during whose load a process died, and whether any process died; removes its files.

    A file of a live process is left, also where it is of another machine whose locks are seen.
    """
    folder = os.path.join(root, ".jaxcache", *_FOLDER)
    try:
        names = os.listdir(folder)
    except OSError:
        return set(), False
    keys: set[str] = set()
    died = False
    for name in names:
        # Closing a second descriptor of our own file would free its lock.
        if name in _OWN or name.startswith("."):
            continue
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if not try_lock(fd):
                    continue
                text = os.read(fd, _MAX_BYTES).decode("utf-8", "replace")
                keys.update(line for line in text.split("\n") if line and "/" not in line)
            finally:
                os.close(fd)
            os.unlink(path)
            died = True
    return keys, died
