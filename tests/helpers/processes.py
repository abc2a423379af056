"""Starts commands, and runs them to their end."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conftest import clean_environment


def sh(command: Sequence[str | Path], **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a command and return what it printed and its exit code.

    Args:
        options: of :func:`subprocess.run`; ``check=True`` raises where the command fails. A command
            that has not ended after ten minutes is killed.
    """
    options = {"capture_output": True, "text": True, "timeout": 600, "check": False, **options}
    return subprocess.run(command, **options)


def begin(home: Path, *args: str | Path, **options: Any) -> "subprocess.Popen[str]":
    """Start ``jaxcache ARG…`` as a process, in a home of its own, with pipes for its streams.

    Args:
        options: of :class:`subprocess.Popen`.
    """
    command = [sys.executable, "-m", "jaxcache", *map(str, args)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options = {"env": clean_environment(home), "text": True, **pipes, **options}
    return subprocess.Popen(command, **options)


def limited(
    home: Path, limit_bytes: int, *args: str | Path, stdin: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run ``jaxcache ARG…`` where no file can be larger than a limit, as on a full disk."""
    with open(stdin or os.devnull, "rb") as file:
        return sh(
            [sys.executable, "-m", "jaxcache", *map(str, args)],
            env=clean_environment(home),
            stdin=file,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes,) * 2),
        )


def interrupt(command: Sequence[str | Path], line: str, **options: Any) -> tuple[int, str]:
    """Press Ctrl-C in the terminal of a command that has printed a line.

    Returns:
        Its exit code, and all that it printed after that line.
    """
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **options,
    )
    try:
        assert child.stdout
        while child.stdout.readline() not in (f"{line}\n", ""):
            pass
        os.killpg(child.pid, signal.SIGINT)
        shown, _ = child.communicate(timeout=300)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    return child.returncode, shown
