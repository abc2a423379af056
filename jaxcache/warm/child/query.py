"""Ask a Python that has jax: for its settings, its entries, HLO as text, and to load entries.

What reads the answers is imported when they are there: the child starts before that.

:class:`SubprocessLoader` loads entries in a child: an entry that kills it is named.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from jaxcache.cache.files import EntryFile, scratch_directory
from jaxcache.core.configuration import JAX_DEFAULTS
from jaxcache.entry.codec import CodecError
from jaxcache.entry.decode import decode_payload, read_payload
from jaxcache.errors import JaxcacheError, NoJaxError
from jaxcache.model import Problem, ProblemKind, report_progress
from jaxcache.store.base import Store, StoreError
from jaxcache.units import NO_JAX_HINT
from jaxcache.warm.child.child import (
    LIFTED,
    Child,
    DiedError,
    choose_python,
    describe_no_jax,
    find_python,
    query_once,
    take_answers,
)

if TYPE_CHECKING:
    from jaxcache.cache.bundle.compat import Host
    from jaxcache.cache.doctor.inputs import PythonFacts


_SETTINGS_SECONDS = 120
_PROBE_SECONDS = 300
_PRINT_SECONDS = 600
#: The facts of a machine that a probe answers with.
_ANSWERED = (
    *("jax_version", "jaxlib_version", "device_kind", "platform_version"),
    *("device_count", "process_count", "topology", "settings", "defaults"),
)


def query_settings(python: str | None, environment: Mapping[str, str]) -> "PythonFacts":
    """Query a Python for its settings, as an environment makes them.

    Args:
        python: an interpreter; our own by default.
    """
    from jaxcache.cache.doctor.inputs import (
        Interpreter,
        PythonFacts,
        settings_of_environment,
        settings_of_jax,
        settings_of_live,
    )
    from jaxcache.cache.untrusted_json import FieldError, build

    try:
        python = find_python(python)
        answer = query_once(
            python,
            "describe.settings",
            *JAX_DEFAULTS,
            seconds=_SETTINGS_SECONDS,
            answers=3,
            env=environment,
        )
        flags = _flags(answer.get("compile_options"))
        try:
            interpreter = build(Interpreter, {**answer, "executable": python, "flags": flags})
            settings = settings_of_jax(answer["settings"], environment)
            settings += settings_of_live(answer["live"])
        except (FieldError, KeyError) as error:
            reason = f"its answer cannot be read: {error}"
            raise NoJaxError(describe_no_jax(python, reason)) from error
    except NoJaxError as error:
        settings = settings_of_environment(environment)
        failed = error.message if error.code == "jax-fails" else None
        return PythonFacts(None, settings, error.message, failed)
    ended = None if "compile_options" in answer else answer.get("ended")
    return PythonFacts(interpreter, settings, jax_error=ended)


def _flags(options: str | None) -> list[str] | None:
    if not options:
        return None
    from jaxcache.core.wire import Budget, WireError
    from jaxcache.entry.options import read_options

    try:
        flags = read_options(memoryview(bytes.fromhex(options)), None, Budget()).flags
    except (WireError, ValueError):
        return None
    return list(flags or ()) or None


@contextlib.contextmanager
def probing_host(
    python: str | None, *, required: bool = False, environment: Mapping[str, str] = os.environ
) -> "Iterator[Callable[[], Host | None]]":
    """Start a probe of the Python that is to use the cache, and yield what waits for its answer.

    The answer is None where no Python was named and ours has no jax.

    Raises:
        NoJaxError: of the answer, too.
    """
    if not has_jax(python) and not required:
        yield lambda: None
        return
    with probing(python, environment) as answer:
        yield answer


@contextlib.contextmanager
def probing(
    python: str | None, environment: Mapping[str, str], *, features: bool = False
) -> "Iterator[Callable[[], Host]]":
    """Let a Python compile a trivial program into a directory of its own, in parallel to our work.

    Args:
        python: an interpreter that has jax; our own by default.
        environment: of the child, as the program that is to use the cache will have it.
        features: also ask what the CPU can do, which takes a second compile.

    Returns:
        A function that waits for the entry and reads it. It raises NoJaxError if the Python has no
        jax, or its jax writes no entry.

    Raises:
        NoJaxError: no such Python.
    """
    python = find_python(python)
    with scratch_directory("probe") as directory:
        env = {
            **environment,
            "JAX_COMPILATION_CACHE_DIR": directory,
            **LIFTED,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        env.pop("JAX_COMPILATION_CACHE_MAX_SIZE", None)
        child = Child(
            python,
            "describe.probe",
            *(["features"] if features else []),
            deed="was asked",
            env=env,
            cwd=directory,
            directory=directory,
        )
        try:
            yield lambda: _read_host(child, python, directory)
        finally:
            child.stop()


def _read_host(child: Child, python: str, directory: str) -> "Host":
    from jaxcache.cache.bundle.compat import Host
    from jaxcache.cache.move.bundle_file import write_stream
    from jaxcache.cache.move.export_plan import plan_export
    from jaxcache.core.machine import Machine
    from jaxcache.store.local import LocalStore

    answer = take_answers(child, python, _PROBE_SECONDS)
    store = LocalStore(directory)
    exported = write_stream(store, plan_export(store, now_ns=0), level=1)
    exported.stream.close()
    items = exported.manifest.items
    if not items:
        raise NoJaxError(
            f"{python}: jax {answer.get('jax_version')} on {answer.get('platform')} wrote no entry",
            code="no-entry",
            hint="JAX up to 0.4.29 caches nothing on the CPU",
        )
    first = min(items, key=lambda item: item.created_ns)  # asking for features may write another
    origin = exported.manifest.origin_of(first)
    features = origin.cpu_features or answer.pop("cpu_features", None)
    machine = Machine(
        platform=None if origin.platform == "unknown" else origin.platform,
        cpu_features=features and tuple(sorted(features)),
        codec=first.codec,
        xla_flags=tuple(answer.get("xla_flags") or ()),
        **{name: answer.get(name) for name in _ANSWERED},
    )
    return Host(python, machine, origin, first.key)


def has_jax(python: str | None = None) -> bool:
    """Whether a Python was named, or any that would be chosen has jax; without importing it."""
    return python is not None or choose_python() is not None


def hlo_text(module: bytes, *, python: str | None = None) -> str:
    """Print an ``HloModuleProto`` as HLO text, in a child process.

    Args:
        python: an interpreter that has jaxlib; our own by default.

    Raises:
        NoJaxError: it has none, or is not a Python.
        JaxcacheError: ``hlo-failed`` where jaxlib refuses the module or dies over it.
    """
    python = find_python(python)
    child = Child(python, "describe.hlo_text", str(len(module)), deed="prints the module")
    try:
        child.send_bytes(module)
        answer = child.answer(_PRINT_SECONDS)
    except DiedError as error:
        answer = {"error": f"{error}: {child.last_stderr_line}"}
    finally:
        child.stop()
    if "no_jaxlib" in answer:
        raise NoJaxError(
            f"printing HLO needs jaxlib, which {python} does not have", hint=NO_JAX_HINT
        )
    if "text" not in answer:
        raise JaxcacheError(
            f"jaxlib could not print the module: {answer.get('error')}",
            code="hlo-failed",
            hint="the jaxlib of the version that wrote the entry reads it best",
        )
    return str(answer["text"])


_START_SECONDS = 300.0
#: Loading takes milliseconds; a child that takes this long hangs.
_LOAD_SECONDS = 120.0
_MAX_PAYLOAD_BYTES = 1 << 30
_ONE_DEVICE = ((0,),)
_ABSENT = "for devices that are not here, as of several processes"
_FEWEST_DEVICES = 8
_MOST_DEVICES = 512


class SubprocessLoader:
    """Deserializes entries with the jax of one Python, for ``verify --level load``.

    Args:
        python: an interpreter that has jax; our own by default.
    """

    def __init__(self, python: str | None = None) -> None:
        self._python = find_python(python)

    def __call__(self, store: Store, files: Sequence[EntryFile]) -> Iterator[Problem]:
        """Yield a problem per entry that does not load, and per entry that cannot be judged here.

        Raises:
            NoJaxError: no usable jax was found.
        """
        child: _Loading | None = None
        try:
            for done, file in enumerate(files):
                report_progress(done, len(files))
                payload = _read_payload(store, file)
                if payload is None:
                    continue
                contents = decode_payload(payload, check=False)
                assignment = contents.compile_options.device_assignment or _ONE_DEVICE
                devices = max((i for row in assignment for i in row), default=0) + 1
                if devices > _MOST_DEVICES:
                    yield _problem(file, "not-loadable-here", _ABSENT)
                    continue
                if child is None or child.devices < devices:
                    if child:
                        child.stop()
                    child = _Loading(self._python, devices)
                platform = contents.device.platform
                if platform not in ("unknown", child.platform):
                    detail = f"for a {platform}, and this jax has a {child.platform}"
                    yield _problem(file, "not-loadable-here", detail)
                    continue
                sample = child.sample
                try:
                    problem = child.load(payload, assignment)
                except DiedError as error:
                    problem = ("load-crashed", str(error))
                    child.stop()
                    child = None
                if problem and problem[1] != _ABSENT and (why := _excuse(payload, sample)):
                    problem = ("not-loadable-here", why)
                if problem:
                    yield _problem(file, *problem)
        finally:
            if child:
                child.stop()


class _Loading(Child):
    """One process that deserializes until it dies."""

    def __init__(self, python: str, devices: int) -> None:
        self.devices = _FEWEST_DEVICES
        while self.devices < min(devices, _MOST_DEVICES):
            self.devices *= 2
        super().__init__(python, "describe.load_entries", str(self.devices), deed="loaded it")
        try:
            ready = self.answer(_START_SECONDS)
        except DiedError as error:
            ready = {"error": self.last_stderr_line or str(error)}
        if problem := ready.get("error"):
            self.stop()
            raise NoJaxError(describe_no_jax(python, problem), hint=NO_JAX_HINT)
        if ready.get("event") == "unknown-jax":
            self.stop()
            raise NoJaxError(
                f"cannot load entries with the jax of {python} ({ready.get('detail')})",
                code="unknown-jax",
                hint="known are 0.4.30 to 0.12: upgrade jaxcache, or use another jax",
            )
        self.sample = bytes.fromhex(str(ready.get("sample") or ""))
        platform = str(ready.get("platform"))
        self.platform = "gpu" if platform in ("cuda", "rocm") else platform

    def load(
        self, payload: bytes, assignment: Sequence[Sequence[int]]
    ) -> tuple[ProblemKind, str] | None:
        """Have one payload deserialized; what went wrong, or None.

        Raises:
            DiedError: the child died of it, or hangs.
        """
        self.send({"size_bytes": len(payload), "device_assignment": assignment}, payload)
        event = self.answer(_LOAD_SECONDS)
        if event.get("event") == "absent":
            return "not-loadable-here", _ABSENT
        failed = event.get("event") == "failed"
        return ("load-failed", str(event.get("detail"))) if failed else None


def _excuse(payload: bytes, sample: bytes) -> str | None:
    """Return why a sound entry may fail to load here; None where only damage explains it.

    Args:
        sample: a program as the jax that failed writes it.
    """
    entry = decode_payload(payload, parts="origin")
    here = decode_payload(sample, parts="origin")
    if None not in (entry.like_jaxlib, here.like_jaxlib) and (
        (entry.like_jaxlib, entry.format) != (here.like_jaxlib, here.format)
    ):
        return f"written by another jaxlib, like {entry.like_jaxlib}"
    needed = {f for f in entry.device.cpu_features or () if f.startswith("+")}
    lacking = needed.difference(here.device.cpu_features or needed)
    return f"for a CPU with {', '.join(sorted(lacking)[:5])}" if lacking else None


def _read_payload(store: Store, file: EntryFile) -> bytes | None:
    """The payload; None where it is gone, damaged since it was checked, or too large to hold."""
    try:
        with store.open(file.info.name) as opened:
            return bytes(read_payload(opened, file.info.size_bytes, limit=_MAX_PAYLOAD_BYTES))
    except (CodecError, StoreError, OSError):
        return None


def _problem(file: EntryFile, kind: ProblemKind, detail: str) -> Problem:
    return Problem(file.info.name, kind, detail, file.key_text)
