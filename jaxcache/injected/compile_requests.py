"""Compile the requests of a recipe, through JAX's own path into a cache directory.

``JAXCACHE_WORKER`` holds a JSON object with the platform, the number of devices, and, in a program
of several processes, the number of this one. A request is a line of JSON, then the module's bytes,
then those of the compile options. It is answered by ``key`` with the key that JAX makes here; the
next line of requests decides whether to go on; then comes ``done``, ``skipped`` or ``failed``. The
parent expects this process to die of some modules.

JAX writes into a directory of this process's own: it writes in place, and a process that is killed
must leave nothing in the cache. The parent moves what is whole.

A private name of JAX that is missing ends the process before its first request.
"""

import json
import os
import sys
from typing import Any

from ..core.seams import compiling, describe_error, describe_versions, listening
from ..core.seams.targets import CompileArguments, Target, UntunedError

#: What XLA calls through a raw pointer while it compiles.
_PARTITIONING = "CustomSPMDPartitioning"


class _Skip(BaseException):
    """The parent has seen the key and wants no compile; JAX catches ``Exception`` alone."""


class RefusedError(Exception):
    """This module must not be compiled here."""


class Compiler:
    """One process with the devices of the recorded one."""

    def __init__(self, task: "dict[str, Any]") -> None:
        import jax

        self._directory = task["directory"]
        if task["process_count"] > 1:
            jax.distributed.initialize(
                coordinator_address=task["coordinator"],
                num_processes=task["process_count"],
                process_id=task["process_id"],
            )
        self._steps = compiling.CompileSteps(jax)
        self._key: str | None = None
        self._components: dict[str, str] = {}
        self._seconds: float | None = None
        self.backend = self._steps.open(task["platform"], self._around_read, self._around_write)
        self.devices = {int(d.id): d for d in self.backend.devices()}
        listening.hear_components(self._take_component)

    def describe(self) -> "dict[str, Any]":
        """Describe this host, to be compared with the recorded one."""
        return {
            **describe_versions(),
            **self._describe_devices(),
            "jaxlib_digest": listening.jaxlib_digest(),
            "compile_options": compiling.compile_options().hex(),
        }

    def _describe_devices(self) -> "dict[str, Any]":
        described = listening.describe_devices(self.backend, self.backend.local_devices()[0])
        return {**described, "caches": self._steps.caches_for(self.backend)}

    def compile(self, request: "dict[str, Any]", bytecode: bytes, options: bytes, ask: Any) -> Any:
        """Compile one request if ``ask``, called with the key and its parts, returns True.

        Returns:
            The file that JAX wrote, the seconds that compiling took and how it was tuned; None
            where it was not to be compiled.
        """
        self._key = None
        self._components = {}
        self._seconds = None
        self._ask = ask
        arguments = self._arguments(request, options)
        with self._steps.context():
            module = arguments["computation"] = self._parse(bytecode)
            self._check(module)
            try:
                self._steps.compile(arguments)
            except _Skip:
                return None
        if self._key is None:
            raise RefusedError("JAX made no key for it")
        return self._written(), self._seconds, None

    def _parse(self, bytecode: bytes) -> Any:
        if not bytecode.startswith(b"ML\xefR"):
            raise RefusedError("this is not MLIR bytecode")
        return self._steps.parse(bytecode)

    def _arguments(self, request: "dict[str, Any]", options: bytes) -> "dict[str, Any]":
        devices = [self._device(i) for i in request["device_ids"]]
        arguments = {
            "backend": self.backend,
            "devices": self._steps.array(devices).reshape(request["device_shape"]),
            "compile_options": self._steps.options(options, request["cache_dir"]),
            "host_callbacks": [],
        }
        if self._steps.has_executable_devices:
            ids = request["executable_device_ids"]
            chosen = devices if ids is None else [self._device(i) for i in ids]
            arguments["executable_devices"] = self._steps.device_list(chosen)
        return arguments

    def _device(self, number: int) -> Any:
        if number not in self.devices:
            raise RefusedError(f"no device {number} here, only {len(self.devices)} devices")
        return self.devices[number]

    def _check(self, module: Any) -> None:
        """Refuse what holds a pointer into another process."""
        problems = self._steps.custom_calls(module)
        if _PARTITIONING in problems:
            raise RefusedError("it calls a partitioner of the process that recorded it")
        version = tuple(int(n) for n in self._steps.version.split(".")[:2] if n.isdigit())
        if version < (0, 12) and any("python" in t and "callback" in t for t in problems):
            raise RefusedError("it calls back into the process that recorded it")

    def _take_component(self, name: str, hasher: Any) -> None:
        self._components[name] = listening.hash_component(hasher)

    def _around_read(self, read: Any, args: Any, kwargs: Any) -> Any:
        self._key = str(args[0])
        if not self._ask(self._key, self._components):
            raise _Skip
        return read(*args, **kwargs)

    def _around_write(self, write: Any, args: Any, kwargs: Any) -> Any:
        self._seconds = float(args[1])
        return write(*args, **kwargs)

    def _written(self) -> str:
        for name in (f"{self._key}-cache", str(self._key)):
            if os.path.isfile(os.path.join(self._directory, name)):
                return name
        raise OSError("JAX compiled it and wrote nothing")


class CrossCompiler(Compiler):
    """Compiles for a host that is not here; see :mod:`~core.seams.targets`.

    What it leaves is the bare executable: the parent makes the entry, with the target's codec.
    """

    def __init__(self, task: "dict[str, Any]") -> None:
        import jax

        with open(task["target"], encoding="utf-8") as file:
            request = json.load(file)
        self._steps = compiling.CompileSteps(jax)
        self._directory = task["directory"]
        self._target = Target(jax, request)
        jax.devices()  # with the CPU's own client, what its executables call is registered
        self._target.open()
        self.backend = self._target.client
        self.devices = {int(d.id): d for d in self._target.devices}

    def _describe_devices(self) -> "dict[str, Any]":
        return {**self._target.describe(), "caches": True}

    def compile(self, request: "dict[str, Any]", bytecode: bytes, options: bytes, ask: Any) -> Any:
        arguments = self._arguments(request, options)
        with self._steps.context():
            module = self._parse(bytecode)
            self._check(module)
            names = ("devices", "compile_options", "executable_devices")
            compile_arguments = CompileArguments(module, *(arguments[name] for name in names))
            key, components = self._target.key(
                module, compile_arguments.devices, compile_arguments.options
            )
            if not ask(key, components):
                return None
            try:
                compiled = self._target.compile(compile_arguments)
            except UntunedError as error:
                raise RefusedError(f"{error.reason}: {error}") from error
        name = f"{key}-cache"
        with open(os.path.join(self._directory, name), "wb") as file:
            file.write(compiled.payload)
        return name, compiled.seconds, compiled.tuning


def prepare(task: "dict[str, Any]") -> None:
    """Set what must be set before jax is imported."""
    flags = os.environ.get("XLA_FLAGS", "")
    if task["platform"] == "cpu" or task.get("target"):
        count = f"--xla_force_host_platform_device_count={task['device_count']}"
        os.environ["XLA_FLAGS"] = f"{flags} {count}".strip()
        os.environ["JAX_PLATFORMS"] = "cpu"


def main(parent: Any) -> None:
    """Answer requests until they end."""
    task = json.loads(os.environ.pop("JAXCACHE_WORKER"))
    prepare(task)

    def ask(key: str, components: "dict[str, str]") -> bool:
        parent.answer(event="key", key=key, components=components)
        line = parent.requests.readline()
        return bool(line) and bool(json.loads(line)["compile"])

    try:
        compiler = CrossCompiler(task) if task.get("target") else Compiler(task)
        described = compiler.describe()
    except BaseException as error:
        parent.answer(
            event="cannot-start",
            detail=describe_error(error),
            why=_why(error),
            code=getattr(error, "code", None),
            hint=getattr(error, "hint", None),
        )
        return
    parent.answer(event="ready", **described)
    _serve(compiler, parent.requests, parent.answer, ask)
    # Other processes of a program may be gone already, and jax would wait for them.
    parent.leave()


def _serve(compiler: Compiler, requests: Any, answer: Any, ask: Any) -> None:
    """Answer requests until they end, or the parent has ended."""
    while line := requests.readline():
        request = json.loads(line)
        bytecode = requests.read(request["bytecode_bytes"])
        options = requests.read(request["options_bytes"])
        try:
            done = compiler.compile(request, bytecode, options, ask)
        except RefusedError as error:
            answer(event="refused", detail=str(error))
        except Exception as error:
            answer(event="failed", detail=describe_error(error))
        else:
            if done is None:
                answer(event="skipped")
            else:
                answer(event="done", file=done[0], compile_seconds=done[1], tuning=done[2])


def _why(error: BaseException) -> str:
    """Name what is missing: jax, one of its private names, or the platform."""
    if "jax" not in sys.modules:
        return "no-jax"
    return "unknown-jax" if isinstance(error, (ImportError, AttributeError)) else "no-platform"
