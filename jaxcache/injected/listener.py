"""Observe the jax of one process and report the outcome of every compile request.

There is one listener in a process, for the parent that started it and for blocks of the process
itself that watch. A request is one
call of ``compile_or_get_cached``. What JAX does inside it happens in the same thread, so state is
kept per thread. Whatever goes wrong in here is reported as ``trouble``, never to the script.

``jax.experimental.colocated_python`` is watched apart, because no compile request shows its
functions. Each signature is one call of ``_compile_to_executable(name, fun, in_tree, in_specs, …)``
in ``jax/experimental/colocated_python/func.py`` (JAX 0.4.38 to 0.12). The module is imported by
few programs, so we wait for them to do it.
"""

import atexit
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..core import sketching
from ..core.seams import UnknownJaxError, process_index, tracing, wrap
from ..core.seams.cache import seal_writes
from ..core.seams.listening import Jax, hash_component, join_processes
from . import channel, hook, recording, undo
from .channel import safely
from .hook import when_imported
from .process_observer import CompileRequest, ProcessObserver, Sink, entry_file, identity

_FORCE = "JAXCACHE_FORCE_CACHE_DIR"
_CHECK = "JAXCACHE_CHECK"
_COMPONENTS = "JAXCACHE_COMPONENTS"
_SCRATCH = "JAXCACHE_SCRATCH"
_NO_WRITE = "JAXCACHE_NO_WRITE"
_DIRECTORY = "jax_compilation_cache_dir"
#: What makes a trace long is looked for in traces that take more.
_LONG_TRACE_SECONDS = 0.1
#: How long the end of a process waits for sketches.
_SKETCHING_SECONDS = 5.0


class _Asked(BaseException):
    """Carries the event of a request of which only the key is wanted."""


class Listener(ProcessObserver):
    """The observer that :meth:`adapter.Jax.listen` puts around JAX's steps."""

    def __init__(self, jax: Jax) -> None:
        super().__init__(jax)
        self._numbers = itertools.count(1)
        self._forced = os.environ.get(_FORCE)
        self._checking = bool(os.environ.get(_CHECK))
        self._hashes_all = bool(os.environ.get(_COMPONENTS))
        self._scratch = os.environ.get(_SCRATCH)
        self.no_write = bool(os.environ.get(_NO_WRITE))
        """Nothing is written into the cache."""
        self._recording = recording.start_recorder(jax.jax)
        self._collector = recording.start_collector(self.send)
        self._retraces = tracing.Retraces(lambda: bool(self._sinks))
        self._retraces.listen()
        self._sketcher = sketching.Sketcher()
        self._undo = undo.start(jax.jax)

    # The steps of a compile -------------------------------------------------------------------

    def around_lowering(self, lower: Any, args: Any, kwargs: Any) -> Any:
        """Remember which function became which module."""
        if not self._sinks:
            return lower(*args, **kwargs)
        safely(self.send, self._force)
        before = vars(self._local).pop("spans", {})
        if self._collector:
            self._collector.begin_lowering()
        result = lower(*args, **kwargs)

        def remember() -> None:
            info = self._jax.describe_lowering(args, kwargs)
            info["retrace"] = self._retraces.take(info)
            if self._collector:
                info["doubts"] = self._collector.end_lowering()
            traced = {step: span for step, span in before.items() if step == "trace"}
            if traced and traced["trace"][1] > _LONG_TRACE_SECONDS:
                info["copies"] = tracing.find_copies(args[1])
            info["spans"] = {**traced, "lower": self._spans["lower"]}
            self._jax.remember_lowering(result.module, info)

        safely(self.send, remember)
        return result

    def around_request(self, compile_: Any, args: Any, kwargs: Any) -> Any:
        """One compile request, from its beginning to its one outcome."""
        if getattr(self._local, "asking", False):
            raise _Asked(self._look(args, kwargs))
        if not self._sinks:
            return compile_(*args, **kwargs)
        safely(self.send, self._force)
        request = CompileRequest(number=next(self._numbers), at=time.time())
        safely(self.send, lambda: self._begin(request, args, kwargs))
        outer = self._request
        self._local.request = request
        try:
            return compile_(*args, **kwargs)
        except recording.Collect:
            return self._collect(request, compile_, args, kwargs)
        except BaseException as error:
            request.raised = f"{type(error).__name__}: {error}"
            request.interrupted = isinstance(error, KeyboardInterrupt)
            request.refused = getattr(error, "jaxcache_refused", None)
            request.add(getattr(error, "jaxcache_place", {}))
            raise
        finally:
            self._local.request = outer
            request.seconds = time.time() - request.at
            safely(self.send, lambda: self._end(request))

    def refuse(self, module: Any, error: BaseException) -> None:
        """Count a request that a guard in front of us has refused."""
        if not self._sinks or self._request is not None:
            return
        request = CompileRequest(number=next(self._numbers), at=time.time())
        request.refused = getattr(error, "jaxcache_refused", None) or type(error).__name__

        def end() -> None:
            request.module = self._jax.module_name(module)
            request.add(self._jax.lowering_of(module))
            request.add(getattr(error, "jaxcache_place", {}))
            request.settings = self.tell_settings()
            self._end(request)

        safely(self.send, end)

    def ask(self, compile_: Callable[[], Any]) -> "dict[str, Any] | None":
        """The event of the request that ``compile_`` makes first, which goes no further.

        Returns:
            It has the key and its components; None where no request was made.
        """
        self._local.asking = True
        try:
            compile_()
        except _Asked as asked:
            event: dict[str, Any] = asked.args[0]
            return event
        finally:
            self._local.asking = False
        return None

    def _look(self, args: Any, kwargs: Any) -> "dict[str, Any]":
        """Make the key of a request; JAX counts and looks up nothing."""
        request = CompileRequest(number=0, at=time.time(), outcome="skipped", reason="not-compiled")
        blobs: list[str] = []
        outer = self._request
        self._local.request = request
        try:
            self.tell_settings()
            cache_request = self._jax.asked(args, kwargs)
            computation = cache_request["computation"]
            request.add(self._jax.lowering_of(computation))
            request.module = self._jax.module_name(computation)
            request.key = self._jax.make_key(cache_request)
            self._hash_components(request)
            self._sketch(computation, blobs.append)
            self.finish_sketches()
        finally:
            self._local.request = outer
        request.sketch = blobs[0] if blobs else None
        return request.wire()

    def _collect(self, request: CompileRequest, compile_: Any, args: Any, kwargs: Any) -> Any:
        """Answer with zeros; where that is not possible, compile after all."""
        answer: list[Any] = []
        if self._collector:
            compiled = self._collector.answer
            safely(self.send, lambda: answer.append(compiled(self._jax.asked(args, kwargs))))
        if answer and answer[0] is not None:
            return answer[0]
        request.stubbed = False
        return compile_(*args, **kwargs)

    def around_key(self, make_key: Any, args: Any, kwargs: Any) -> Any:
        """JAX makes the key; where that fails, it compiles as if there were no cache."""
        request = self._request
        if request is None:
            return make_key(*args, **kwargs)
        request.hashers.clear()  # with PGLE several keys are made; the last one is used
        request.key_inputs = args[:4]
        try:
            return make_key(*args, **kwargs)
        except Exception as error:
            request.key_error = f"{type(error).__name__}: {error}"
            raise

    def take_component(self, name: str, hasher: "Callable[[Any], None]") -> None:
        """JAX has hashed one component of the key; hash it alone only on request."""
        if (request := self._request) is not None:
            request.hashers[name] = hasher

    def around_read(self, read: Any, args: Any, kwargs: Any) -> Any:
        """JAX looks the key up."""
        request = self._request
        if request is None:
            return read(*args, **kwargs)
        request.key = str(args[0])
        request.asked = args
        # The first look-up opens the cache.
        directory = self._jax.opened_directory() or request.settings.get(_DIRECTORY)
        request.found = identity(entry_file(directory, request.key))
        if request.stubbed:
            safely(self.send, lambda: self._hash_components(request))
            raise recording.Collect
        try:
            executable, seconds = read(*args, **kwargs)
        except Exception as error:
            request.read_error = f"{type(error).__name__}: {error}"
            request.errno = getattr(error, "errno", None)
            raise
        finally:
            if request.read_error:
                safely(self.send, lambda: self._hash_components(request))
        request.hit = executable is not None
        request.stored_seconds = seconds
        # Now, not at the end: compiling may change the module.
        if self._undo and not request.hit:
            undo_parts = self._undo
            safely(self.send, lambda: undo_parts.look(request, self._jax.opened_directory()))
        safely(self.send, lambda: self._hash_components(request))
        is_wanted = not request.hit or self._hashes_all
        if is_wanted and request.computation is not None:
            safely(self.send, lambda: self._sketch_request(request))
        return executable, seconds

    def around_decision(self, decide: Any, args: Any, kwargs: Any) -> Any:
        """JAX has compiled, and decides whether to write."""
        if (request := self._request) is not None:
            safely(self.send, lambda: request.compiled(args))
        return decide(*args, **kwargs)

    def around_compressing(self, compress: Any, args: Any, kwargs: Any) -> Any:
        """JAX compresses an entry, the last step before it looks whether there is one already."""
        compressed = compress(*args, **kwargs)
        if (request := self._request) is not None and request.is_writing:
            request.size_bytes = len(compressed)
            self._look_for_entry(request)
        return compressed

    def _look_for_entry(self, request: CompileRequest) -> None:
        existing = entry_file(self._jax.opened_directory(), request.key)
        request.existed = existing is not None

    def around_write(self, write: Any, args: Any, kwargs: Any) -> Any:
        """JAX serializes, and writes if the size suffices."""
        request = self._request
        if request is None:
            return write(*args, **kwargs)
        request.is_writing = True
        self._look_for_entry(request)  # the live layer may put its own compressing in place
        request.no_write = self.no_write
        if self._scratch or self.no_write:
            safely(self.send, lambda: self._jax.divert_writes(self._scratch))
        try:
            return write(*args, **kwargs)
        except Exception as error:
            if type(error).__name__ == "CacheVerificationError":
                if self._jax.are_alike(request.asked, error):
                    request.alike = True
                else:
                    request.differs = str(error)
                if self._checking:  # JAX would end the script at the first one
                    return None
            else:
                request.write_error = f"{type(error).__name__}: {error}"
                request.errno = getattr(error, "errno", None)
            raise
        finally:
            written = entry_file(self._jax.opened_directory(), request.key)
            request.replaced = request.found not in (None, identity(written))
            request.is_writing = False

    # What is sent -----------------------------------------------------------------------------

    def _begin(self, request: CompileRequest, args: Any, kwargs: Any) -> None:
        self.introduce()
        self._jax.hear_events(self)
        computation = args[1]
        request.module = self._jax.module_name(computation)
        callbacks = args[4] if len(args) > 4 else kwargs.get("host_callbacks", ())
        request.callbacks = len(callbacks or ())
        request.backend = self.describe_backend(args[0], args[2])
        lowering = self._jax.lowering_of(computation)
        request.add(lowering)
        request.computation = computation
        request.settings = self.tell_settings()
        self.send(request.wire_begin() | self._record(request, lowering, args, kwargs))
        self.send_phases()  # now: the compile may be what ends the process

    def _record(
        self, request: CompileRequest, lowering: "dict[str, Any]", args: Any, kwargs: Any
    ) -> "dict[str, Any]":
        """Keep what it takes to compile the module again, where that is wanted."""
        if self._recording is None:
            return {}
        cache_request = self._jax.asked(args, kwargs)
        recorded = self._recording.describe(cache_request)
        if self._collector:
            request.stubbed = not request.callbacks and self._collector.wants(
                cache_request["computation"]
            )
            recorded["doubts"] = self._collector.doubts(lowering)
        environment = self._recording.environment(cache_request["backend"])
        # The parent numbers the environments.
        recorded |= {"module": request.module, "environment": 0, "callbacks": request.callbacks}
        return {"recorded": recorded, "environment": environment}

    def _hash_components(self, request: CompileRequest) -> None:
        """Hash each component of the key on its own: for misses, and on request for hits."""
        if not request.hit or self._hashes_all or self._recording:
            request.components = {n: hash_component(c) for n, c in request.hashers.items()}
        request.hashers.clear()

    def _sketch_request(self, request: CompileRequest) -> None:
        """Send the sketch of what is about to be compiled, as soon as a thread has made it."""
        head = {"event": "sketch", "number": request.number, "key": request.key}
        self._sketch(request.computation, lambda blob: self.send({**head, "sketch": blob}))

    def _sketch(self, computation: Any, take: sketching.Take) -> None:
        self._sketcher.sketch(computation, self._jax.describe_for_sketch(computation), take)

    def finish_sketches(self) -> None:
        """Wait until all sketches are sent, for a few seconds."""
        self._sketcher.finish(_SKETCHING_SECONDS)

    def _end(self, request: CompileRequest) -> None:
        request.computation = None
        request.key_inputs = ()
        self.send_phases()
        directory = self._jax.opened_directory()
        written_to = self._scratch if self._scratch and "write" in request.spans else directory
        request.disabled_at_first = bool(self._counters["tasks_disabled_cache"])
        request.process_id = process_index()
        request.conclude(written_to, refuses_callbacks=self._jax.refuses_callbacks)
        request.cache_dir = directory
        request.thread = threading.get_ident()
        request.counters = self._counters
        self.send(request.wire())
        if directory != (self._settings or {}).get("opened_directory"):
            self.tell_settings()

    def on_exit(self) -> None:
        """The process ends in good order: what only then can be known."""
        safely(self.send, self.finish_sketches)
        safely(self.send, self.tell_changed)
        safely(self.send, self.send_phases)
        safely(self.send, lambda: self.send({"event": "end", "counters": self._counters}))

    def _force(self) -> None:
        if self._forced:
            self._jax.force_directory(self._forced)


def watch_colocated(send: Callable[[dict[str, Any]], None]) -> None:
    """Tell of every signature that a colocated function is compiled for."""

    def watch(module: Any) -> None:
        if not hasattr(module, "_compile_to_executable"):
            send(
                {
                    "event": "remark",
                    "detail": "this jax compiles colocated functions in a way not known here "
                    "(known are 0.4.38 to 0.12): they are left out of the report; upgrade jaxcache",
                }
            )
            return

        def around(original: Any, args: Any, kwargs: Any) -> Any:
            started = time.time()
            result = original(*args, **kwargs)

            def report() -> None:
                event = _describe(args, kwargs, started)
                if event["file"] != module.__file__:  # not JAX's own helpers
                    send(event)

            safely(send, report)
            return result

        wrap(module, "_compile_to_executable", around)

    when_imported(watch, "jax.experimental.colocated_python.func", "__name__")


def _describe(args: tuple[Any, ...], kwargs: dict[str, Any], started: float) -> dict[str, Any]:
    """One call as an event; its arguments are given by position or by keyword."""
    named = dict(zip(("name", "fun", "in_tree", "in_specs_leaves"), args, strict=False), **kwargs)
    function = getattr(named["fun"], "__wrapped__", named["fun"])
    code = getattr(function, "__code__", None)
    return {
        "event": "colocated",
        "function": getattr(function, "__name__", str(named["name"])),
        "kind": "colocated_python",
        "file": getattr(code, "co_filename", None),
        "line": getattr(code, "co_firstlineno", None),
        "arguments": [
            {"name": "", "dtype": str(s.dtype), "shape": [int(d) for d in s.shape]}
            for s in named["in_specs_leaves"]
        ],
        "spans": {"compile": [started, time.time() - started]},
    }


#: The only one of this process.
LISTENER: "Listener | None" = None
_lock = threading.RLock()


def listen(module: Any, sink: Sink, *, seal: bool = False, is_new: bool = False) -> Listener:
    """Send the events of the imported jax to a sink, by the one listener of this process.

    Args:
        seal: add a checksum to each entry that JAX writes from now on.
        is_new: whether the program has not run since jax was imported.

    Raises:
        UnknownJaxError: no adapter supports this jax.
    """
    global LISTENER
    with _lock:
        if LISTENER is None:
            jax = Jax(module, is_new=is_new or hook.imported is not None)
            LISTENER = Listener(jax)
            if seal:
                seal_writes(jax.cache)
            jax.listen(LISTENER)
            watch_colocated(LISTENER.send)
    LISTENER.add(sink)
    return LISTENER


def attach(module: Any) -> None:
    """Send the events of the jax that was just imported to the parent process."""
    send = channel.CHANNEL.send
    if imported := getattr(sys.modules.get("_jaxcache_hook"), "imported", None):
        send(imported)
    try:
        atexit.register(listen(module, send, seal=True, is_new=True).on_exit)
    except UnknownJaxError as error:
        send({"event": "unobserved", "detail": str(error)})
    join_processes(module)
