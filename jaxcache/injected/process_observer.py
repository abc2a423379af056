"""What holds for all compile requests of one process: its jax, settings, counters and devices.

The spans of the phases of a start are measured as JAX goes through them. Private names of JAX for
that, each a module attribute that JAX looks up at each call, tried on JAX 0.4.38, 0.5.3, 0.6.2,
0.8.3, 0.10.2 and 0.12.0.1:

* ``xla_bridge.backends()``: the first call starts the devices.
* ``mlir.lower_jaxpr_to_module(…)``, ``compilation_cache.get_cache_key(…)``,
  ``compilation_cache.get_executable_and_time(key, …)`` (the lookup, a miss too),
  ``compiler.backend_compile_and_load(…)`` (``backend_compile`` below 0.6.2) and
  ``compilation_cache.put_executable_and_time(…)``.

A trace is measured by the event that JAX sends at its end; the events of nested traces overlap, and
:class:`~core.compile_event.Timeline` counts each instant once.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..core.compile_event import Span, Timeline
from ..core.seams import wrap
from .adapter import Jax
from .outcome import CompileRequest

#: Shorter spans are dropped: JAX asks for its backends at each compile.
_SHORTEST_SECONDS = 20e-6
_KEPT_SPANS = 50_000


class PhaseSpans:
    """The spans of this process that have not been sent."""

    def __init__(self) -> None:
        self._spans: deque[tuple[str, float, float]] = deque(maxlen=_KEPT_SPANS)
        os.register_at_fork(after_in_child=self._spans.clear)

    def add(self, phase: str, start: float, end: float) -> None:
        """Add one span, in seconds since the epoch."""
        if end - start >= _SHORTEST_SECONDS:
            self._spans.append((phase, start, end))

    def take(self) -> "dict[str, Any] | None":
        """Return the event of all spans since the last call; None without any."""
        timeline = Timeline()
        while self._spans:
            timeline.add(*self._spans.popleft())
        return {"event": "phases", "spans": timeline.spans} if timeline.spans else None


_COUNTED = {
    "/jax/compilation_cache/compile_requests_use_cache": "requests",
    "/jax/compilation_cache/cache_hits": "hits",
    "/jax/compilation_cache/cache_misses": "misses",
    "/jax/compilation_cache/tasks_using_cache": "tasks_using_cache",
    "/jax/compilation_cache/task_disabled_cache": "tasks_disabled_cache",
}
#: The live layer's counters that begin so are sent where there is anything to count.
_LIVE = ("/jaxcache/live/preload", "/jaxcache/live/hits_tier", "/jaxcache/live/uploaded")
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
        self._lock = threading.RLock()
        self._lasting: dict[tuple[Any, Any], dict[str, Any]] = {}
        self._local = threading.local()
        self._introduced = False
        self._counters: dict[str, float] = dict.fromkeys([*_COUNTED.values(), "saved_seconds"], 0)
        self._settings: dict[str, Any] | None = None
        self._changed: dict[str, Any] = {}
        self._backends: dict[tuple[int, str, int], int] = {}
        self._phases = PhaseSpans()
        self._measure_steps()
        os.register_at_fork(after_in_child=self._start_afresh)

    def _start_afresh(self) -> None:
        """A forked child counts for itself, and no other thread of it holds the lock."""
        self._lock = threading.RLock()
        self._counters = dict.fromkeys(self._counters, 0)
        self._settings = None
        self._backends = {}
        self._lasting = {}
        self._introduced = False

    def _measure_steps(self) -> None:
        """Measure JAX's own steps; nearer to JAX than the listener, whose work is not JAX's."""
        from jax._src import compilation_cache, compiler, xla_bridge
        from jax._src.interpreters import mlir

        self._measure(xla_bridge, "backends", "backend")
        self._measure(mlir, "lower_jaxpr_to_module", "lower")
        self._measure(compilation_cache, "get_cache_key", "key")
        self._measure(compilation_cache, "get_executable_and_time", "load", "retrieve")
        self._measure(compiler, "backend_compile_and_load", "compile")
        self._measure(compiler, "backend_compile", "compile")
        self._measure(compilation_cache, "put_executable_and_time", "compile", "write")

    def _measure(self, owner: Any, name: str, phase: str, step: str = "") -> None:
        """Measure a function as a phase of the process, and as a step of its compile request."""

        def around(call: Any, args: Any, kwargs: Any) -> Any:
            started = time.time()
            try:
                return call(*args, **kwargs)
            finally:
                ended = time.time()
                self._phases.add(phase, started, ended)
                self._spans[step or phase] = (started, ended - started)

        if hasattr(owner, name):
            wrap(owner, name, around)

    @property
    def _spans(self) -> "dict[Any, Span]":
        """The steps of this thread's request; outside of one, those that the next may begin with.

        The outermost trace ends last, and so replaces those inside it.
        """
        if (request := self._request) is not None:
            return request.spans
        spans: dict[Any, Span] = vars(self._local).setdefault("spans", {})
        return spans

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
        """Count what JAX counts, and what the live layer counts below :data:`_LIVE`."""
        if name.startswith(_LIVE):
            self._count_live(name, 1)
        if counter := _COUNTED.get(name):
            self._counters[counter] += 1
            if (request := self._request) is not None:
                request.jax_counts.add(counter)

    def on_duration(self, name: str, seconds: float, **_: Any) -> None:
        """Keep a trace, and count what JAX and the live layer measure."""
        now = time.time()
        if name == _RETRIEVED:
            self._phases.add("load", now - seconds, now)
        elif name == _TRACED:
            vars(self._local).setdefault("spans", {})["trace"] = (now - seconds, seconds)
            self._phases.add("trace", now - seconds, now)
        elif name == _SAVED:
            self._counters["saved_seconds"] += seconds
        elif name.startswith(_LIVE):
            self._count_live(name, seconds)

    def _count_live(self, event: str, amount: float) -> None:
        name = event.rpartition("/")[2]
        self._counters[name] = self._counters.get(name, 0) + amount

    def describe_backend(self, backend: Any, devices: Any) -> int:
        """Report a backend and kind of device once; return its number, which events refer to."""
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
            "opened_setting": self._jax.opened_setting(),
            "next_directory": self._jax.next_directory(),
        }
        if settings != self._settings:
            self._settings = settings
            self._changed = self._jax.changed_settings()
            live = _live_settings()
            self.send({"event": "settings", **settings, "changed": self._changed, "live": live})
        return settings

    def tell_changed(self) -> None:
        """Send the settings that act on keys, where they have changed since they were sent."""
        if self._settings is not None and self._changed != self._jax.changed_settings():
            self._settings = None
            self.tell_settings()

    @property
    def _request(self) -> CompileRequest | None:
        return getattr(self._local, "request", None)


def _live_settings() -> "dict[str, Any] | None":
    """Return the changed settings of the live layer, with their origins; None if it is off."""
    for name, module in list(sys.modules.items()):
        layer = getattr(module, "LAYER", None) if name.endswith("live.layer") else None
        if layer is not None:
            shown = {**layer.settings.shown, "tiers": ", ".join(layer.settings.shown["tiers"])}
            return {
                name: {"value": shown[name], "origin": origin}
                for name, origin in layer.settings.origins.items()
                if origin != "default"
            }
    return None
