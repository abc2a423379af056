"""A progress bar on standard error, on a terminal only, and only where work takes a while."""

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxcache.cli.terminal import can_redraw, make_console

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from jaxcache.model import Progress

#: Work that ends sooner than this shows no bar: it would only flicker.
_PATIENCE_SECONDS = 0.4


@contextlib.contextmanager
def progress_bar(title: str, *, in_bytes: bool = False) -> "Iterator[Progress | None]":
    """Yield a function (done, total) that draws a bar; None without a terminal that can redraw it.

    Args:
        in_bytes: whether bytes are counted, and not things.
    """
    if not can_redraw():
        yield None
        return
    started = time.monotonic()
    bar = None

    def show(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            if time.monotonic() - started < _PATIENCE_SECONDS or done >= total:
                return
            bar = _start_bar(title, total, in_bytes)
        bar.update(bar.task_ids[0], completed=done, total=total)

    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()


def _start_bar(title: str, total: int, in_bytes: bool) -> "RichProgress":
    """A bar with what is done, the rate, and the time that is left."""
    from rich import progress
    from rich.table import Column
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:,.0f}/s")

    bar = progress.Progress(
        progress.TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        progress.BarColumn(bar_width=None),
        progress.DownloadColumn() if in_bytes else progress.MofNCompleteColumn(),
        progress.TransferSpeedColumn() if in_bytes else Rate(),
        progress.TimeRemainingColumn(),
        console=make_console(),
        transient=True,
        expand=True,
    )
    bar.add_task(title, total=total)
    bar.start()
    return bar
