"""What many tests of a file begin with, made once."""

import shutil
from collections.abc import Callable
from pathlib import Path


def fill_once(directory: Path, fill: Callable[[], object]) -> None:
    """Fill a directory: in earnest once in this process, at this path, which may be in keys."""
    kept = directory.with_name(f"{directory.name}-once")
    if not kept.exists():
        fill()
        shutil.copytree(directory, kept)
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(kept, directory)
