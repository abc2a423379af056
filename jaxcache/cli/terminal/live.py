"""A line on the terminal while a program runs: what compiles now, since when, how far we are."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxcache.cli.terminal import can_redraw, draw_line
from jaxcache.units import format_duration

if TYPE_CHECKING:
    from jaxcache.core.compile_event import RunEvent
    from jaxcache.warm.callbacks import RunCallbacks
    from jaxcache.warm.report.events import CompileStarted

#: Compiles that end sooner are not worth a line: it would only flicker.
_PATIENCE_SECONDS = 1.0


def live_callbacks() -> "RunCallbacks":
    """Return the callbacks of a run; they draw nothing unless standard error is a live terminal."""
    from jaxcache.warm.callbacks import RunCallbacks

    if not can_redraw():
        return RunCallbacks(_import_report)
    line = LiveLine()
    return RunCallbacks(_import_report, line.take, line.tick, line.expect)


def _import_report() -> None:
    """Import what prints the report while the program runs, so that it takes no time afterwards."""
    import jaxcache.cli.output
    import jaxcache.render.typeset
    import jaxcache.render.warm  # noqa: F401


class LiveLine:
    """Keeps the line; the cursor stays at its start, so that the program's output replaces it."""

    def __init__(self) -> None:
        self._running: dict[tuple[int, int], CompileStarted] = {}
        self._last: dict[str, float] = {}
        self._drawn = False

    def expect(self, seconds: Mapping[str, float]) -> None:
        """Learn the compile seconds by key that earlier runs took."""
        for key, took in seconds.items():
            module = key.rpartition("-")[0]
            self._last[module] = max(took, self._last.get(module, 0.0))

    def take(self, event: "RunEvent") -> None:
        """Take one event of the listener."""
        from jaxcache.core.compile_event import CompileFinished
        from jaxcache.warm.report.events import CompileStarted

        if isinstance(event, CompileStarted):
            self._running[event.process, event.number] = event
        elif isinstance(event, CompileFinished):
            self._running.pop((event.process, event.number), None)
            self._erase()

    def tick(self) -> None:
        """Redraw the line if something has been compiling for a while."""
        now = time.time()
        slow = [e for e in self._running.values() if now - e.at > _PATIENCE_SECONDS]
        if not slow:
            self._erase()
            return
        draw_line(self.text(slow[0], now))
        self._drawn = True

    def text(self, event: "CompileStarted", now: float) -> str:
        """Return the text of the line for one running compile."""
        module = event.module
        took = f" (last time {format_duration(self._last[module])})" if module in self._last else ""
        elapsed = format_duration(now - event.at)
        return f"compiling or loading {module} for {elapsed}{took}"

    def _erase(self) -> None:
        if self._drawn:
            draw_line("")
            self._drawn = False
