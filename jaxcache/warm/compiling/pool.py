"""Several workers on this machine, each with one module at a time, longest first."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from jaxcache.errors import JaxcacheError
from jaxcache.warm.compiling.plan import Job
from jaxcache.warm.compiling.report import CompileResult
from jaxcache.warm.compiling.session import Session
from jaxcache.warm.compiling.worker import Processes, Worker, launch_kind

_SHARE = 0.8
#: What a compile is taken to need beyond what its worker holds already.
_RESERVE_BYTES = 256 << 20
_LOOK_SECONDS = 0.5


class CompileWatcher(Protocol):
    """Receives progress, from several threads."""

    def begin(self, job: Job) -> None:
        """Show that a worker started a job."""

    def end(self, job: Job, result: CompileResult) -> None:
        """Show that a job ended."""


@dataclass(slots=True)
class Pool:
    """Works through jobs in threads, each of which feeds a worker of its own.

    Args:
        make_processes: starts children for a job.
    """

    session: Session
    make_processes: Callable[[Job], Processes]
    workers: int
    memory_bytes: int | None = None
    watcher: CompileWatcher | None = None
    results: dict[int, CompileResult] = field(default_factory=dict)
    """By position of the job in what :meth:`run` was given."""
    _left: list[tuple[int, Job]] = field(default_factory=list)
    refusals: dict[tuple[object, ...], JaxcacheError] = field(default_factory=dict)
    """Errors of children that could not be started, by the kind of their environment."""
    _processes: set[Processes] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False
    _crash: BaseException | None = None

    def run(self, jobs: Sequence[Job]) -> bool:
        """Do all jobs, or as many as an interrupt leaves time for.

        Returns:
            Whether it was interrupted.
        """
        self._left = list(enumerate(jobs))
        limiter = MemoryLimiter(self.memory_bytes, self._pids)
        threads = [
            threading.Thread(target=self._guarded, args=(limiter,), daemon=True)
            for _ in range(min(self.workers, len(jobs)))
        ]
        interrupted = False
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._stop()
            for thread in threads:
                thread.join()
        if self._crash is not None:
            raise self._crash
        return interrupted

    def _pids(self) -> list[int]:
        with self._lock:
            return [pid for processes in self._processes for pid in processes.pids]

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            running = list(self._processes)
        for processes in running:
            processes.kill()

    def _guarded(self, limiter: "MemoryLimiter") -> None:
        try:
            self._work(limiter)
        except BaseException as error:
            self._crash = error
            self._stop()

    def _work(self, limiter: "MemoryLimiter") -> None:
        worker = Worker(self._start, self._end, lambda: self._stopped)
        try:
            while (taken := self._take(worker.kind)) is not None:
                position, job = taken
                with limiter.admitted(give_back=worker.clear):
                    if self.watcher:
                        self.watcher.begin(job)
                    answer = self.session.attempt(worker, job)
                if answer is None:
                    return
                result = self.results[position] = self.session.conclude(job, answer)
                if self.watcher:
                    self.watcher.end(job, result)
        finally:
            worker.clear()

    def _take(self, kind: tuple[object, ...] | None) -> tuple[int, Job] | None:
        """The longest job that the children at hand can do, else the longest of all."""
        with self._lock:
            if self._stopped or not self._left:
                return None
            for number, (_, job) in enumerate(self._left):
                if kind is None or launch_kind(job.environment) == kind:
                    return self._left.pop(number)
            return self._left.pop(0)

    def _start(self, job: Job) -> Processes:
        """Start children for a job; a kind that could not be started once is not tried again.

        Raises:
            JaxcacheError
        """
        kind = launch_kind(job.environment)
        with self._lock:
            refusal = self.refusals.get(kind)
        if refusal is not None:
            raise refusal
        try:
            processes = self.make_processes(job)
        except JaxcacheError as error:
            with self._lock:
                self.refusals.setdefault(kind, error)
            raise
        with self._lock:
            self._processes.add(processes)
            stopped = self._stopped
        if stopped:
            processes.kill()
        return processes

    def _end(self, processes: Processes) -> None:
        with self._lock:
            self._processes.discard(processes)
        processes.stop()


def available_bytes() -> int | None:
    """Memory that this host, or our control group, can still give; None if unknown."""
    limits = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits.append(next(int(x.split()[1]) << 10 for x in lines if x.startswith("MemAvailable")))
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text())
        limits.append(most - int((group / "memory.current").read_text()))
    return min(limits, default=None)


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident memory of processes; those that cannot be looked at count nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
    return total


class MemoryLimiter:
    """Lets a module begin only where the workers' memory allows it; one may always run.

    Args:
        limit_bytes: of all workers together; None for four fifths of what is available now.
        pids: the workers that live.
    """

    def __init__(self, limit_bytes: int | None, pids: Callable[[], Iterable[int]]) -> None:
        free = available_bytes()
        self._limit = limit_bytes or (None if free is None else int(free * _SHARE))
        self._pids = pids
        self._changed = threading.Condition()
        self._running = 0

    @contextlib.contextmanager
    def admitted(self, give_back: Callable[[], None]) -> Iterator[None]:
        """Wait for memory, and hold a place while a module compiles.

        Args:
            give_back: called before waiting; lets go of what the caller itself holds.
        """
        with self._changed:
            waited = False
            while self._running and not self._fits():
                if not waited:
                    give_back()
                waited = True
                self._changed.wait(_LOOK_SECONDS)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _fits(self) -> bool:
        if self._limit is None:
            return True
        return resident_bytes(self._pids()) + _RESERVE_BYTES <= self._limit
