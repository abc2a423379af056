"""Notice what the listener did not report: a program without any event, entries of others."""

import contextlib
import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from jaxcache.entry.names import key_of
from jaxcache.errors import JaxcacheError, NoJaxError

if TYPE_CHECKING:
    from jaxcache.warm.report.report import Report
    from jaxcache.warm.torch.report import TorchReport

_NO_COMPILE = "the program failed before its first compile; its own output says why"


def describe_failure(library: str) -> str:
    """Explain why nothing was observed of a program that failed."""
    return f"the program failed before any use of {library} was seen; its own output says why"


def require_observed(report: "Report | TorchReport", library: str) -> None:
    """Refuse to explain a run of which nothing was observed, or that failed before any compile.

    Raises:
        JaxcacheError: ``program-failed``.
        NoJaxError: ``unknown-jax`` or ``unknown-torch``.
    """
    if report.modules:
        return
    if code := report.script_exit_code:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        why = next(iter(report.unobserved), _NO_COMPILE)
        raise JaxcacheError(f"{how}: {why}", code="program-failed")
    if report.unobserved:
        raise NoJaxError(report.unobserved[0], code=f"unknown-{library}")


def unreported_entries(cache_dir: str, since_ns: int, reported: Collection[str]) -> list[str]:
    """Return names of entries that were written since then under keys that no process reported."""
    written: list[str] = []
    with contextlib.suppress(OSError):  # a bucket, or no directory yet
        if os.stat(cache_dir).st_mtime_ns < since_ns:
            return []
        for name in os.listdir(cache_dir):
            if (key := key_of(name)) and key not in reported:
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(os.path.join(cache_dir, name)).st_mtime_ns >= since_ns:
                        written.append(name)
    return sorted(written)
