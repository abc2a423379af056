"""Where jobs are done, one after the other: children, and a second try with fresh ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxcache.errors import JaxcacheError
from jaxcache.warm.child import DiedError
from jaxcache.warm.replay.plan import Job
from jaxcache.warm.replay.worker import FailedError, RefusedError, Team, launch_kind

_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """What children say of one request."""

    key: str
    components: Mapping[str, str]
    ready: Mapping[str, Any]
    """What the children said of themselves."""
    wanted: bool
    """Whether it was to be compiled."""
    file: Path | None = None
    """What JAX has written, on this machine."""
    seconds: float | None = None
    """What compiling took, as JAX measures it."""
    tuning: str | None = None
    """How it was tuned, for a GPU that is not here."""
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request came to nothing."""

    reason: str
    detail: str
    attempts: int = 1


@dataclass(slots=True)
class Bench:
    """Children, who are replaced when they die or when a job needs others.

    Args:
        make: starts children for a job.
        end: lets them go.
        is_stopped: asked when children die: whether they were meant to.
    """

    make: Callable[[Job], Team]
    end: Callable[[Team], None] = Team.stop
    is_stopped: Callable[[], bool] = field(default=lambda: False)
    kind: tuple[object, ...] | None = None
    """Of the children at hand; see :func:`~jaxcache.warm.replay.worker.launch_kind`."""
    _team: Team | None = None

    def attempt(
        self,
        job: Job,
        blobs: tuple[bytes, bytes],
        used_at: str,
        is_wanted: Callable[[str], bool],
    ) -> Answer | Failure | None:
        """Have one job done, at the second try with fresh children.

        Args:
            is_wanted: whether the request is to be compiled, given its key.

        Returns:
            None where the children were stopped.
        """
        failure: Failure | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._do(self._find_team(job), job, blobs, used_at, is_wanted, attempt)
            except JaxcacheError as error:
                return Failure("not-started", error.message, attempt)
            except RefusedError as error:
                return Failure("refused-here", str(error), attempt)
            except (DiedError, FailedError) as error:
                self.clear()
                if self.is_stopped():
                    return None
                died = isinstance(error, DiedError)
                failure = Failure("worker-died" if died else "compile-failed", str(error), attempt)
        return failure

    @staticmethod
    def _do(
        team: Team,
        job: Job,
        blobs: tuple[bytes, bytes],
        used_at: str,
        is_wanted: Callable[[str], bool],
        attempt: int,
    ) -> Answer:
        seen: dict[str, Any] = {}

        def ask(key: str, components: Mapping[str, str]) -> bool:
            seen.update(key=key, components=components, wanted=is_wanted(key))
            return bool(seen["wanted"])

        written = team.compile(job.request, job.environment.process_id, used_at, blobs, ask)
        file, seconds, tuning = written or (None, None, None)
        return Answer(
            **seen, ready=team.ready, file=file, seconds=seconds, tuning=tuning, attempts=attempt
        )

    def _find_team(self, job: Job) -> Team:
        kind = launch_kind(job.environment)
        if self._team is None or kind != self.kind:
            self.clear()
            self._team = self.make(job)
            self.kind = kind
        return self._team

    def clear(self) -> None:
        """Let the children go."""
        if self._team is not None:
            self.end(self._team)
        self._team = self.kind = None
