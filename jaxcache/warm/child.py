"""A child that is asked in lines of JSON with bytes behind them, and may die of any question."""

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

from jaxcache.errors import NoJaxError
from jaxcache.warm.process import NO_JAX_HINT, describe_end

_START = Path(__file__).parents[1] / "jaxside" / "child.py"
#: Far more than any answer takes; the largest is the text of an HLO module.
_MAX_ANSWER_BYTES = 2 << 30
_SHOWN_ERROR_BYTES = 4096
_SHOWN_CHARACTERS = 300


class DiedError(Exception):
    """The child is gone, or hangs; the text says how."""


class Child:
    """One program of ``jaxside/``. What it writes to standard error is kept for :attr:`last_words`.

    Args:
        python: the user's interpreter.
        program: the name of a module in ``jaxside/``.
        arguments: for the program.
        deed: what it does, for the sentence about its end: "loaded it".
        env: its environment; ours if None.
        cwd: its working directory.
        aside: whether interrupts from the terminal are not for it.
        folder: what the child removes if we die before it.

    Raises:
        NoJaxError: it cannot be started.
    """

    def __init__(
        self,
        python: str,
        program: str,
        *arguments: str,
        deed: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        aside: bool = False,
        folder: str = "",
    ) -> None:
        self._deed = deed
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        self._answers, theirs = os.pipe()
        self._unread = bytearray()
        try:
            self._process = subprocess.Popen(
                [python, str(_START), program, str(theirs), folder, *arguments],
                env=env,
                cwd=cwd,
                start_new_session=aside,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(theirs,),
            )
        except OSError as error:
            self._errors.close()
            os.close(self._answers)
            message = f"cannot run {python}: {error.strerror}"
            raise NoJaxError(message, hint=NO_JAX_HINT) from error
        finally:
            os.close(theirs)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, document: Mapping[str, Any], *blobs: bytes) -> None:
        """Send a request; that the child is gone shows in its answer."""
        self.send_bytes(json.dumps(document).encode() + b"\n", *blobs)

    def send_bytes(self, *blobs: bytes) -> None:
        """Send bytes as they are; that the child is gone shows in its answer."""
        stdin = cast(IO[bytes], self._process.stdin)
        try:
            for data in blobs:
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
        deadline = None if seconds is None else time.monotonic() + seconds
        searched = 0
        while self._unread.find(b"\n", searched) < 0:
            searched = len(self._unread)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                if not select.select([self._answers], [], [], left)[0]:
                    raise DiedError(f"no answer within {seconds:.0f} s")
                part = os.read(self._answers, 1 << 20)
            except (OSError, ValueError) as error:
                raise DiedError("it was stopped") from error
            if not part:
                raise DiedError(describe_end(self._process.wait(), self._deed))
            self._unread += part
            if len(self._unread) > _MAX_ANSWER_BYTES:
                raise DiedError("its answer has no end")
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError) as error:  # an entry that it loads may write here, too
            raise DiedError("its answer cannot be read") from error
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
        cast(IO[bytes], self._process.stdin).close()
        self._errors.close()
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1


def ask_once(
    python: str,
    program: str,
    *arguments: str,
    seconds: float,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    folder: str = "",
    data: bytes = b"",
    answers: int = 1,
) -> dict[str, Any]:
    """Start a program of ``jaxside/``, take its answers and let it go.

    Args:
        seconds: for each answer.
        data: what it reads.
        answers: how many it gives; those after the first may be missing.

    Raises:
        NoJaxError: it cannot be started, or ends without an answer.
    """
    child = Child(
        python, program, *arguments, deed="was asked", env=env, cwd=cwd, folder=folder, aside=True
    )
    try:
        child.send_bytes(data)
        return take_answers(child, python, seconds, answers)
    finally:
        child.stop()


def take_answers(child: Child, python: str, seconds: float, answers: int = 1) -> dict[str, Any]:
    """Wait for the answers of a child that was asked about its jax; see :func:`ask_once`.

    Raises:
        NoJaxError
    """
    found: dict[str, Any] = {}
    try:
        for _ in range(answers):
            found |= child.answer(seconds)
    except DiedError as error:
        if not found:
            said = child.last_words or str(error)
            raise NoJaxError(f"{python} has no usable jax: {said}", hint=NO_JAX_HINT) from error
    if "error" in found:
        raise NoJaxError(f"{python} has no usable jax: {found['error']}", hint=NO_JAX_HINT)
    return found
