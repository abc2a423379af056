"""A progress bar on standard error, on a terminal only, and only where work takes a while."""

import contextlib
import sys
import time
from collections.abc import Iterator

from jaxcache.cache.scan import Progress

#: Work that ends sooner than this shows no bar: it would only flicker.
_PATIENCE_SECONDS = 0.4


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """Give a function (done, total) that draws a bar; None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    started = time.monotonic()
    bar = None

    def show(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            if time.monotonic() - started < _PATIENCE_SECONDS or done >= total:
                return
            bar = _start_bar(title, total)
        bar.update(bar.task_ids[0], completed=done, total=total)

    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()


def _start_bar(title: str, total: int):  # type: ignore[no-untyped-def]
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
    )  # fmt: skip
    from rich.progress import (
        Progress as RichProgress,
    )

    bar = RichProgress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    bar.add_task(title, total=total)
    bar.start()
    return bar
