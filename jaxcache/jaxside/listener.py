"""Watches one process's jax and tells the parent what became of every compile request.

A request is one call of ``compile_or_get_cached``. What JAX does inside it happens in the same
thread, so what belongs together is kept per thread. Whatever goes wrong in here is told to the
parent as ``trouble`` and never reaches the script.
"""

import atexit
import itertools
import os
import threading
import time
from typing import Any

from . import channel, keyparts
from .adapter import Jax
from .outcome import Request, judge

_COUNTED = {
    "/jax/compilation_cache/compile_requests_use_cache": "requests",
    "/jax/compilation_cache/cache_hits": "hits",
    "/jax/compilation_cache/cache_misses": "misses",
    "/jax/compilation_cache/tasks_using_cache": "tasks_using_cache",
    "/jax/compilation_cache/task_disabled_cache": "tasks_disabled_cache",
}
_TRACED = "/jax/core/compile/jaxpr_trace_duration"
_SAVED = "/jax/compilation_cache/compile_time_saved_sec"
_FORCE = "JAXCACHE_FORCE_CACHE_DIR"


class Listener:
    """The observer that :meth:`adapter.Jax.listen` puts around JAX's steps."""

    def __init__(self, jax: Jax, send: Any) -> None:
        self._jax = jax
        self._send = send
        self._numbers = itertools.count(1)
        self._local = threading.local()
        self._counters: dict[str, float] = dict.fromkeys([*_COUNTED.values(), "saved_seconds"], 0)
        self._settings: dict[str, Any] | None = None
        self._forced = os.environ.get(_FORCE)
        self._parts = keyparts.listen()
        os.register_at_fork(after_in_child=self._start_afresh)

    def _start_afresh(self) -> None:
        """A forked child counts for itself."""
        self._counters = dict.fromkeys(self._counters, 0)
        self._settings = None

    # JAX's own counters -----------------------------------------------------------------------

    def on_event(self, name: str, **_: Any) -> None:
        """Count what JAX counts."""
        if counter := _COUNTED.get(name):
            self._counters[counter] += 1
            if (request := self._request) is not None:
                request.counted.add(counter)

    def on_duration(self, name: str, seconds: float, **_: Any) -> None:
        """Keep the last trace: traces nest, and the outermost ends last."""
        if name == _TRACED:
            self._local.traced = (time.time(), seconds)
        elif name == _SAVED:
            self._counters["saved_seconds"] += seconds

    # The steps of a compile -------------------------------------------------------------------

    def around_lowering(self, lower: Any, args: Any, kwargs: Any) -> Any:
        """Remember which function became which module."""
        self._safely(self._force)
        started = time.time()
        traced = getattr(self._local, "traced", None)
        self._local.traced = None
        result = lower(*args, **kwargs)
        ended = time.time()

        def remember() -> None:
            info = self._jax.describe_lowering(args, kwargs)
            info["lower"] = [started, ended - started]
            if traced:
                info["trace"] = [traced[0] - traced[1], traced[1]]
            self._jax.remember_lowering(result.module, info)

        self._safely(remember)
        return result

    def around_request(self, compile_: Any, args: Any, kwargs: Any) -> Any:
        """One compile request, from its beginning to its one outcome."""
        self._safely(self._force)
        request = Request(number=next(self._numbers), started=time.time())
        self._safely(lambda: self._begin(request, args, kwargs))
        outer, self._local.request = self._request, request
        try:
            return compile_(*args, **kwargs)
        except BaseException as error:
            request.raised = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._local.request = outer
            request.ended = time.time()
            self._safely(lambda: self._end(request))

    def around_read(self, read: Any, args: Any, kwargs: Any) -> Any:
        """JAX looks the key up."""
        request = self._request
        if request is None:
            return read(*args, **kwargs)
        request.key = str(args[0])
        started = time.time()
        try:
            executable, seconds = read(*args, **kwargs)
        except Exception as error:
            request.read_error = f"{type(error).__name__}: {error}"
            raise
        finally:
            request.read = (started, time.time() - started)
        request.hit, request.stored_seconds = executable is not None, seconds
        return executable, seconds

    def around_decision(self, decide: Any, args: Any, kwargs: Any) -> Any:
        """JAX has compiled, and decides whether to write."""
        if (request := self._request) is not None:
            self._safely(lambda: request.compiled(args, self._jax.process_id()))
        return decide(*args, **kwargs)

    def around_write(self, write: Any, args: Any, kwargs: Any) -> Any:
        """JAX serializes, and writes if the size suffices."""
        request = self._request
        if request is None:
            return write(*args, **kwargs)
        started = time.time()
        try:
            return write(*args, **kwargs)
        except Exception as error:
            request.write_error = f"{type(error).__name__}: {error}"
            raise
        finally:
            request.write = (started, time.time() - started)

    # What is sent -----------------------------------------------------------------------------

    def _begin(self, request: Request, args: Any, kwargs: Any) -> None:
        computation = args[1]
        request.module = self._jax.module_name(computation)
        callbacks = args[4] if len(args) > 4 else kwargs.get("host_callbacks", ())
        request.callbacks = len(callbacks or ())
        request.lowering = self._jax.lowering_of(computation)
        request.settings = self._tell_settings()
        self._send({"event": "begin", "id": request.number, "module": request.module,
                    "at": request.started})  # fmt: skip

    def _end(self, request: Request) -> None:
        directory = self._jax.opened_directory()
        verdict = judge(request, directory, refuses_callbacks=self._jax.refuses_callbacks)
        self._send({
            "event": "module", "id": request.number, "module": request.module,
            "key": request.key, "at": request.started,
            "seconds": request.ended - request.started,
            "thread": threading.get_ident(), "process_id": self._jax.process_id(),
            **verdict, **request.lowering, "counters": self._counters,
            **(self._parts.take(request.key) if self._parts else {}),
        })  # fmt: skip
        if directory != (self._settings or {}).get("opened_directory"):
            self._tell_settings()

    def _tell_settings(self) -> dict[str, Any]:
        settings = {**self._jax.settings(), "opened_directory": self._jax.opened_directory()}
        if settings != self._settings:
            self._settings = settings
            self._send({"event": "settings", **settings})
        return settings

    def say_goodbye(self) -> None:
        """The process ends in good order: what only then can be known."""
        self._safely(lambda: self._send({"event": "end", "counters": self._counters}))

    def _force(self) -> None:
        if self._forced:
            self._jax.force_directory(self._forced)

    @property
    def _request(self) -> Request | None:
        return getattr(self._local, "request", None)

    def _safely(self, action: Any) -> None:
        try:
            action()
        except Exception as error:
            self._send({"event": "trouble", "detail": f"{type(error).__name__}: {error}"})


def attach(module: Any) -> None:
    """Listen to the jax that has just been imported."""
    jax = Jax(module)
    listener = Listener(jax, channel.CHANNEL.send)
    channel.CHANNEL.send({"event": "jax", **jax.describe()})
    jax.listen(listener)
    atexit.register(listener.say_goodbye)
