"""Measure where the start of a program goes: spans of its phases, as JAX goes through them.

Private names of JAX, each a module attribute that JAX looks up at each call, tried on JAX 0.4.38,
0.5.3, 0.6.2, 0.8.3, 0.10.2 and 0.12.0.1:

* ``xla_bridge.backends()``: the first call starts the devices.
* ``mlir.lower_jaxpr_to_module(…)``, ``compilation_cache.get_cache_key(…)``,
  ``compilation_cache.get_executable_and_time(key, …)`` (the lookup, a miss too),
  ``compiler.backend_compile_and_load(…)`` (``backend_compile`` below 0.6.2) and
  ``compilation_cache.put_executable_and_time(…)``.

A trace is measured by the event that JAX sends at its end; the events of nested traces overlap, and
:class:`~core.timeline.Timeline` counts each instant once.
"""

import os
import time
from collections import deque
from typing import Any

from ..core.timeline import Timeline
from .adapter import wrap

#: Shorter spans are dropped: JAX asks for its backends at each compile.
_SHORTEST_SECONDS = 20e-6
_KEPT_SPANS = 50_000


class PhaseSpans:
    """The spans of this process that have not been sent."""

    def __init__(self) -> None:
        self._spans: deque[tuple[str, float, float]] = deque(maxlen=_KEPT_SPANS)
        os.register_at_fork(after_in_child=self._spans.clear)

    def listen(self) -> None:
        """Measure JAX's own steps; nearer to JAX than the listener, whose work is not JAX's."""
        from jax._src import compilation_cache, compiler, xla_bridge
        from jax._src.interpreters import mlir

        self._measure("backend", xla_bridge, "backends")
        self._measure("lower", mlir, "lower_jaxpr_to_module")
        self._measure("key", compilation_cache, "get_cache_key")
        self._measure("load", compilation_cache, "get_executable_and_time")
        self._measure("compile", compiler, "backend_compile_and_load")
        self._measure("compile", compiler, "backend_compile")
        self._measure("compile", compilation_cache, "put_executable_and_time")

    def _measure(self, phase: str, owner: Any, name: str) -> None:
        def around(step: Any, args: Any, kwargs: Any) -> Any:
            started = time.time()
            try:
                return step(*args, **kwargs)
            finally:
                self.add(phase, started, time.time())

        if hasattr(owner, name):
            wrap(owner, name, around)

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
