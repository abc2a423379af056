"""The requests of a recipe in their order, and a worker, whose child compiles one at a time.

A program that was recorded in several processes takes as many children; they are replaced when one
dies, or when a job needs another platform, other flags or another number of devices.
"""

import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from jaxcache.cache.allow_lists import kept_flags, refused_options
from jaxcache.cache.recipe import REFUSALS, Environment, RecipeFile, Request, refuse
from jaxcache.cache.untrusted_json import build
from jaxcache.core.names import is_key
from jaxcache.errors import JaxcacheError, NoJaxError, UsageError
from jaxcache.model import result_repr
from jaxcache.units import NO_JAX_HINT
from jaxcache.warm.child.child import LIFTED, Child, DiedError, free_port
from jaxcache.warm.crosshost.cross_target import WITHOUT_HARDWARE

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
    """Requests with one of :data:`jaxcache.cache.recipe.REFUSALS`."""


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


_START_SECONDS = 300.0
_ATTEMPTS = 2
#: Variables of the caller that would change what is compiled, or where it goes.
_FOREIGN = tuple(
    """
    JAX_COMPILATION_CACHE JAX_PERSISTENT_CACHE JAX_ENABLE_PGLE JAX_PGLE JAX_REMOVE_CUSTOM
    JAX_SHARE_BINARY JAX_DUMP JAX_NUM_CPU_DEVICES JAX_MOCK JAX_LOG_COMPILES JAX_EXPLAIN
    JAX_COMPILER JAXCACHE_ XLA_FLAGS LIBTPU_INIT_ARGS
    """.split()  # noqa: SIM905
)

IsWanted = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class HostJax:
    """The jax of a child, as it describes itself."""

    jax_version: str
    jaxlib_version: str
    jaxlib_digest: str | None
    platform: str
    platform_version: str
    device_kind: str
    device_count: int
    compile_options: str
    """The options that it uses by default, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The key of a request, and the entry if it was compiled."""

    key: str
    components: Mapping[str, str]
    jax: HostJax
    file: Path | None = None
    """An entry as JAX wrote it; for a target, an executable without header and codec."""
    seconds: float | None = None
    """Compile time as JAX measures it."""
    tuning: str | None = None
    """``tuned`` or ``untuned``, for a GPU that is not here."""
    attempts: int = 1


class FailedError(Exception):
    """JAX could not compile the module, or must not compile it here; the text gives the reason."""

    def __init__(self, detail: str, reason: str = "compile-failed") -> None:
        super().__init__(detail)
        self.reason = reason


def launch_kind(environment: Environment) -> tuple[object, ...]:
    """Return what two environments must share for one child to serve both."""
    e = environment
    flags = (tuple(kept_flags(f)) for f in (e.xla_flags, e.libtpu_init_args, e.argv_flags))
    settings = tuple(sorted(e.settings.items()))
    return (e.platform, e.device_count, e.process_count, *flags, settings)


class Processes:
    """The children for one kind of environment: one, or one for each process of a program.

    Args:
        python: the interpreter that has jax.
        environment: of the program that was recorded.
        devices: how many devices a CPU host pretends to have, if not as many as recorded.
        directory: each child writes into a directory of its own below.
        target: the path that :meth:`.cross_target.CrossTarget.write_request` returned.

    Raises:
        NoJaxError: no usable jax was found.
        JaxcacheError: ``no-platform``.
    """

    def __init__(
        self,
        python: str,
        environment: Environment,
        *,
        devices: int | None,
        directory: str,
        target: str | None = None,
    ) -> None:
        count = environment.process_count
        task = {
            "platform": environment.platform,
            "device_count": devices or environment.device_count,
            "process_count": count,
            "coordinator": f"127.0.0.1:{free_port()}" if count > 1 else None,
            "target": target,
        }
        self._children: list[_Process] = []
        try:
            for number in range(count):
                self._children.append(
                    _Process(python, environment, {**task, "process_id": number}, directory)
                )
            for child in self._children:
                child.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the children."""
        return [c.pid for c in self._children]

    def compile(
        self, job: Job, cache_dir: str, blobs: tuple[bytes, bytes], is_wanted: IsWanted
    ) -> Answer:
        """Have one request compiled, if it is wanted by its key.

        Raises:
            DiedError, FailedError
        """
        child = self._children[job.environment.process_id]
        return child.compile(job.request, cache_dir, blobs, is_wanted)

    def kill(self) -> None:
        """End the children; whoever waits for their answer learns of it."""
        for child in self._children:
            child.kill()

    def stop(self) -> None:
        """End the children and let everything go."""
        self.kill()
        for child in self._children:
            child.stop()


class _Process(Child):
    """One child, and the directory that it writes into."""

    jax: HostJax

    def __init__(
        self, python: str, environment: Environment, task: Mapping[str, Any], directory: str
    ) -> None:
        self._python = python
        self._platform = environment.platform
        self._directory = Path(tempfile.mkdtemp(prefix=f"{task['process_id']}-", dir=directory))
        task = {**task, "directory": str(self._directory)}
        super().__init__(
            python,
            "compile_requests",
            *kept_flags(environment.argv_flags),
            deed="compiled it",
            env=dict(_environment(environment, task)),
            directory=directory,
        )

    def wait_until_ready(self) -> None:
        try:
            ready = self.answer(_START_SECONDS)
        except DiedError as error:
            ready = {"why": "no-jax", "detail": self.last_stderr_line or str(error)}
        detail = ready.get("detail") or ready.get("error")
        why = ready.get("why")
        if ready.get("caches"):
            self.jax = build(HostJax, ready)
        elif ready.get("event") == "ready":
            message = f"this jax does not cache for {self._platform}"
            raise JaxcacheError(message, code="no-platform")
        elif code := ready.get("code"):
            raise NoJaxError(str(detail), code=str(code), hint=ready.get("hint"))
        elif why == "no-jax":
            raise NoJaxError(f"jax does not start in {self._python}: {detail}", hint=NO_JAX_HINT)
        elif why == "unknown-jax":
            raise NoJaxError(
                f"cannot compile with the jax of {self._python} ({detail})",
                code="unknown-jax",
                hint="known are 0.5.3 to 0.12: upgrade jaxcache, or use another jax",
            )
        else:
            raise JaxcacheError(
                f"the recipe is for {self._platform}, which this machine does not have: {detail}",
                code="no-platform",
                hint="compile it where such a device is",
            )

    def compile(
        self, request: Request, cache_dir: str, blobs: tuple[bytes, bytes], is_wanted: IsWanted
    ) -> Answer:
        bytecode, options = blobs
        host = bytes.fromhex(self.jax.compile_options)
        if unknown := ", ".join(refused_options(options, host)):
            detail = f"it sets {unknown}, which this jaxlib does not set by itself"
            raise FailedError(detail, "refused-here")
        question = {
            "bytecode_bytes": len(bytecode),
            "options_bytes": len(options),
            "device_ids": request.device_ids,
            "device_shape": request.device_shape,
            "executable_device_ids": request.executable_device_ids,
            "cache_dir": cache_dir,
        }
        self.send(question, bytecode, options)
        reply = self.answer()
        answer = Answer(str(reply.get("key")), dict(reply.get("components") or {}), self.jax)
        if reply.get("event") == "key":
            self.send({"compile": is_key(answer.key) and is_wanted(answer.key)})
            reply = self.answer()
        event = reply.get("event")
        if event == "refused":
            raise FailedError(str(reply.get("detail")), "refused-here")
        if event == "skipped" and not is_key(answer.key):
            raise FailedError("the name of its entry is too long for a file", "refused-here")
        if event == "skipped":
            return answer
        if event != "done":
            raise FailedError(str(reply.get("detail") or reply.get("error")))
        return replace(
            answer,
            file=self._directory / os.path.basename(str(reply.get("file"))),
            seconds=reply.get("compile_seconds"),
            tuning=reply.get("tuning"),
        )


def _environment(environment: Environment, task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the caller's variables, less those that interfere, and what was recorded."""
    yield from ((k, v) for k, v in os.environ.items() if not k.startswith(_FOREIGN))
    yield "JAX_COMPILATION_CACHE_DIR", str(task["directory"])
    yield from LIFTED.items()
    yield "JAX_RAISE_PERSISTENT_CACHE_ERRORS", "true"
    yield "JAXCACHE_WORKER", json.dumps(task)
    # Several workers share one device, and execute nothing.
    yield "XLA_PYTHON_CLIENT_PREALLOCATE", "false"
    if task["target"]:
        yield from WITHOUT_HARDWARE.items()
    if environment.process_count > 1 and "JAX_CPU_COLLECTIVES_IMPLEMENTATION" not in os.environ:
        yield "JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo"
    yield "XLA_FLAGS", " ".join(kept_flags(environment.xla_flags))
    yield "LIBTPU_INIT_ARGS", " ".join(kept_flags(environment.libtpu_init_args))
    for name, value in environment.settings.items():
        yield name.upper(), str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(slots=True)
class Worker:
    """Does one job at a time, with children that it replaces.

    Args:
        make: starts children for a job.
        end: lets them go.
        is_stopped: asked when children die: whether they were meant to.
    """

    make: Callable[[Job], Processes]
    end: Callable[[Processes], None] = Processes.stop
    is_stopped: Callable[[], bool] = field(default=lambda: False)
    kind: tuple[object, ...] | None = None
    """The kind of the running children; see :func:`launch_kind`."""
    _processes: Processes | None = None

    def attempt(
        self, job: Job, blobs: tuple[bytes, bytes], used_at: str, is_wanted: IsWanted
    ) -> Answer | CompileResult | None:
        """Do one job, at the second try with fresh children.

        Args:
            is_wanted: whether the request is to be compiled, given its key.

        Returns:
            None where the children were stopped.
        """
        failure: CompileResult | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answer = self._find_processes(job).compile(job, used_at, blobs, is_wanted)
                return replace(answer, attempts=attempt)
            except JaxcacheError as error:
                return failed(job.request, "not-started", error.message, attempt)
            except (DiedError, FailedError) as error:
                reason = error.reason if isinstance(error, FailedError) else "worker-died"
                failure = failed(job.request, reason, str(error), attempt)
                if reason == "refused-here":
                    return failure
                self.clear()
                if self.is_stopped():
                    return None
        return failure

    def _find_processes(self, job: Job) -> Processes:
        kind = launch_kind(job.environment)
        if self._processes is None or kind != self.kind:
            self.clear()
            self._processes = self.make(job)
            self.kind = kind
        return self._processes

    def clear(self) -> None:
        """Let the children go."""
        if self._processes is not None:
            self.end(self._processes)
        self._processes = self.kind = None
