"""Load executables ahead: while the program traces, one thread loads what its last run loaded.

JAX traces, lowers and computes each key as ever; only the load itself has happened before, and an
entry whose file is still the same is not read again. That is sound where nothing can differ: what
plain JAX gives to a load is the executable, the compile options, the devices and the host
callbacks, in this process. So a load is answered from here only for the same bytes, the same
serialized options, the same devices of the same backend, and no callbacks. What was loaded with
callbacks is recorded as such and never loaded ahead: the callables belong to one process.

* An executable that the thread has not begun is loaded by the thread that requests it.
* An entry is loaded ahead only if a checksum or a recorded digest proves its content.
* Executables not requested within a while are dropped; when JAX's caches are cleared, all are.
* The end of the process waits for the one load that is under way, because XLA must not be at work
  while the interpreter ends; for no other.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..core.seams import process_index
from ..core.seams.cache import Load, LoadCall, LoadSeam, UnknownLoadError, describe_devices
from ..core.system import available_cores
from ..core.threads import ReentrantEvent, start_thread
from .loading import AHEAD, MAX_LOADS, LastRun, Loading, program_name, read_last_run, write_last_run
from .process import LiveProcess

if TYPE_CHECKING:
    from .directory import Directory


#: Executables that JAX has not requested so long after the last load are dropped.
_UNUSED_SECONDS = 60.0
#: How long to wait for a backend that is being created; later the first request starts the thread.
_BACKEND_SECONDS = 30.0
_LOOK_SECONDS = 0.005
#: No single load takes longer; the end of the process waits for one.
_LAST_LOAD_SECONDS = 30.0
#: Bytes of content that may wait for the backend, and of loaded content that may wait for requests.
_MAX_READ_BYTES = 64 << 20
_MAX_READY_BYTES = 512 << 20
#: Entries that are loaded beyond the last one that JAX has asked for: the record may be of another
#: program, as that of pytest in another project is.
_MAX_UNASKED = 64


class _Ahead:
    """One executable that is being loaded, or is loaded, before JAX requests it."""

    def __init__(self, backend: Any, load: Load, serialized: bytes) -> None:
        self._backend = backend
        self.load = load
        self._hash = hash(serialized)
        self.size_bytes = len(serialized)
        self.is_over = ReentrantEvent()
        self.executable: Any = None
        self.seconds = 0.0

    def is_for(self, backend: Any, call: LoadCall) -> bool:
        """Whether a call has the same arguments; its bytes, too, have been checked."""
        same = backend is self._backend and call.load == self.load
        return same and hash(call.serialized) == self._hash


class Preload:
    """What this process loads ahead, and the record of its loads for the next."""

    def __init__(self, layer: LiveProcess) -> None:
        self._layer = layer
        self._seam: Any = None
        """A :class:`LoadSeam`; None where nothing is loaded ahead."""
        self._is_decided = False
        self._is_opened = False
        self._forked = False
        self._thread: threading.Thread | None = None
        self._directory: Directory | None = None
        self._program = ""
        self._begun: set[str] = set()
        """Keys that this thread or JAX has begun to load."""
        self._ahead: dict[str, _Ahead] = {}
        self._loads: dict[str, Load] = {}
        """The entries that JAX has requested, in order."""
        self._places: dict[str, int] = {}
        """The place of each key in the last run."""
        self._reached = 0
        """The furthest place that JAX has requested."""
        self._backend: Any = None
        """The client of the first request; loads of another one are left to JAX."""
        self._devices: list[list[Any]] = []
        self._saved: LastRun | None = None
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._ended = ReentrantEvent()
        """Nothing more is loaded or handed out."""

    @property
    def is_on(self) -> bool:
        """Whether to load ahead: the setting, a second core, and a JAX whose loads are known."""
        if not self._layer.settings["preload"] or self._forked:
            return False
        if not self._is_decided:
            self._is_decided = True
            if available_cores() > 1:  # with one, loading takes from tracing
                self._seam = self._find_seam()
        return self._seam is not None

    def _find_seam(self) -> "LoadSeam | None":
        is_asked = self._layer.settings.origins["preload"] != "default"
        try:
            seam = LoadSeam(on_gpu=is_asked)
        except UnknownLoadError as error:
            if is_asked:
                self._layer.say(f"live: nothing is loaded ahead: {error}")
            return None
        seam.call_when_cleared(self.drop)
        seam.replace_load(self._answer)
        return seam

    def disown(self) -> None:
        """Leave everything to the parent: a forked child has no thread and no sound client."""
        self._forked = True

    def begin(self, directory: "Directory") -> bool:
        """Start to load from a directory, unless the thread has; whether it loads from this one."""
        with self._lock:
            if self._directory is None:
                self._directory = directory
                # Later the script has no name any more: the interpreter forgets it at its end.
                versions = self._layer.adapter.versions
                self._program = program_name(versions, process_index())
                self._thread = start_thread("preload", lambda: self._run(directory))
        return self._directory is directory

    def cache_opened(self, directory: "Directory") -> None:
        """Begin where nothing has begun; drop everything where JAX opens its cache once more."""
        if self.is_on:
            if not self.begin(directory) or self._is_opened:
                self.drop()
            self._is_opened = True

    def configured_directory(self) -> "tuple[str, int] | None":
        """Return the directory that JAX is going to open, and its size cap, to load from it."""
        if self.is_on:
            path, max_size = self._seam.configured_directory()
            if path and "://" not in path and os.path.isdir(path):
                return path, max_size
        return None

    # Requests ---------------------------------------------------------------------------------

    def note(self, key: str, args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> None:
        """Note that JAX requests an entry; a load that has not begun is left to JAX."""
        if not self.is_on:
            return
        request = self._seam.describe_request(key, args, kwargs)
        with self._lock:
            self._begun.add(key)
            self._reached = max(self._reached, self._places.get(key, 0))
            self._room.notify_all()
            if request is None:
                return
            backend, load = request
            if self._backend is None:
                self._backend = backend
                self._devices = describe_devices(backend)
            if backend is not self._backend:
                return
            before = self._loads.get(key)
            if before.is_plain if before is not None else len(self._loads) < MAX_LOADS:
                self._loads[key] = load

    def is_ahead(self, key: str) -> bool:
        """Whether an executable is loaded ahead of its request, or is being loaded."""
        return self.is_on and key in self._ahead

    def _answer(self, backend: Any, args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> Any:
        """Answer a load with what was loaded ahead; None where JAX is to load."""
        now = self._layer.now
        executable = None
        try:
            if self.is_ahead(now.key):
                call = self._seam.describe_call(now.key, backend, args, kwargs)
                executable = self._take(backend, call, now.key)
        except Exception as error:
            self._layer.trouble(error)
        if executable is None and now.unmarked is not None:
            now.unmarked.mark_load(now.key)
        now.unmarked = None
        return executable

    def _take(self, backend: Any, call: "LoadCall | None", key: str) -> Any:
        """Take what was loaded with the same arguments, waiting for a load that is under way."""
        ahead = self._ahead.get(key)
        if ahead is None:
            return None
        started = time.perf_counter()
        ahead.is_over.wait()
        with self._lock:
            ahead = self._ahead.pop(key, None)
            self._room.notify_all()
        if ahead is None or ahead.executable is None:
            return None
        counters = self._layer.counters
        if call is None or not call.load.is_plain or not ahead.is_for(backend, call):
            counters.count("preload_dropped")
            return None
        waited = time.perf_counter() - started
        counters.count("preload_used")
        counters.add("preload_hidden_seconds", max(0.0, ahead.seconds - waited))
        return ahead.executable

    # The thread -------------------------------------------------------------------------------

    def _run(self, directory: "Directory") -> None:
        marks = Loading(directory.root, AHEAD)
        try:
            self._load_last_run(directory, marks)
            self._ended.wait(_UNUSED_SECONDS)
        except Exception as error:
            self._layer.trouble(error)
        finally:
            self.drop()
            marks.close()
            self.save()

    def _load_last_run(self, directory: "Directory", marks: Loading) -> None:
        run = read_last_run(directory.root, self._program)
        self._saved = run
        if run is None:
            return
        self._places = {load.key: place for place, load in enumerate(run.loads)}
        contents = self._read(directory, run)
        waiting: deque[tuple[Load, bytes]] = deque()
        backend = self._wait_for_backend(run, contents, waiting)
        if backend is None:
            return
        while not self._ended.is_set():
            one = waiting.popleft() if waiting else next(contents, None)
            if one is None or not self._load(backend, marks, *one):
                return

    def _read(self, directory: "Directory", run: LastRun) -> "Iterator[tuple[Load, bytes]]":
        """Read and check the entries of the last run that may be loaded ahead, in order."""
        for load in run.loads:
            if load.is_plain and load.key not in self._begun:
                content = directory.read_proven(load.key)
                is_gone = content is None and not os.path.exists(directory.path(load.key))
                if is_gone and directory.tiers is not None:
                    directory.tiers.fetch_ahead(load.key)
                    content = directory.read_proven(load.key)
                if content is not None:
                    yield load, self._seam.serialized(content)

    def _wait_for_backend(
        self, run: LastRun, contents: "Iterator[Any]", waiting: "deque[Any]"
    ) -> Any:
        """Wait until the last run's backend exists, and read entries meanwhile; None without it."""
        deadline = time.monotonic() + _BACKEND_SECONDS
        read_bytes = 0
        while (backends := self._seam.backends()) is None:
            one = next(contents, None) if read_bytes < _MAX_READ_BYTES else None
            if one is not None:
                waiting.append(one)
                read_bytes += len(one[1])
            elif self._ended.wait(_LOOK_SECONDS) or time.monotonic() > deadline:
                return None
        of_last_run = (
            backend
            for backend in backends.values()
            if self._seam.loads_on(backend) and describe_devices(backend) == run.devices
        )
        return next(of_last_run, None)

    def _load(self, backend: Any, marks: Loading, load: Load, serialized: bytes) -> bool:
        """Load one executable; whether to go on."""
        ahead = _Ahead(backend, load, serialized)
        with self._lock:
            while not self._has_room(ahead) and not self._ended.is_set():
                if not self._room.wait(_UNUSED_SECONDS):
                    return False
            if load.key in self._begun or self._ended.is_set():
                return True
            self._begun.add(load.key)
            self._ahead[load.key] = ahead
        try:
            with contextlib.ExitStack() as stack:
                try:
                    marks.begin(load.key)
                except OSError:  # without a mark, an entry that kills the process is not noticed
                    return False
                stack.callback(marks.end, load.key)
                started = time.perf_counter()
                ahead.executable = self._seam.load(backend, load, serialized)
                ahead.seconds = time.perf_counter() - started
        except Exception:  # JAX reports it when it requests this entry
            ahead.executable = None
        finally:
            ahead.is_over.set()
        if ahead.executable is not None:
            self._layer.counters.count("preloaded")
        if self._ended.is_set():
            self.drop()
        return True

    def _has_room(self, ahead: _Ahead) -> bool:
        if self._places[ahead.load.key] > self._reached + _MAX_UNASKED:
            return False
        ready_bytes = sum(one.size_bytes for one in self._ahead.values())
        return not ready_bytes or ready_bytes + ahead.size_bytes <= _MAX_READY_BYTES

    # The end ----------------------------------------------------------------------------------

    def drop(self) -> None:
        """Drop what is ready, and load nothing more."""
        if self._forked:
            return
        self._ended.set()
        if self._directory is not None:
            self._directory.read_ahead.clear()
        with self._lock:
            ready = [one for one in self._ahead.values() if one.is_over.is_set()]
            for one in ready:
                del self._ahead[one.load.key]
            self._room.notify_all()
        number = sum(one.executable is not None for one in ready)
        if number:
            self._layer.counters.count("preload_dropped", number)

    def save(self) -> None:
        """Write the record of this run, where it differs from the last one's."""
        with self._lock:
            run = LastRun(self._devices, tuple(self._loads.values()))
        if run.loads and self._directory is not None and run != self._saved:
            with contextlib.suppress(OSError):  # a directory that only others may write
                write_last_run(self._directory.root, self._program, run)
                self._saved = run

    def close(self) -> None:
        """End the thread, after the load that is under way, and write the record."""
        if self._forked:
            return
        self.drop()
        if self._thread is not None:
            self._thread.join(_LAST_LOAD_SECONDS)
        self.save()
