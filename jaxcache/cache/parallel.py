"""Work over many files in several processes, giving way where none can be had."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
#: Items per task: enough that sending them costs little beside reading as many small files.
_CHUNK = 1_000


def in_processes(
    work: Callable[[Sequence[_Item]], Sequence[_Result]],
    items: Sequence[_Item],
    workers: int,
    *,
    chunk: int = _CHUNK,
) -> Iterator[_Result]:
    """Yield the result of each item in order, while the processes last.

    Where no process can be had, or one dies, it ends early: the caller does the rest itself. The
    processes are spawned, so the main module must be one that can be imported.

    Args:
        work: picklable; takes some of the items, returns as many results.
        chunk: how many items it takes at once.
    """
    import multiprocessing
    from concurrent.futures import BrokenExecutor, ProcessPoolExecutor

    chunks = [items[i : i + chunk] for i in range(0, len(items), chunk)]
    with (
        contextlib.suppress(OSError, ImportError, BrokenExecutor),  # no semaphores, no memory
        ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool,
    ):
        for results in pool.map(work, chunks):
            yield from results
