"""Errors that reach the person at the terminal, and the exit codes of the command line."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of the process; the meaning of each is part of the command-line contract."""

    DONE = 0
    PROBLEMS = 1
    USAGE = 2
    PARTIAL = 3
    NO_CACHE = 10
    LOCKED = 11
    UNTRUSTED = 12
    NO_JAX = 13
    INTERRUPTED = 130


#: What each exit code means, for help and manual.
EXIT_MEANINGS = {
    0: "done",
    1: "problems found",
    2: "usage",
    3: "partly done",
    10: "cache not found, or no permission to use it",
    11: "could not acquire the lock",
    12: "untrusted",
    13: "jax missing or unusable",
    130: "interrupted",
}


class JaxcacheError(Exception):
    """A failure with a kebab-case code, a message, a hint at the next step, and an exit code.

    Args:
        message: one sentence that describes what is wrong and names the thing.
        hint: what to do next, or None.
        code: kebab-case name that scripts may match on.
        exit_code: what the process returns.
    """

    code = "error"
    exit_code: int = ExitCode.PROBLEMS

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        exit_code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.hint = hint
        self.exit_code = self.exit_code if exit_code is None else exit_code

    def __str__(self) -> str:
        """Return the message, and on a line of its own the hint."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class UsageError(JaxcacheError):
    """The request is invalid: a malformed size, an unknown filter field."""

    code = "usage"
    exit_code = ExitCode.USAGE


class NoCacheError(JaxcacheError):
    """A cache was not found, or this user may not read or write it."""

    code = "no-cache"
    exit_code = ExitCode.NO_CACHE


class LockedError(JaxcacheError):
    """A lock, mostly JAX's ``.lockfile``, could not be obtained in time."""

    code = "locked"
    exit_code = ExitCode.LOCKED


class UntrustedError(JaxcacheError):
    """A signature or a permission forbids the use of this."""

    code = "untrusted"
    exit_code = ExitCode.UNTRUSTED


class NoJaxError(JaxcacheError):
    """jax is missing or unusable in the chosen Python."""

    code = "no-jax"
    exit_code = ExitCode.NO_JAX


class InterruptError(JaxcacheError):
    """The user interrupted the command."""

    code = "interrupted"
    exit_code = ExitCode.INTERRUPTED


class ReportError(JaxcacheError):
    """A program has run to its end, and the report of it failed for the reason that is its cause.

    Args:
        script_exit_code: how the program ended; negative for a signal.
    """

    def __init__(self, cause: Exception, script_exit_code: int) -> None:
        reason = cause
        if not isinstance(reason, JaxcacheError):
            text = f"{type(cause).__name__}: {cause}"
            reason = JaxcacheError(text, code="report-failed", hint=REPORT_BUG)
        super().__init__(
            f"the program has run to its end; the report of it failed: {reason.message}",
            code=reason.code,
            hint=reason.hint,
            exit_code=shell_code(script_exit_code),
        )


@contextmanager
def reporting(script_exit_code: int) -> Iterator[None]:
    """Let no failure of a report hide how its program ended.

    Raises:
        ReportError
    """
    try:
        yield
    except ReportError:
        raise
    except Exception as error:
        raise ReportError(error, script_exit_code) from error


def shell_code(script_exit_code: int) -> int:
    """Return the exit code that a shell has for a program; a signal ends it with a negative one."""
    return script_exit_code if script_exit_code >= 0 else 128 - script_exit_code


#: The hint at a mistake of ours.
REPORT_BUG = (
    "this is a bug; please report the output of jaxcache --debug COMMAND and of jaxcache bug-report"
)


class MissingPackageError(JaxcacheError):
    """A package that jaxcache requires is not installed, as after ``pip install --no-deps``."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"this needs {package}, which is not installed in {sys.executable}, or not readable; "
            "the live layer, watch, guard, the pytest plugin and the notebook work without it",
            code="missing-package",
            hint="install jaxcache there without --no-deps, or use the command of a jaxcache that "
            "you install as a tool (see README)",
        )


@contextmanager
def system_errors_as(
    error: Callable[..., JaxcacheError], failure: str, **facts: Any
) -> Iterator[None]:
    """Raise an error of the system as ``FAILURE: reason``; a broken pipe as it is.

    Args:
        error: the exception to raise.
        failure: what could not be done, such as ``cannot read FILE``.
        facts: more arguments of the exception.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as cause:
        raise error(f"{failure}: {(cause.strerror or str(cause)).lower()}", **facts) from cause
