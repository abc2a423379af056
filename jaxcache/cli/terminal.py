"""The terminal: colour, width, and bars.

``--color`` wins over ``NO_COLOR`` (https://no-color.org), which wins over what the stream is.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO

from jaxcache.units import add_cache

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    from jaxcache.model import Progress

#: Work that ends sooner than this shows no bar: it would only flicker.
_BAR_AFTER_SECONDS = 0.4


class Color(StrEnum):
    """Choices of when to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


_wanted = Color.AUTO
#: Whether ``--debug`` was given; a failure then shows where it happened.
debugging = False


def choose_debug(wanted: bool) -> None:
    """Take the value of ``--debug``."""
    global debugging
    debugging = debugging or wanted


#: What ``-C`` names for the cache that the present command has opened.
named_cache: str | None = None


def name_cache(text: str) -> str:
    """Add ``-C`` to the commands in a sentence, so that they are about the same cache."""
    return add_cache(text, named_cache) if named_cache else text


def choose_color(wanted: Color | None) -> None:
    """Take the value of ``--color``, if it is given."""
    global _wanted
    _wanted = wanted or _wanted


def wants_color(stream: TextIO) -> bool:
    """Whether a stream takes colour."""
    if _wanted is not Color.AUTO:
        return _wanted is Color.ALWAYS
    return stream.isatty() and not os.environ.get("NO_COLOR") and not is_dumb()


def is_dumb() -> bool:
    """Return whether the terminal is one that cannot move its cursor."""
    return os.environ.get("TERM") == "dumb"


def make_console() -> "Console":
    """Make the console of a bar on standard error, as wide and as colourful as the terminal is."""
    from rich.console import Console

    color = wants_color(sys.stderr)
    return Console(
        stderr=True,
        width=terminal_width(),
        no_color=not color,
        force_terminal=True,
        highlight=False,
        color_system="standard" if color else None,
    )


def terminal_width() -> int:
    """Return ``COLUMNS``, or the width of the terminal of any of our streams, or 80."""
    if (columns := os.environ.get("COLUMNS", "")).isdigit() and int(columns) > 0:
        return int(columns)
    for stream in (sys.stdout, sys.stderr, sys.stdin):
        try:
            width = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError, AttributeError):
            continue
        if width > 0:
            return width
    return 80


def confirm(question: str, otherwise: str) -> None:
    """Ask on the terminal.

    Args:
        otherwise: the message if declined.

    Raises:
        JaxcacheError: ``declined``.
    """
    from jaxcache.errors import JaxcacheError

    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise JaxcacheError(otherwise, code="declined")


def silence(stream: TextIO) -> None:
    """Let a stream whose reader has gone lead nowhere: Python must not fail over it at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def prepare_streams() -> None:
    """Make standard output and error take any text, which goes nowhere if they are closed.

    Characters that the encoding of a terminal or a pipe lacks become escapes.
    """
    if sys.stdout is None or sys.stderr is None:  # which Python makes of a closed descriptor
        nowhere = open(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)  # noqa: SIM115
        sys.stdout = sys.stdout or nowhere
        sys.stderr = sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def progress_bar(title: str, *, in_bytes: bool = False) -> "Iterator[Progress | None]":
    """Yield a function (done, total) that draws a bar; None without a terminal that can redraw it.

    Args:
        in_bytes: whether bytes are counted, and not things.
    """
    if not sys.stderr.isatty() or is_dumb():
        yield None
        return
    started = time.monotonic()
    bar = None

    def show(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            if time.monotonic() - started < _BAR_AFTER_SECONDS or done >= total:
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
