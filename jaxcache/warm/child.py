"""A child that is asked in lines of JSON with bytes behind them, and may die of any question."""

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, cast

from jaxcache.errors import NoJaxError
from jaxcache.warm.process import NO_JAX_HINT, describe_end

_SHOWN_ERROR_BYTES = 4096
_SHOWN_CHARACTERS = 300


class DiedError(Exception):
    """The child is gone, or hangs; the text says how."""


class Child:
    """One process. What it says on standard error is kept for :attr:`last_words`.

    Args:
        command: its Python first.
        deed: what it does, for the sentence about its end: "loaded it".
        env: its environment; ours if None.
        aside: whether interrupts from the terminal are not for it.

    Raises:
        NoJaxError: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        deed: str,
        env: Mapping[str, str] | None = None,
        aside: bool = False,
    ) -> None:
        self._deed = deed
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        try:
            self._process = subprocess.Popen(
                command, env=env, start_new_session=aside, bufsize=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            )  # fmt: skip
        except OSError as error:
            self._errors.close()
            message = f"cannot run {command[0]}: {error.strerror}"
            raise NoJaxError(message, hint=NO_JAX_HINT) from error

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, document: Mapping[str, Any], *blobs: bytes) -> None:
        """Ask something; of a child that is gone the answer tells."""
        stdin = cast(IO[bytes], self._process.stdin)
        try:
            for data in (json.dumps(document).encode() + b"\n", *blobs):
                view = memoryview(data)
                while view:
                    view = view[stdin.write(view) or 0 :]
        except (BrokenPipeError, ValueError):  # gone, or stopped from another thread
            pass

    def answer(self, seconds: float | None = None) -> dict[str, Any]:
        """Wait for one line.

        Args:
            seconds: how long; without end if None.

        Raises:
            DiedError
        """
        stdout = cast(IO[bytes], self._process.stdout)
        deadline = None if seconds is None else time.monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            left = None if deadline is None else deadline - time.monotonic()
            try:
                if left is not None and (left <= 0 or not select.select([stdout], [], [], left)[0]):
                    raise DiedError(f"no answer within {seconds:.0f} s")
                part = os.read(stdout.fileno(), 65536)
            except (OSError, ValueError) as error:
                raise DiedError("it was stopped") from error
            if not part:
                raise DiedError(describe_end(self._process.wait(), self._deed))
            line += part
        answer = json.loads(line)
        return answer if isinstance(answer, dict) else {}

    @property
    def last_words(self) -> str:
        """The last line that it wrote to standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _SHOWN_ERROR_BYTES))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:_SHOWN_CHARACTERS] if lines else ""

    def kill(self) -> None:
        """End it; whoever waits for its answer learns of it."""
        self._process.kill()

    def stop(self) -> None:
        """End it and let everything go."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream:
                stream.close()
