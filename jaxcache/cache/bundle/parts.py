"""Files that are parts of others, or that consist of parts."""

import io
import os
from typing import BinaryIO


def part_name(path: str, number: int) -> str:
    """The name of a part; the first is number 1."""
    return f"{path}.{number:03d}"


def first_part(path: str) -> str:
    """The file itself, or where it does not exist but its first part does, that part."""
    first = part_name(path, 1)
    return first if not os.path.lexists(path) and os.path.exists(first) else path


def open_whole(path: str) -> BinaryIO:
    """Open a file, or one in parts by its name or that of its first part.

    Raises:
        OSError
    """
    first = first_part(path)
    if first.endswith(_FIRST):
        return io.BufferedReader(_Parts(first.removesuffix(_FIRST)), _BUFFER_BYTES)
    return open(first, "rb")


_FIRST = part_name("", 1)
_BUFFER_BYTES = 1 << 20


class Window:
    """A part of a seekable file, as far as a decompressor takes it for a file of its own."""

    def __init__(self, file: BinaryIO, start: int, size_bytes: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size_bytes, 0

    def seek(self, offset: int) -> int:
        """Go to a place counted from the start of the window."""
        self._at = offset
        return offset

    def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes, and none beyond the end of the window."""
        self._file.seek(self._start + self._at)
        data = self._file.read(min(limit, max(0, self._size - self._at)))
        self._at += len(data)
        return data


class _Parts(io.RawIOBase):
    """``FILE.001``, ``FILE.002``, … as one seekable file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._files: list[BinaryIO] = []
        self._ends: list[int] = []
        self._at = 0
        try:
            while not self._files or os.path.exists(part_name(path, len(self._files) + 1)):
                file = open(part_name(path, len(self._files) + 1), "rb")  # noqa: SIM115
                self._files.append(file)
                self._ends.append((self._ends or [0])[-1] + os.fstat(file.fileno()).st_size)
        except BaseException:
            self.close()
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._ends[-1]}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        start = 0
        for file, end in zip(self._files, self._ends, strict=True):
            if self._at < end:
                file.seek(self._at - start)
                data = file.read(min(len(view), end - self._at))
                view[: len(data)] = data
                self._at += len(data)
                return len(data)
            start = end
        return 0

    def close(self) -> None:
        for file in getattr(self, "_files", ()):
            file.close()
        super().close()
