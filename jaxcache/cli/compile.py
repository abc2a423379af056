"""``jaxcache compile``."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from jaxcache.cli.opening import open_handle
from jaxcache.cli.options import Output
from jaxcache.cli.output import emit
from jaxcache.cli.terminal import can_redraw, draw_line, progress_line
from jaxcache.errors import ExitCode
from jaxcache.options import CacheDir
from jaxcache.options.declare import TEXT, option
from jaxcache.options.run import CompileOptions
from jaxcache.units import format_duration

if TYPE_CHECKING:
    from jaxcache.warm.compiling.plan import CompilePlan, CompileResult, Job

EXAMPLE = "jaxcache compile train.recipe -C /var/cache/jax --jobs 8"
EXIT_CODES = (0, 1, 2, 3, 10, 13, 130)


def command(
    recipe: Annotated[
        str, option("recipe", TEXT, "A recipe written by warm --record.", metavar="RECIPE")
    ],
    place: CacheDir,
    options: CompileOptions,
    output: Output,
) -> int:
    """Compile a recorded recipe into a cache, without its script.

    What the cache has already is left alone. Workers are processes with the devices, flags and
    settings that were recorded; a module that kills its worker is tried once more and then named.
    """
    from jaxcache.render.recipe import compile_view
    from jaxcache.warm.compiling.run import compile_recipe

    form = output.form
    options.check()
    cache = open_handle(place)
    cache.refuse_caches_below()
    if not (options.used_at or options.portable):
        options = options.replace(used_at=cache.spelling)
    report = compile_recipe(recipe, cache.location.path, options, show_progress)
    emit(form, compile_view(report))
    if report.interrupted:
        return ExitCode.INTERRUPTED
    if report.count("failed"):
        return ExitCode.PARTIAL
    return ExitCode.PROBLEMS if report.count("missing") else ExitCode.DONE


@contextlib.contextmanager
def show_progress(plan: "CompilePlan", workers: int) -> Iterator["CompileLine | None"]:
    """Yield a line that shows the progress; None without a terminal that can redraw it."""
    if not can_redraw():
        yield None
        return
    line = CompileLine([j.seconds for j in plan.jobs], workers)
    try:
        yield line
    finally:
        line.erase()


class CompileLine:
    """Progress: the modules at work and the time left, estimated from what was recorded.

    Args:
        seconds: what each job is going to take, as recorded.
    """

    def __init__(self, seconds: list[float], workers: int) -> None:
        self._left = sum(seconds)
        self._total = len(seconds)
        self._workers = max(1, min(workers, len(seconds)))
        self._done = 0
        self._did = 0.0
        self._running: dict[int, Job] = {}
        self._started = time.monotonic()
        self._lock = threading.Lock()

    def begin(self, job: "Job") -> None:
        """Show that a worker started a job."""
        with self._lock:
            self._running[id(job)] = job
            self._draw()

    def end(self, job: "Job", result: "CompileResult") -> None:  # noqa: ARG002 (as CompileWatcher has it)
        """Show that a job ended."""
        with self._lock:
            self._running.pop(id(job), None)
            self._done += 1
            self._left -= job.seconds
            self._did += job.seconds
            self._draw()

    def text(self, now: float) -> str:
        """Return the text of the line."""
        bar = progress_line(self._done, self._total)
        # As fast as until now; before anything is done, as fast as recorded.
        pace = (now - self._started) / self._did if self._did else 1 / self._workers
        remaining = f"about {format_duration(max(0.0, self._left) * pace)} left"
        names = ", ".join(j.request.module for j in self._running.values())
        return f"{bar} {remaining}: {names}"

    def _draw(self) -> None:
        draw_line(self.text(time.monotonic()))

    def erase(self) -> None:
        """Erase the line."""
        draw_line("")
