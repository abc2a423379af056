"""Show what a watcher sees: once, as lines, or as a page that stays."""

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from itertools import islice
from shutil import get_terminal_size

from jaxcache.cache.index import Index
from jaxcache.cache.watch import CacheSnapshot, Change, Watcher
from jaxcache.cli.options import Format
from jaxcache.cli.output import emit, note
from jaxcache.cli.terminal import make_console, terminal_width, wants_color
from jaxcache.cli.terminal.progress import progress_bar
from jaxcache.core.system import available_cores
from jaxcache.errors import NoCacheError
from jaxcache.render import top as render
from jaxcache.render.typeset import set_blocks
from jaxcache.render.view import Block
from jaxcache.store.base import Store
from jaxcache.store.location import index_directory

#: Entries that a single look shows.
_NEWEST = 20


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Read single keys; give a function that waits for so long and returns whether q came."""

    def wait(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left_seconds := until - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left_seconds)[0]:
                pressed = os.read(sys.stdin.fileno(), 1)
                if pressed in (b"q", b"Q"):
                    return True
                if not pressed:  # end of input: no more keys will come
                    time.sleep(left_seconds)
        return False

    fd = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else -1
    if fd < 0 or os.tcgetpgrp(fd) != os.getpgrp():  # in the background the terminal is another's

        def sleep(seconds: float) -> bool:
            time.sleep(seconds)
            return False

        yield sleep
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield wait
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def wait_for_cache(find: Callable[[], Store], interval_seconds: float) -> tuple[Store, bool] | None:
    """Wait until the cache directory exists; None if ``q`` was pressed first.

    Returns:
        The cache, and whether it was waited for.

    Raises:
        NoCacheError: the place is not a cache, or cannot be read.
    """
    waiting = False
    with _keys() as wait:
        while True:
            try:
                return find(), waiting
            except NoCacheError as error:
                if error.code != "no-cache":
                    raise
                if not waiting:
                    note(f"waiting: {error.message} yet; q or Ctrl-C ends this")
                waiting = True
            if wait(interval_seconds):
                return None


class Screen:
    """The view of one cache.

    Args:
        interval_seconds: from one look to the next.
        from_empty: the cache was not there a moment ago.
    """

    def __init__(self, store: Store, interval_seconds: float, *, from_empty: bool = False) -> None:
        self._store = store
        self._interval = interval_seconds
        self._watcher = Watcher(store, from_empty=from_empty)
        self._tally = render.ChangeTotals(time.time_ns())

    def once(self, form: Format) -> None:
        """Show the sums, and what was written last."""
        look = self._first()
        entries = sorted(self._watcher.entries, key=lambda e: -e.created_ns)[:_NEWEST]
        newest = [Change("new", e.created_ns, e) for e in entries]
        self._tally.latest = newest
        self._tally.hits_show |= self._watcher.has_record
        emit(form, render.once_view(look, newest, self._page(look, rows=_NEWEST, newest=True)))

    def lines(self, form: Format) -> None:
        """Print each change as it is seen, until interrupted."""
        self._first()
        if not self._tally.hits_show:
            note(render.NO_DATES)
        quick = 0
        while True:
            time.sleep(self._interval)
            look = self._look()
            if look.too_quick > quick:
                quick = look.too_quick
                note(render.below_threshold_line(quick))
            emit(Format.TSV if form is Format.TABLE else form, render.changes_view(look.changes))
            sys.stdout.flush()

    def live(self) -> None:
        """Keep a page on the terminal, until interrupted or ``q`` is pressed."""
        look = self._first()
        from rich.live import Live
        from rich.text import Text

        console = make_console()
        color = wants_color()
        with Live(console=console, screen=True, auto_refresh=False) as live, _keys() as wait:
            while True:
                console.width = terminal_width()
                height = get_terminal_size().lines
                page = set_blocks(self._page(look, rows=height), width=console.width, color=color)
                shown = "\n".join(islice(page, height))
                live.update(Text.from_ansi(shown), refresh=True)
                if wait(self._interval):
                    break
                look = self._look()

    def end(self, form: Format) -> None:
        """Say what was seen in all."""
        if form is Format.TABLE:
            note(render.tally_line(self._tally, time.time_ns()))

    def _first(self) -> CacheSnapshot:
        now_ns = time.time_ns()
        index = Index.load(index_directory(), self._store.url, now_ns=now_ns)
        with progress_bar("reading entries") as progress:
            look = self._watcher.look(
                now_ns=now_ns, index=index, workers=available_cores(), progress=progress
            )
        self._tally.add(look)
        return look

    def _look(self) -> CacheSnapshot:
        look = self._watcher.look(now_ns=time.time_ns())
        self._tally.add(look)
        return look

    def _page(self, look: CacheSnapshot, *, rows: int, newest: bool = False) -> Iterator[Block]:
        now_ns = time.time_ns()
        return render.top_page(look, self._tally, now_ns=now_ns, rows=rows, newest=newest)
