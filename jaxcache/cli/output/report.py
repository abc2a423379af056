"""Put a report where it was asked for."""

import contextlib
import os

from jaxcache.errors import UsageError
from jaxcache.render.report.page import MARK


def check_replaceable(path: str, *, force: bool) -> None:
    """Refuse to overwrite anything but a report.

    Raises:
        UsageError: ``exists``.
    """
    if os.path.isdir(path):
        raise UsageError(f"{path} is a directory", code="exists", hint="name a file in it")
    if force or not os.path.lexists(path):
        return
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if file.read(len(MARK)) == MARK.encode():
            return
    raise UsageError(
        f"{path} exists and is not a report",
        code="exists",
        hint="name another file, or add --force to replace it",
    )
