"""Notice what the listener did not report: Pythons that it never reached, entries of theirs."""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from jaxcache.entry.names import key_of

#: A mapping of ``jaxside/hook.py`` is in the memory of every process that is listened to.
_LISTENING = b"/jaxside/hook.py"
#: Torch asks a Python of its own what this CPU can do (``_inductor/cpu_vec_isa.py``, 2.9 to 2.13).
_PROBE = b"cdll.LoadLibrary("
_SHOWN_CHARACTERS = 60


class Descendants:
    """Looks through the processes below ours; on Linux, and nowhere else."""

    def __init__(self, library: bytes) -> None:
        self._library = library
        self._listening: set[int] = set()
        self.unobserved: dict[int, str] = {}
        """Command lines of those that have loaded it without the listener, by process id."""

    def look(self, pids: Iterable[int]) -> None:
        """Look at the processes that run now: these, and all below them."""
        waiting = list(pids)
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(OSError):  # it has ended
                waiting += _children(pid)
                if pid not in self._listening | {*self.unobserved}:
                    maps = Path(f"/proc/{pid}/maps").read_bytes()
                    if _LISTENING in maps:
                        self._listening.add(pid)
                    elif self._library in maps:
                        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                        if _PROBE in command:
                            self._listening.add(pid)
                        else:
                            self.unobserved[pid] = os.fsdecode(command).strip()[:_SHOWN_CHARACTERS]


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_bytes().split())


def unreported_entries(cache_dir: str, since_ns: int, reported: Collection[str]) -> list[str]:
    """Return names of entries that were written since then under keys that no process reported."""
    with contextlib.suppress(OSError):  # a bucket, or no directory yet
        if os.stat(cache_dir).st_mtime_ns >= since_ns:
            return sorted(_written(cache_dir, since_ns, reported))
    return []


def _written(cache_dir: str, since_ns: int, reported: Collection[str]) -> Iterator[str]:
    with os.scandir(cache_dir) as files:
        for file in files:
            if (key := key_of(file.name)) and key not in reported:
                with contextlib.suppress(FileNotFoundError):
                    if file.stat().st_mtime_ns >= since_ns:
                        yield file.name
