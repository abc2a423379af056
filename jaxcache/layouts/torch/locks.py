"""Torch's own locks: ``locks/<key>.lock``, held with ``flock`` while a kernel is compiled.

Source: ``torch/utils/_filelock.py`` (the ``filelock`` package, ``flock`` on Unix) and
``torch/_inductor/codecache.py``: ``CppCodeCache`` of 2.13. Graphs and generated ``.py`` are
written by rename without a lock, and need none to be removed.
"""

import contextlib
import errno
import os
from collections.abc import Iterator

from jaxcache.core.lock import open_lock
from jaxcache.layouts.torch.names import TorchKind, lock_path, parse_path
from jaxcache.store.base import Store, StoreError
from jaxcache.store.local import LocalStore

_LOCKED = frozenset({TorchKind.KERNEL_SOURCE, TorchKind.KERNEL, TorchKind.PROBE})


@contextlib.contextmanager
def hold_lock(store: Store, name: str) -> Iterator[bool]:
    """Hold the lock that goes with a file, without waiting; False where somebody else has it.

    The lock's file stays where it is: another process may be waiting on it. Where no process can
    hold one, in a store that is no directory, there is none to take; nor where there is no room to
    make one, on the full disk that a removal is to relieve.

    Raises:
        StoreError: the lock's file cannot be opened.
    """
    path = parse_path(name)
    if not isinstance(store, LocalStore) or path.kind not in _LOCKED or path.key is None:
        yield True
        return
    import fcntl

    directory, _, lock = lock_path(path.key).rpartition("/")
    try:
        with store.directory(directory, make=True) as opened:
            fd, _ = open_lock(opened, lock)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            yield True
            return
        raise StoreError(name, (error.strerror or str(error)).lower(), code="io-error") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(fd)
