"""What tests do to the files of a cache of torch's compilers, and ask of its graphs."""

import os
from pathlib import Path
from typing import Any

from conftest import RunCli
from ways import told


def files(cache: Path) -> dict[str, bytes]:
    """All files of torch."""
    paths = [p for p in cache.rglob("*") if p.is_file() and ".jaxcache" not in p.parts]
    return {str(p.relative_to(cache)): p.read_bytes() for p in paths}


def graphs(run_cli: RunCli, cache: Path) -> list[Any]:
    """Return what ``ls`` tells of each graph."""
    entries: list[Any] = told(run_cli, "ls", "-C", cache)["entries"]
    return entries


def two_tier_graph(run_cli: RunCli, cache: Path) -> Any:
    """Return what ``ls`` tells of the AOT graph that refers to two FX graphs."""
    return next(e for e in graphs(run_cli, cache) if len(e["references"]) == 2)


def cut(path: Path, keep: float = 0.5) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return path


def flip(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    return path


def empty(path: Path) -> Path:
    path.write_bytes(b"")
    return path


def invert(path: Path) -> Path:
    """Change 256 bytes of machine code."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 256] = bytes(byte ^ 255 for byte in data[middle : middle + 256])
    path.write_bytes(bytes(data))
    return path


class Trap:
    """Unpickling it makes a directory."""

    def __init__(self, path: Path | str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)
