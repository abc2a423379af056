"""Remember which entry is being loaded, so that an entry that kills the process does it once.

Where it was loaded ahead it does it twice: the first death may be that of a process that was
killed, so that the next run loads the entry on request.

A damaged executable can crash the process in the loader, where no Python code runs any more. So
the key is written to a file of this process before the load and taken out after it. The file is
held by a record lock: a file that contains a key and is not locked belongs to a process that died.

An entry is under suspicion until its executable was executed once. Nothing waits for that: the
calling thread goes on, and a thread of its own looks whether the results are there, holding none
of them.

The record of the modules that a program loaded, in order of use, decides what its next run loads
ahead (``preload.py``). It is a file of the cache directory, ``.jaxcache/live/starts/<program>``:
the SHA-256 of what follows, a line feed and a JSON object. It never comes from a tier or a bundle.
Compile options are parsed by XLA and decide what a load does, so the file must belong to this user,
and no other user may write it.

:class:`Leases` let one process compile what several miss at the same time.

On one machine a lease is a record lock on one byte of ``.jaxcache/live/leases``, at an offset that
the key gives: the system frees it when its owner ends, however it ends. Between machines it is an
object in the last writable tier, created only if it does not exist, with the time until which it
counts. Any user who may write there can make leases, so the waiting time of a process is limited in
total.
"""

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import re
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from ..core.atomic import is_named, new_file, open_lock
from ..core.configuration import working_directory
from ..core.names import is_key
from ..core.seams.cache import Load
from ..core.system import try_lock
from ..core.threads import start_thread
from .files import own_directory_of, read_entry

_MAX_BYTES = 64 << 10
_DIRECTORY = ("live", "loading")
_NAME = r"\d{1,10}-[0-9a-f]{12}"
#: The first line of each file: a file without it is not ours, and stays.
_TITLE = "jaxcache loads"
#: That of a file with the loads that JAX has not requested yet.
AHEAD = "jaxcache loads ahead"
#: Names of the files of this process; after a fork those of the parent, too.
_OWN: "set[str]" = set()


class Loading:
    """The keys that this process is loading from one directory; a forked child has its own."""

    def __init__(self, root: str, title: str = _TITLE) -> None:
        self._root = root
        self._title = title
        self._lock = threading.RLock()
        self._keys: list[str] = []
        self._fd = -1
        self._name = ""

    def begin(self, *keys: str) -> None:
        """Note that a key is about to be loaded.

        Args:
            keys: none where an entry is about to be written: the next process then learns that
                this one died.

        Raises:
            OSError: the directory cannot be written or has no locks; nothing is remembered then.
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

    def close(self, *, is_unswept: bool = False) -> None:
        """Remove the file of this process; where a sweep failed, it stays and names no key."""
        with self._lock:
            if self._fd >= 0:
                with (
                    contextlib.suppress(OSError),
                    own_directory_of(self._root, *_DIRECTORY, make=False) as directory,
                ):
                    self._keys = []
                    if is_unswept:
                        self._write()
                    elif is_named(self._fd, directory, self._name):
                        os.unlink(self._name, dir_fd=directory)
                os.close(self._fd)
                self._fd = -1

    def _open(self) -> None:
        self._name = f"{os.getpid()}-{os.urandom(6).hex()}"
        hidden = f".{self._name}"  # hidden until it is locked
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with own_directory_of(self._root, *_DIRECTORY) as directory:
            fd = os.open(hidden, flags, 0o600, dir_fd=directory)
            try:
                try_lock(fd)
                os.write(fd, self._title.encode())
                _OWN.add(self._name)
                os.replace(hidden, self._name, src_dir_fd=directory, dst_dir_fd=directory)
            except OSError:
                os.close(fd)
                with contextlib.suppress(OSError):
                    os.unlink(hidden, dir_fd=directory)
                raise
        self._fd = fd

    def _write(self) -> None:
        text = "\n".join((self._title, *self._keys)).encode()
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))


class DeadLoads(NamedTuple):
    """What processes were loading when they died."""

    keys: "set[str]"
    ahead: "set[str]"
    """Keys that were being loaded ahead."""
    died: bool
    """Whether any process died."""


def find_dead(root: str) -> DeadLoads:
    """Return the keys during whose load a process died, and remove the files of dead processes.

    A file of a live process is left, also where it is of another machine whose locks are seen, and
    so is any file that :class:`Loading` has not written.
    """
    keys: dict[str, set[str]] = {_TITLE: set(), AHEAD: set()}
    died = False
    with contextlib.suppress(OSError), own_directory_of(root, *_DIRECTORY, make=False) as directory:
        for name in os.listdir(directory):
            # Closing a second descriptor of our own file would free its lock.
            if name in _OWN or not re.fullmatch(_NAME, name):
                continue
            with contextlib.suppress(OSError):
                lines = _read_abandoned(directory, name)
                if lines is not None:
                    os.unlink(name, dir_fd=directory)
                    title, *dead = lines
                    keys[title].update(dead)
                    died = True
    return DeadLoads(keys[_TITLE], keys[AHEAD], died)


def _read_abandoned(directory: int, name: str) -> "list[str] | None":
    """Title and keys of a file of :class:`Loading` whose process ended; None for any other file.

    Raises:
        OSError: it cannot be opened, such as a link or another user's file.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=directory)
    try:
        if not try_lock(fd):
            return None
        lines = os.read(fd, _MAX_BYTES).decode("utf-8", "replace").split("\n")
    finally:
        os.close(fd)
    return lines if lines[0] in (_TITLE, AHEAD) and all(map(is_key, lines[1:])) else None


_LOOK_SECONDS = 0.02


class FirstRuns:
    """Executables that have not been executed yet, and what to call after that."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset: a forked child has no thread."""
        self._lock = threading.RLock()
        self._waiting: dict[int, Callable[[], None]] = {}
        self._running: list[tuple[list[weakref.ref[Any]], Callable[[], None]]] = []
        self._is_looking = False

    def watch(self, executable: Any, over: "Callable[[], None]") -> None:
        """Call ``over`` when an executable was executed once; never where it is not."""
        self._waiting[id(executable)] = over

    def execute(self, original: Any, args: Any, kwargs: Any) -> Any:
        """Execute as JAX does (``ExecuteReplicated.__call__``)."""
        over = None
        if self._waiting:
            over = self._waiting.pop(id(getattr(args[0], "xla_executable", None)), None)
        if over is None:
            return original(*args, **kwargs)
        results: Any = ()
        try:
            results = original(*args, **kwargs)
            return results
        finally:
            self._await(results, over)

    def _await(self, results: Any, over: "Callable[[], None]") -> None:
        arrays = [weakref.ref(one) for one in results if hasattr(one, "is_ready")]
        with self._lock:
            self._running.append((arrays, over))
            if self._is_looking:
                return
            self._is_looking = True
        if start_thread("first-run", self._look) is None:  # all notes of this process end, too
            self._is_looking = False

    def _look(self) -> None:
        while True:
            with self._lock:
                running = self._running
                self._running = []
                if not running:
                    self._is_looking = False
                    return
            unfinished = []
            for arrays, over in running:
                if all(map(_is_ready, arrays)):
                    over()
                else:
                    unfinished.append((arrays, over))
            with self._lock:
                self._running += unfinished
            time.sleep(_LOOK_SECONDS)


def _is_ready(reference: "weakref.ref[Any]") -> bool:
    """Whether a result is there, or is gone."""
    array = reference()
    try:
        return array is None or array.is_deleted() or array.is_ready()
    except Exception:  # the execution failed, or the array went meanwhile
        return True


_STARTS = ("live", "starts")
MAX_LOADS = 1024
_MAX_OPTIONS_BYTES = 64 << 10
_MAX_FILE_BYTES = 4 << 20
#: Programs that one cache directory remembers.
_MAX_PROGRAMS = 128
_CPUINFO_BYTES = 4096
_PROGRAM = "[0-9a-f]{16}"


class LastRun(NamedTuple):
    """The loads of one run, and the devices that it had."""

    devices: "list[list[Any]]"
    """Id, kind and process index of each."""
    loads: "tuple[Load, ...]"


def program_name(versions: "dict[str, str]", process_index: int) -> str:
    """Name this program: its script, or its module and directory, user, JAX, process, type of CPU.

    A cache on a shared file system serves machines of several types, and an executable made for one
    need not load on another.
    """
    from ..core.call_site import name_program

    argv = [str(word) for word in sys.argv]
    place = name_program(argv, working_directory()).place
    parts = (place, os.geteuid(), process_index, _cpu(), *versions.values())
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def _cpu() -> str:
    """The model and the features of the first processor, as far as the system names them."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        lines = file.read(_CPUINFO_BYTES).decode("utf-8", "replace").split("\n\n")[0].splitlines()
        names = ("model name", "flags", "Features", "CPU part")
        return "\n".join(line for line in lines if line.startswith(names))
    return ""


def read_last_run(root: str, program: str) -> "LastRun | None":
    """Read a program's record; None if none can be trusted.

    Raises:
        OSError: the directory cannot be read.
    """
    try:
        with own_directory_of(root, *_STARTS, make=False) as directory:
            data, status = read_entry(program, _MAX_FILE_BYTES, directory=directory)
    except FileNotFoundError:
        return None
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        return None
    digest, _, text = data.partition(b"\n")
    if digest.decode("latin-1") != hashlib.sha256(text).hexdigest():
        return None
    try:
        document = json.loads(text)
        options = [base64.b64decode(one) for one in document["options"]]
        loads = tuple(
            Load(key, options[number], tuple(devices), is_plain)
            for key, number, devices, is_plain in document["loads"][:MAX_LOADS]
            if is_key(key)
        )
        return LastRun(document["devices"], loads)
    except (LookupError, TypeError, ValueError):  # of another version of jaxcache
        return None


def write_last_run(root: str, program: str, run: LastRun) -> None:
    """Write a program's record whole, for this user alone.

    Raises:
        OSError: the directory cannot be written.
    """
    loads = [load for load in run.loads if len(load.options) <= _MAX_OPTIONS_BYTES]
    options = list(dict.fromkeys(load.options for load in loads))
    document = {
        "devices": run.devices,
        "options": [base64.b64encode(one).decode() for one in options],
        "loads": [[x.key, options.index(x.options), x.devices, x.is_plain] for x in loads],
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    if len(text) >= _MAX_FILE_BYTES:
        return
    data = hashlib.sha256(text).hexdigest().encode() + b"\n" + text
    with own_directory_of(root, *_STARTS) as directory:
        with new_file(directory, [data], mode=0o600, durable=False) as file:
            file.give_name(program)
        names = _records(directory)
        if len(names) > _MAX_PROGRAMS:
            oldest = min(names, key=lambda n: os.stat(n, dir_fd=directory).st_mtime_ns)
            os.unlink(oldest, dir_fd=directory)


def forget_runs_with(root: str, keys: "set[str]") -> None:
    """Remove each record that names one of these keys, as far as this user may.

    Raises:
        OSError: the directory cannot be read or changed.
    """
    with own_directory_of(root, *_STARTS, make=False) as directory:
        for name in _records(directory)[: _MAX_PROGRAMS + 1]:  # all that are ours
            with contextlib.suppress(OSError):  # another user's
                data = read_entry(name, _MAX_FILE_BYTES, directory=directory)[0]
                if any(key.encode() in data for key in keys):
                    os.unlink(name, dir_fd=directory)


def _records(directory: int) -> "list[str]":
    return [name for name in os.listdir(directory) if re.fullmatch(_PROGRAM, name)]


_POLL_SECONDS = 0.03
_REMOTE_POLL_SECONDS = 0.5
_LEASES = ".jaxcache/live/leases"
_MAX_LEASE_BYTES = 1 << 12
#: No compile takes longer; a lease that counts for longer is wrong, by a bad clock or on purpose.
_MAX_SECONDS = 86_400.0


class Leases:
    """The leases of this process on the keys of one directory; a forked child has its own."""

    def __init__(self, root: str, limit_seconds: float, counters: Any) -> None:
        self._root = root
        self._limit = limit_seconds
        self._patience = limit_seconds
        """How long this process may still wait in vain, for all keys together."""
        self._counters = counters
        self._lock = threading.RLock()
        self._fd = -1
        self._held: set[str] = set()
        self._remote: set[str] = set()

    def take_or_wait(
        self, key: str, look: "Callable[[], bytes | None]", tiers: Any
    ) -> "bytes | None":
        """Take the lease of a key, or wait for what its owner compiles.

        Args:
            look: looks for the entry in the local directory.
            tiers: the tiers of the directory, or None.

        Returns:
            The entry of another process; None where this process is to compile.

        Raises:
            OSError: the directory cannot be written.
        """
        started = time.monotonic()
        deadline = started + self._patience
        waited = False
        value = None
        while True:
            if self._try(key):
                value = look()  # its last owner may have written it since this process looked
                if value is None and tiers is not None:
                    value, waited = self._ask_machines(key, tiers, deadline, waited=waited)
                break
            waited = True
            value = look()
            if value is not None or time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        if waited:
            seconds = time.monotonic() - started
            self._counters.add("wait_seconds", seconds)
            if value is None:
                self._patience = max(0.0, self._patience - seconds)
        if value is not None:
            self._counters.count("waited")
            self.release(key, tiers)
        return value

    def release(self, key: str, tiers: Any) -> None:
        """Give the lease of a key back, between machines when its entry is up."""
        with self._lock:
            remote = key in self._remote
            self._remote.discard(key)
            if key in self._held:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _offset(key))
            self._held.discard(key)
        if remote and tiers is not None:
            tiers.uploads.call_after(key, lambda: _delete(tiers.last_writable(), key))

    def _try(self, key: str) -> bool:
        with self._lock:
            if self._fd < 0:
                with own_directory_of(self._root, "live") as directory:
                    self._fd, _ = open_lock(directory, "leases")
            if key in self._held:  # another thread of this process
                return True
            if try_lock(self._fd, _offset(key), 1):
                self._held.add(key)
                return True
            return False

    def _ask_machines(
        self, key: str, tiers: Any, deadline: float, *, waited: bool
    ) -> "tuple[bytes | None, bool]":
        """Take the lease in a tier, or wait for the machine that has it."""
        tier = tiers.last_writable()
        if tier is None or key in self._remote:
            return None, waited
        until = time.time() + self._limit
        text = json.dumps({"owner": f"{socket.gethostname()}:{os.getpid()}", "until": until})
        while True:
            created = tier.attempt("create", _lease_file(key), text.encode())
            if created is None:  # no answer: do not wait for a tier that is down
                return None, waited
            if created:
                self._remote.add(key)
                # Its last owner may have finished since this process looked.
                return tiers.lookup(key, fresh=True)[0], waited
            if _has_expired(tier.read(_lease_file(key), fresh=True, limit=_MAX_LEASE_BYTES)):
                _delete(tier, key)
                continue
            waited = True
            if time.monotonic() > deadline:
                return None, waited
            time.sleep(_REMOTE_POLL_SECONDS)
            value = tiers.lookup(key, fresh=True)[0]
            if value is not None:
                return value, waited


def _delete(tier: Any, key: str) -> None:
    tier.attempt("delete", _lease_file(key))


def _lease_file(key: str) -> str:
    return f"{_LEASES}/{key}"


def _offset(key: str) -> int:
    """A byte for a key, from the end of its hash; two keys of one byte only wait in vain."""
    return int(key[-15:], 16)


def _has_expired(data: "bytes | None") -> bool:
    """Return whether a lease has expired or has no plausible date; False if it is not there."""
    try:
        seconds = json.loads(data or b"")["until"] - time.time()
        return not 0 <= seconds <= _MAX_SECONDS
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return data is not None
