"""A real terminal for a test: the command line behind a pty of a given width."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conftest import clean_environment

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """One process behind a pty.

    Args:
        command: what runs; standard input, output and error are the terminal.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        home: Path,
        width: int = 80,
        env: dict[str, str] | None = None,
    ) -> None:
        self._master, inner = pty.openpty()
        self.resize(width)
        given = clean_environment(home) | {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
        self.process = subprocess.Popen(
            [str(c) for c in command],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=home,
            env=given | (env or {}),
            start_new_session=True,
            # The controlling terminal, so that Ctrl-C reaches the process.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inner)
        self._chunks: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # as at its end on Linux
            while chunk := os.read(self._master, 65536):
                self._chunks.append(chunk)

    @property
    def text(self) -> str:
        """What was shown so far, with its escape sequences."""
        return b"".join(self._chunks).decode("utf-8", "replace").replace("\r\n", "\n")

    def wait_for(self, wanted: str) -> None:
        """Wait until a text was shown, for five minutes at most."""
        deadline = time.monotonic() + 300
        while wanted not in without_style(self.text):
            assert time.monotonic() < deadline, f"{wanted!r} not in {self.text!r}"
            assert self.process.poll() is None or wanted in self.text, self.text
            time.sleep(0.02)

    def resize(self, width: int) -> None:
        """Give the terminal another width."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))

    def press(self, text: str) -> None:
        """Type something."""
        os.write(self._master, text.encode())

    def finish(self) -> int:
        """Wait for the end, for ten minutes at most, and return the exit code."""
        try:
            code = self.process.wait(600)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        self._reader.join(300)
        os.close(self._master)
        return code


def run_on_terminal(*words: str | Path, **options: Any) -> tuple[int, str]:
    """Run ``jaxcache ARG…`` in a terminal; its exit code, and what it showed.

    Args:
        options: of :class:`Terminal`.
    """
    terminal = Terminal([sys.executable, "-m", "jaxcache", *words], **options)
    return terminal.finish(), terminal.text


def without_style(text: str) -> str:
    """A text without escape sequences."""
    return _ANSI.sub("", text)


def columns(line: str) -> int:
    """How many terminal columns a line takes, by Unicode's own tables."""
    return sum(_columns(c) for c in without_style(line))


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
