"""Several workers on this machine, each with one module at a time, longest first."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jaxcache.errors import JaxcacheError
from jaxcache.warm.replay.bench import Answer, Bench, Failure
from jaxcache.warm.replay.memory import MemoryGate
from jaxcache.warm.replay.plan import Job
from jaxcache.warm.replay.report import Compiled
from jaxcache.warm.replay.worker import Team, launch_kind

#: Has one job done on a bench; None where it was stopped.
Attempt = Callable[[Bench, Job], Answer | Failure | None]
Conclude = Callable[[Job, Answer | Failure], Compiled]


class Watcher(Protocol):
    """Who is told what goes on; called from several threads."""

    def begin(self, job: Job) -> None:
        """A worker begins with a job."""

    def end(self, job: Job, result: Compiled) -> None:
        """A job has come to its end."""


@dataclass(slots=True)
class Pool:
    """Works through jobs in threads, each of which feeds a bench of its own.

    Args:
        make_team: starts children for a job.
        attempt: has one job done.
        conclude: takes what came of it.
    """

    make_team: Callable[[Job], Team]
    attempt: Attempt
    conclude: Conclude
    workers: int
    memory_bytes: int | None = None
    watcher: Watcher | None = None
    results: dict[int, Compiled] = field(default_factory=dict)
    """By position of the job in what :meth:`run` was given."""
    refusals: list[JaxcacheError] = field(default_factory=list)
    """Why children of some kind could not be started at all."""
    _left: list[tuple[int, Job]] = field(default_factory=list)
    _broken: dict[tuple[object, ...], JaxcacheError] = field(default_factory=dict)
    _teams: set[Team] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False
    _crash: BaseException | None = None

    def run(self, jobs: Sequence[Job]) -> bool:
        """Do all jobs, or as many as an interrupt leaves time for.

        Returns:
            Whether it was interrupted.
        """
        self._left = list(enumerate(jobs))
        gate = MemoryGate(self.memory_bytes, self._pids)
        threads = [
            threading.Thread(target=self._guarded, args=(gate,), daemon=True)
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
            return [pid for team in self._teams for pid in team.pids]

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            teams = list(self._teams)
        for team in teams:
            team.kill()

    def _guarded(self, gate: MemoryGate) -> None:
        try:
            self._work(gate)
        except BaseException as error:
            self._crash = error
            self._stop()

    def _work(self, gate: MemoryGate) -> None:
        bench = Bench(self._start, self._end, lambda: self._stopped)
        try:
            while (taken := self._take(bench.kind)) is not None:
                position, job = taken
                with gate.admitted(give_back=bench.clear):
                    if self.watcher:
                        self.watcher.begin(job)
                    answer = self.attempt(bench, job)
                if answer is None:
                    return
                result = self.results[position] = self.conclude(job, answer)
                if self.watcher:
                    self.watcher.end(job, result)
        finally:
            bench.clear()

    def _take(self, kind: tuple[object, ...] | None) -> tuple[int, Job] | None:
        """The longest job that the children at hand can do, else the longest of all."""
        with self._lock:
            if self._stopped or not self._left:
                return None
            for number, (_, job) in enumerate(self._left):
                if kind is None or launch_kind(job.environment) == kind:
                    return self._left.pop(number)
            return self._left.pop(0)

    def _start(self, job: Job) -> Team:
        """Start children for a job; a kind that could not be started once is not tried again.

        Raises:
            JaxcacheError
        """
        kind = launch_kind(job.environment)
        with self._lock:
            known = self._broken.get(kind)
        if known is not None:
            raise known
        try:
            team = self.make_team(job)
        except JaxcacheError as error:
            with self._lock:
                if kind not in self._broken:
                    self._broken[kind] = error
                    self.refusals.append(error)
            raise
        with self._lock:
            self._teams.add(team)
            stopped = self._stopped
        if stopped:
            team.kill()
        return team

    def _end(self, team: Team) -> None:
        with self._lock:
            self._teams.discard(team)
        team.stop()
