"""A worker of ``compile``: child processes that compile one request at a time.

A program that was recorded in several processes takes as many children; they are replaced when one
dies, or when a job needs another platform, other flags or another number of devices.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxcache.cache.allow_lists import kept_flags, refused_options
from jaxcache.cache.recipe.model import Environment, Request
from jaxcache.cache.untrusted_json import build
from jaxcache.errors import JaxcacheError, NoJaxError
from jaxcache.units import no_jax_hint
from jaxcache.warm.child.child import LIFTED, Child, DiedError, free_port
from jaxcache.warm.compiling.plan import CompileResult, Job, failed
from jaxcache.warm.crosshost.cross_target import WITHOUT_HARDWARE

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
            aside=True,
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
            raise NoJaxError(f"jax does not start in {self._python}: {detail}", hint=no_jax_hint())
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
            self.send({"compile": is_wanted(answer.key)})
            reply = self.answer()
        event = reply.get("event")
        if event == "refused":
            raise FailedError(str(reply.get("detail")), "refused-here")
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
