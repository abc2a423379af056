"""Plan a compile: the requests of a recipe in their order; and the results, one for each."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from jaxcache.cache.recipe.format import RecipeFile
from jaxcache.cache.recipe.model import REFUSALS, Environment, Request, refuse
from jaxcache.errors import UsageError
from jaxcache.model import result_repr

CompileOutcome = Literal["written", "already-cached", "missing", "failed", "refused"]
COMPILE_OUTCOMES: tuple[CompileOutcome, ...] = get_args(CompileOutcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileResult:
    """One request and its end; a row of the JSON."""

    module: str
    key: str | None
    """As JAX makes it here; the recorded one where it came to none."""
    outcome: CompileOutcome
    """``missing`` only with ``--check``: compiling it would write it."""
    compile_seconds: float | None = None
    recorded_key: str | None
    differs: tuple[str, ...] = ()
    """Parts of the key that are not as recorded, by JAX's names."""
    moved: bool = False
    """Nothing but the cache directory differs, which is part of the key in JAX 0.4.36 to 0.10."""
    reason: str | None = None
    """Kebab-case: why it was refused, or ``worker-died``, ``compile-failed``, …"""
    detail: str | None = None
    size_bytes: int | None = None
    function: str | None = None
    attempts: int = 1
    doubts: tuple[str, ...] = ()
    tuning: str | None = None
    """``tuned`` or ``untuned``, for an entry that was compiled without its GPU."""


@dataclass(frozen=True, slots=True)
class CompileReport:
    """The result of one ``compile``."""

    __repr__ = result_repr

    cache_dir: str
    recipe: str
    modules: tuple[CompileResult, ...]
    wall_seconds: float
    check: bool = False
    interrupted: bool = False
    unreached: int = 0
    """Requests that an interruption left undone."""
    notes: tuple[str, ...] = field(default=())

    def count(self, outcome: CompileOutcome) -> int:
        """Count the requests with this outcome."""
        return sum(m.outcome == outcome for m in self.modules)

    @property
    def compile_seconds(self) -> float:
        """Seconds that compiling took, over all workers."""
        return math.fsum(m.compile_seconds or 0.0 for m in self.modules if m.outcome == "written")


def refused(request: Request, reason: str) -> CompileResult:
    """Return the result of a request that cannot be compiled."""
    return result_of(
        request,
        "refused",
        compile_seconds=request.compile_seconds,
        reason=reason,
        detail=REFUSALS[reason],
        attempts=0,
    )


def failed(request: Request, reason: str, detail: str, attempts: int = 1) -> CompileResult:
    """Return the result of a request that came to nothing."""
    return result_of(request, "failed", reason=reason, detail=detail, attempts=attempts)


def result_of(request: Request, outcome: CompileOutcome, **facts: Any) -> CompileResult:
    """Return the result of a request, with what more is known of it."""
    facts = {"key": request.key, **facts}
    return CompileResult(
        module=request.module,
        outcome=outcome,
        recorded_key=request.key,
        function=request.function,
        doubts=request.doubts,
        **facts,
    )


#: Seconds per byte of bytecode where nothing at all is known; measured on a small transformer.
_SECONDS_PER_BYTE = 2e-4
_LEAST_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Job:
    """One request to compile."""

    request: Request
    environment: Environment
    seconds: float
    """The expected compile time: as recorded, or guessed from its size."""


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """The jobs of one ``compile``, and what it refuses."""

    jobs: tuple[Job, ...]
    """Longest first."""
    refused: tuple[tuple[Request, str], ...]
    """Requests with one of :data:`jaxcache.cache.recipe.model.REFUSALS`."""


def parse_shard(text: str) -> tuple[int, int]:
    """Read ``2/4``: the second of four.

    Raises:
        UsageError: ``bad-shard``.
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(
            f"{text} is not a shard",
            code="bad-shard",
            hint="the first of four is 1/4, the last 4/4",
        )
    return number, count


def plan_compile(file: RecipeFile, *, shard: tuple[int, int] | None = None) -> CompilePlan:
    """Decide what is compiled.

    Args:
        shard: (number from 1, count): compile only this part, which depends on the recipe alone.
    """
    recipe = file.recipe
    refused = []
    kept = []
    for request in recipe.requests:
        if reason := refuse(request, recipe.environment_of(request), file.blob):
            refused.append((request, reason))
        else:
            kept.append(request)
    rate = _seconds_per_byte(kept, file)
    jobs = [
        Job(r, recipe.environment_of(r), _seconds(r, rate * file.blob_bytes(r.bytecode)))
        for r in kept
    ]
    jobs.sort(key=lambda j: (-j.seconds, j.request.name, j.request.bytecode, j.request.environment))
    if shard is not None:
        jobs = _shards(jobs, shard[1])[shard[0] - 1]
    return CompilePlan(tuple(jobs), tuple(refused))


def _seconds_per_byte(requests: Sequence[Request], file: RecipeFile) -> float:
    measured = [r for r in requests if r.compile_seconds is not None]
    size_bytes = sum(file.blob_bytes(r.bytecode) for r in measured)
    seconds = math.fsum(r.compile_seconds or 0.0 for r in measured)
    return seconds / size_bytes if size_bytes and seconds else _SECONDS_PER_BYTE


def _seconds(request: Request, guess: float) -> float:
    return max(
        guess if request.compile_seconds is None else request.compile_seconds, _LEAST_SECONDS
    )


def _shards(jobs: Iterable[Job], count: int) -> list[list[Job]]:
    """Give each job, longest first, to the shard that has least to do; of equals, to the first."""
    shards: list[list[Job]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for job in jobs:
        least = loads.index(min(loads))
        shards[least].append(job)
        # Whole milliseconds: sums of floats in another order may differ by a bit.
        loads[least] += round(job.seconds * 1000)
    return shards
