"""What holds for all compile requests of one process: its jax, settings, counters and devices."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from .adapter import Jax, live_settings
from .outcome import CompileRequest
from .phases import PhaseSpans

_COUNTED = {
    "/jax/compilation_cache/compile_requests_use_cache": "requests",
    "/jax/compilation_cache/cache_hits": "hits",
    "/jax/compilation_cache/cache_misses": "misses",
    "/jax/compilation_cache/tasks_using_cache": "tasks_using_cache",
    "/jax/compilation_cache/task_disabled_cache": "tasks_disabled_cache",
}
_TRACED = "/jax/core/compile/jaxpr_trace_duration"
_RETRIEVED = "/jax/compilation_cache/cache_retrieval_time_sec"
_SAVED = "/jax/compilation_cache/compile_time_saved_sec"
#: Events that stay true until the next of their kind: a new sink receives the last of each.
_LASTING = ("jax", "settings", "backend")
Sink = Callable[["dict[str, Any]"], None]


class ProcessObserver:
    """The sinks of a process, and the events that belong to no compile request."""

    def __init__(self, jax: Jax) -> None:
        self._jax = jax
        self._sinks: tuple[Sink, ...] = ()
        self._lock = threading.Lock()
        self._lasting: dict[tuple[Any, Any], dict[str, Any]] = {}
        self._local = threading.local()
        self._introduced = False
        self._counters: dict[str, float] = dict.fromkeys([*_COUNTED.values(), "saved_seconds"], 0)
        self._settings: dict[str, Any] | None = None
        self._backends: dict[tuple[int, str, int], int] = {}
        self._phases = PhaseSpans()
        self._phases.listen()
        os.register_at_fork(after_in_child=self._start_afresh)

    def _start_afresh(self) -> None:
        """A forked child counts for itself, and no other thread of it holds the lock."""
        self._lock = threading.Lock()
        self._counters = dict.fromkeys(self._counters, 0)
        self._settings = None
        self._backends = {}
        self._lasting = {}
        self._introduced = False

    def add(self, sink: Sink) -> None:
        """Send events to one more sink; the last event of each lasting kind is sent at once."""
        self.introduce()
        self.send_phases()
        for event in list(self._lasting.values()):
            sink(event)
        with self._lock:
            self._sinks += (sink,)

    def remove(self, sink: Sink) -> None:
        """Stop sending events to a sink; without sinks, JAX's steps are not observed."""
        self.send_phases()
        with self._lock:
            self._sinks = tuple(s for s in self._sinks if s != sink)

    def send(self, event: "dict[str, Any]") -> None:
        """Send an event to every sink."""
        if event["event"] in _LASTING:
            self._lasting[event["event"], event.get("backend")] = event
        for sink in self._sinks:
            sink(event)

    def send_phases(self) -> None:
        """Send the time that the phases of a start have taken since the last call."""
        if event := self._phases.take():
            self.send(event)

    def introduce(self) -> None:
        """Say which jax this is, once per process: a forked child has a connection of its own."""
        if not self._introduced:
            self._introduced = True
            self.send({"event": "jax", **self._jax.describe()})

    # JAX's own counters -----------------------------------------------------------------------

    def on_event(self, name: str, **_: Any) -> None:
        """Count what JAX counts."""
        if counter := _COUNTED.get(name):
            self._counters[counter] += 1
            if (request := self._request) is not None:
                request.counted.add(counter)

    def on_duration(self, name: str, seconds: float, **_: Any) -> None:
        """Keep the last trace: traces nest, and the outermost ends last."""
        now = time.time()
        if name == _RETRIEVED:
            self._phases.add("load", now - seconds, now)
        elif name == _TRACED:
            self._local.traced = (now, seconds)
            self._phases.add("trace", now - seconds, now)
        elif name == _SAVED:
            self._counters["saved_seconds"] += seconds

    def describe_backend(self, backend: Any, devices: Any) -> int:
        """Tell of a backend and kind of device once; its number stands for it from then on."""
        place = (id(backend), str(devices.flat[0].device_kind), devices.size)
        number = self._backends.get(place)
        if number is None:
            number = self._backends[place] = len(self._backends)
            facts = self._jax.describe_backend(backend, devices)
            self.send({"event": "backend", "backend": number, **facts})
        return number

    def tell_settings(self) -> dict[str, Any]:
        """Return the settings of the cache; send them where they have changed."""
        settings = {
            **self._jax.settings(),
            "opened_directory": self._jax.opened_directory(),
            "next_directory": self._jax.next_directory(),
        }
        if settings != self._settings:
            self._settings = settings
            self.send({"event": "settings", **settings, "live": live_settings()})
        return settings

    @property
    def _request(self) -> CompileRequest | None:
        return getattr(self._local, "request", None)
