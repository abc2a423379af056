"""Several workers, each with one module at a time, longest first."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from jaxcache.errors import JaxcacheError
from jaxcache.warm.replay.memory import MemoryGate
from jaxcache.warm.replay.plan import Job
from jaxcache.warm.replay.report import Compiled
from jaxcache.warm.replay.worker import DiedError, FailedError, RefusedError, Team, launch_kind

_ATTEMPTS = 2

#: Makes the children for a job.
MakeTeam = Callable[[Job], Team]


class Watcher(Protocol):
    """Who is told what goes on; called from several threads."""

    def begin(self, job: Job) -> None:
        """A worker begins with a job."""

    def end(self, job: Job, result: Compiled) -> None:
        """A job has come to its end."""


#: Has one job done by a team.
DoJob = Callable[[Team, Job], Compiled]


@dataclass(slots=True)
class Pool:
    """Works through jobs in threads, each of which feeds one team of children.

    A job whose children die, or that JAX cannot compile, is tried once more with fresh children,
    and then named; the others go on.
    """

    make_team: MakeTeam
    do_job: DoJob
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
        bench = _Bench(self)
        try:
            while (taken := self._take(bench.kind)) is not None:
                position, job = taken
                with gate.admitted(give_back=bench.clear):
                    if self.watcher:
                        self.watcher.begin(job)
                    result = self._do(bench, job)
                if result is None:
                    return
                self.results[position] = result
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

    def _do(self, bench: "_Bench", job: Job) -> Compiled | None:
        """One job, at the second try with fresh children; None where we are to stop."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                team = bench.team(job)
                return replace(self.do_job(team, job), attempts=attempt)
            except JaxcacheError as error:
                return failed(job, "not-started", error.message, attempt)
            except RefusedError as error:
                return failed(job, "refused-here", str(error), attempt)
            except (DiedError, FailedError) as error:
                bench.clear()
                if self._stopped:
                    return None
                reason = "worker-died" if isinstance(error, DiedError) else "compile-failed"
                result = failed(job, reason, str(error), attempt)
        return result

    def start(self, job: Job) -> Team:
        """Start children for a job; those of a kind that could not start once are not tried again.

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

    def end(self, team: Team) -> None:
        """Stop children that are not wanted any more."""
        with self._lock:
            self._teams.discard(team)
        team.stop()


class _Bench:
    """The children of one thread."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._team: Team | None = None
        self.kind: tuple[object, ...] | None = None

    def team(self, job: Job) -> Team:
        """Children that can do a job."""
        kind = launch_kind(job.environment)
        if self._team is None or kind != self.kind:
            self.clear()
            self._team = self._pool.start(job)
            self.kind = kind
        return self._team

    def clear(self) -> None:
        """Let the children go."""
        if self._team is not None:
            self._pool.end(self._team)
        self._team = self.kind = None


def failed(job: Job, reason: str, detail: str, attempts: int) -> Compiled:
    """A job that came to nothing."""
    request = job.request
    return Compiled(
        module=request.module, key=request.key, outcome="failed", recorded_key=request.key,
        reason=reason, detail=detail, attempts=attempts, function=request.function,
        doubts=request.doubts,
    )  # fmt: skip
