"""One child that compiles requests, or as many as the program that was recorded had processes."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jaxcache.cache.allowed import kept_flags, refused_options
from jaxcache.cache.recipe.model import Environment, Request
from jaxcache.errors import JaxcacheError, NoJaxError
from jaxcache.warm.child import Child, DiedError
from jaxcache.warm.crosshost.cross import WITHOUT_HARDWARE
from jaxcache.warm.process import NO_JAX_HINT, free_port
from jaxcache.warm.replay.plan import Job

_START_SECONDS = 300.0
#: Variables of the caller that would change what is compiled, or where it goes.
_FOREIGN = (
    "JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE", "JAX_ENABLE_PGLE", "JAX_PGLE",
    "JAX_REMOVE_CUSTOM", "JAX_SHARE_BINARY", "JAX_DUMP", "JAX_NUM_CPU_DEVICES", "JAX_MOCK",
    "JAX_LOG_COMPILES", "JAX_EXPLAIN", "JAX_COMPILER", "JAXCACHE_", "XLA_FLAGS", "LIBTPU_INIT_ARGS",
)  # fmt: skip

_ATTEMPTS = 2

Ask = Callable[[str, Mapping[str, str]], bool]


class Written(NamedTuple):
    """What a child has left in a file."""

    file: Path
    """An entry as JAX wrote it; for a target, an executable without header and codec."""
    seconds: float | None
    """What compiling took."""
    tuning: str | None
    """``tuned`` or ``untuned``, for a GPU that is not here."""


class FailedError(Exception):
    """JAX could not compile the module; the text is its own."""


class RefusedError(Exception):
    """The child would not compile the module; the text says why."""


def launch_kind(environment: Environment) -> tuple[object, ...]:
    """What two environments must share for one child to serve both."""
    e = environment
    return (
        e.platform, e.device_count, e.process_count, tuple(kept_flags(e.xla_flags)),
        tuple(kept_flags(e.libtpu_init_args)), tuple(kept_flags(e.argv_flags)),
        tuple(sorted(e.settings.items())),
    )  # fmt: skip


class Processes:
    """The children for one kind of environment: one, or one for each process of a program.

    Args:
        python: the interpreter that has jax.
        environment: what the children are to be like.
        devices: how many devices a CPU host is to pretend to have, where not as recorded.
        folder: each child writes into a folder of its own below.
        target: a file that says for which other host to compile; see
            :meth:`jaxcache.warm.crosshost.cross.Cross.write_request`.

    Raises:
        NoJaxError: there is no usable jax.
        JaxcacheError: ``no-platform``.
    """

    def __init__(
        self,
        python: str,
        environment: Environment,
        *,
        devices: int | None,
        folder: str,
        target: str | None = None,
    ) -> None:
        count = environment.process_count
        coordinator = f"127.0.0.1:{free_port()}" if count > 1 else None
        self.folder = folder
        self._children: list[_Process] = []
        try:
            for number in range(count):
                self._children.append(
                    _Process(python, environment, number, coordinator, devices, folder, target)
                )
            for child in self._children:
                child.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        self.ready = self._children[0].ready

    @property
    def pids(self) -> list[int]:
        """Process ids of the children."""
        return [c.pid for c in self._children]

    def compile(
        self, request: Request, process: int, cache_dir: str, blobs: Sequence[bytes], ask: Ask
    ) -> "Written | None":
        """Have one request compiled, if ``ask`` says so of its key.

        Returns:
            What JAX wrote; None where it was not compiled.

        Raises:
            DiedError, FailedError, RefusedError
        """
        return self._children[process].compile(request, cache_dir, blobs, ask)

    def kill(self) -> None:
        """End the children; whoever waits for their answer learns of it."""
        for child in self._children:
            child.kill()

    def stop(self) -> None:
        """End the children and let everything go."""
        for child in self._children:
            child.kill()
        for child in self._children:
            child.stop()


class _Process(Child):
    """One child, and the folder that it writes into."""

    def __init__(
        self, python: str, environment: Environment, number: int, coordinator: str | None,
        devices: int | None, folder: str, target: str | None,
    ) -> None:  # fmt: skip
        self._python = python
        self._folder = Path(tempfile.mkdtemp(prefix=f"{number}-", dir=folder))
        self.ready: dict[str, Any] = {}
        self._task = {
            "platform": environment.platform,
            "device_count": devices or environment.device_count,
            "process_count": environment.process_count,
            "process_id": number,
            "coordinator": coordinator,
            "folder": str(self._folder),
            "target": target,
        }
        super().__init__(
            python,
            "compile_requests",
            *kept_flags(environment.argv_flags),
            deed="compiled it",
            env=_environment(environment, self._task),
            aside=True,
            folders=[str(self._folder), folder],
        )

    def wait_until_ready(self) -> None:
        try:
            self.ready = self.answer(_START_SECONDS)
        except DiedError as error:
            said = self.last_words or str(error)
            raise NoJaxError(
                f"jax does not start in {self._python}: {said}", hint=NO_JAX_HINT
            ) from error
        if self.ready.get("event") == "ready" and self.ready.get("caches"):
            return
        platform = self._task["platform"]
        if self.ready.get("event") == "ready":
            raise JaxcacheError(f"this jax does not cache for {platform}", code="no-platform")
        detail = self.ready.get("detail")
        if code := self.ready.get("code"):
            raise NoJaxError(str(detail), code=str(code), hint=self.ready.get("hint"))
        if self.ready.get("why") == "no-jax":
            raise NoJaxError(f"jax does not start in {self._python}: {detail}", hint=NO_JAX_HINT)
        if self.ready.get("why") == "unknown-jax":
            raise NoJaxError(
                f"cannot compile with the jax of {self._python} ({detail})", code="unknown-jax",
                hint="known are 0.5.3 to 0.12: upgrade jaxcache, or use another jax",
            )  # fmt: skip
        raise JaxcacheError(
            f"the recipe is for {platform}, and there is none here: {detail}",
            code="no-platform",
            hint="compile it where such a device is",
        )

    def compile(
        self, request: Request, cache_dir: str, blobs: Sequence[bytes], ask: Ask
    ) -> "Written | None":
        bytecode, options = blobs
        host = bytes.fromhex(self.ready.get("compile_options", ""))
        if unknown := ", ".join(refused_options(options, host)):
            raise RefusedError(f"it sets {unknown}, which this jaxlib does not set by itself")
        executable = request.executable_device_ids
        self.send(
            {
                "bytecode_bytes": len(bytecode),
                "options_bytes": len(options),
                "device_ids": list(request.device_ids),
                "device_shape": list(request.device_shape),
                "executable_device_ids": None if executable is None else list(executable),
                "cache_dir": cache_dir,
            },
            bytecode,
            options,
        )
        answer = self.answer()
        if answer.get("event") == "key":
            wanted = ask(str(answer.get("key")), dict(answer.get("components") or {}))
            self.send({"compile": wanted})
            answer = self.answer()
        event, detail = answer.get("event"), str(answer.get("detail"))
        if event == "refused":
            raise RefusedError(detail)
        if event == "failed":
            raise FailedError(detail)
        if event == "skipped":
            return None
        name = os.path.basename(str(answer.get("file")))
        seconds = answer.get("compile_seconds")
        took = None if seconds is None else float(seconds)
        return Written(self._folder / name, took, answer.get("tuning"))


def _environment(environment: Environment, task: Mapping[str, Any]) -> dict[str, str]:
    """The caller's environment, less what would interfere, and what was recorded."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    env |= {
        "JAX_COMPILATION_CACHE_DIR": str(task["folder"]),
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_RAISE_PERSISTENT_CACHE_ERRORS": "true",
        "JAXCACHE_WORKER": json.dumps(task),
        # Several workers share one device, and execute nothing.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    if task.get("target"):
        env |= WITHOUT_HARDWARE
    if environment.process_count > 1:
        env.setdefault("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo")
    if flags := kept_flags(environment.xla_flags):
        env["XLA_FLAGS"] = " ".join(flags)
    if flags := kept_flags(environment.libtpu_init_args):
        env["LIBTPU_INIT_ARGS"] = " ".join(flags)
    for name, value in environment.settings.items():
        env[name.upper()] = str(value).lower() if isinstance(value, bool) else str(value)
    return env


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
class Worker:
    """Children, who are replaced when they die or when a job needs others.

    Args:
        make: starts children for a job.
        end: lets them go.
        is_stopped: asked when children die: whether they were meant to.
    """

    make: Callable[[Job], Processes]
    end: Callable[[Processes], None] = Processes.stop
    is_stopped: Callable[[], bool] = field(default=lambda: False)
    kind: tuple[object, ...] | None = None
    """Of the children at hand; see :func:`~jaxcache.warm.replay.worker.launch_kind`."""
    _processes: Processes | None = None

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
                return self._do(self._find_processes(job), job, blobs, used_at, is_wanted, attempt)
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
        processes: Processes,
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

        written = processes.compile(job.request, job.environment.process_id, used_at, blobs, ask)
        file, seconds, tuning = written or (None, None, None)
        return Answer(
            **seen,
            ready=processes.ready,
            file=file,
            seconds=seconds,
            tuning=tuning,
            attempts=attempt,
        )

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
