"""Every private name of JAX that warming for a target touches, in one place.

Tried on JAX 0.11.2 and 0.12.0.1. All are attributes that JAX looks up at each call:

* ``jax._src.interpreters.pxla.lower_sharding_computation(jaxpr, …)``: one lowering, for ``jit``,
  ``pmap`` and what is built on them. Called once more with the same arguments, it lowers for the
  target, while the next three answer for the target.
* ``pxla._get_and_check_device_assignment(…) -> (backend, devices, count)``.
* ``jax._src.xla_bridge.get_backend(platform)`` and ``canonicalize_platform(platform)``.
* ``pxla.MeshComputation.compile(options)``: the program wants what was lowered.
* ``jax._src.compiler.compile_or_get_cached(backend, computation, devices, options, …)``: JAX has
  made the compile options; from here on the work is ours.
* ``jax._src.compilation_cache.is_cache_used``: the program itself runs without a cache.

:class:`PlatformQueryDetector` finds functions that ask, while they are traced, which hardware they
run on. The answer is this machine's, so the program that comes out is not the one that the target
would trace: under its own key it never hits. Such functions are found and named, not guessed at.
``jax.default_backend``, ``devices`` and the like all go through ``xla_bridge.get_backend``
(jax/_src/xla_bridge.py, 0.11.2 and 0.12). Other private names: ``core.subjaxprs`` and
``core.trace_state_clean``.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_stack
from typing import Any, NamedTuple

from ...core.seams import wrap
from .host import Target, TargetError, unknown_jax


class CompileArguments(NamedTuple):
    """The arguments of one compile for the target."""

    module: Any
    devices: Any
    """NumPy array of devices."""
    options: Any
    executable_devices: Any


class _Caught(BaseException):
    """Carries a request out of JAX; no handler of JAX or of the program is to see it."""

    def __init__(self, request: CompileArguments) -> None:
        super().__init__()
        self.request = request


class Hooks:
    """Puts an observer around lowering and compiling; see :class:`observer.CrossObserver`.

    Raises:
        TargetError: ``unknown-jax``.
    """

    def __init__(self, jax: Any, target: Target, observer: Any) -> None:
        self._target = target
        self._observer = observer
        self._local = threading.local()
        try:
            from jax._src import compilation_cache, compiler, xla_bridge
            from jax._src.interpreters import mlir, pxla

            for owner, name, around in (
                (pxla, "lower_sharding_computation", observer.around_lowering),
                (pxla.MeshComputation, "compile", observer.around_compile),
                (pxla, "_get_and_check_device_assignment", self._assign),
                (xla_bridge, "get_backend", self._backend),
                (xla_bridge, "canonicalize_platform", self._canonicalize),
                (compiler, "compile_or_get_cached", self._request),
                (compilation_cache, "is_cache_used", lambda *_: False),
                (mlir, "lower_jaxpr_to_module", self._lower_module),
            ):
                wrap(owner, name, around)
        except (ImportError, AttributeError) as error:
            raise unknown_jax(jax, error) from error

    @contextmanager
    def crossing(self) -> Any:
        """In this thread, JAX is on the target."""
        before = self.is_crossing
        self._local.crossing = True
        try:
            yield
        finally:
            self._local.crossing = before

    @property
    def is_crossing(self) -> bool:
        """Whether JAX is on the target, in this thread."""
        return getattr(self._local, "crossing", False)

    def request(self, computation: Any, args: Any = (), kwargs: Any = None) -> CompileArguments:
        """Return what JAX would compile of something that was lowered for the target."""
        try:
            with self.crossing():
                computation.compile(*args, **(kwargs or {}))
        except _Caught as caught:
            return caught.request
        raise TargetError(
            "unknown-jax", "jax did not compile the module that it lowered for the target"
        )

    # The answers ------------------------------------------------------------------------------

    def _assign(self, assign: Any, args: Any, kwargs: Any) -> Any:
        backend, devices, count = assign(*args, **kwargs)
        if not self.is_crossing:
            return backend, devices, count
        if devices is not None:
            devices = tuple(self._target.device(d) for d in devices)
        return self._target.client, devices, count

    def _backend(self, get: Any, args: Any, kwargs: Any) -> Any:
        platform = args[0] if args else kwargs.get("platform")
        if self.is_crossing and (platform is None or platform in self._target.platforms):
            return self._target.client
        self._observer.platform_queries.see(platform)
        return get(*args, **kwargs)

    def _canonicalize(self, canonicalize: Any, args: Any, kwargs: Any) -> Any:
        platform = args[0] if args else kwargs.get("platform")
        if self.is_crossing and platform in self._target.platforms:
            return self._target.lowering_platform
        return canonicalize(*args, **kwargs)

    def _request(self, compile_: Any, args: Any, kwargs: Any) -> Any:
        if not self.is_crossing:
            return compile_(*args, **kwargs)
        request = self._observer.asked(args, kwargs)
        names = ("computation", "devices", "compile_options", "executable_devices")
        raise _Caught(CompileArguments(*(request[name] for name in names)))

    def _lower_module(self, lower: Any, args: Any, kwargs: Any) -> Any:
        result = lower(*args, **kwargs)
        if self.is_crossing:
            self._observer.lowered(result.module, args, kwargs)
        return result


#: Parts of JAX that build programs; queries of other parts do not depend on what is traced.
_LIBRARIES = ("random", "nn", "numpy", "lax", "scipy", "pallas", "cudnn", "ops", "image")
_LIBRARY_FILES = tuple(
    os.path.join("_src", library + end) for library in _LIBRARIES for end in (os.sep, ".py")
)
#: Questions whose answer does not depend on the kind of hardware.
_HARMLESS = frozenset({"process_index", "process_count", "process_indices", "host_id"})
_PACKAGE = str(Path(__file__).absolute().parents[2])

#: File and first line of a function.
CodePlace = tuple[str, int]


class PlatformQueryDetector:
    """Remembers what asked: every function that was being traced at that moment.

    Args:
        same_platform: the target's platform is the one of this process; then what JAX itself
            asks gets the right answer.

    Raises:
        TargetError: ``unknown-jax``.
    """

    def __init__(self, jax: Any, *, same_platform: bool) -> None:
        try:
            from jax._src import core, xla_bridge

            for name in ("subjaxprs", "trace_state_clean"):
                getattr(core, name)
        except (ImportError, AttributeError) as error:
            raise unknown_jax(jax, error) from error
        self._core = core
        self._bridge = os.path.abspath(xla_bridge.__file__)
        self._jax = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
        self._same = same_platform
        self._local = threading.local()
        self._asked: dict[CodePlace, str] = {}
        self.outside: dict[str, None] = {}
        """``file:line`` where the program queried the platform while nothing was traced."""

    def suspended(self, work: Any) -> Any:
        """Do something in which questions do not count: lowering, which is done twice."""
        before = getattr(self._local, "suspended", False)
        self._local.suspended = True
        try:
            return work()
        finally:
            self._local.suspended = before

    def see(self, platform: Any) -> None:
        """Note a query for a backend by this name; None means the default backend."""
        if platform is not None or getattr(self._local, "suspended", False):
            return
        frames = list(self._frames())
        if not frames or frames[0][2] in _HARMLESS:
            return
        asker = next((f for f in frames if f[0] != self._bridge), None)
        user = next((f for f in frames if not self._is_jax(f[0])), None)
        if asker is None or user is None:
            return
        by_jax = self._is_jax(asker[0])
        if by_jax and (self._same or not self._is_library(asker[0])):
            return
        place = f"{user[0]}:{user[3]}"
        if self._core.trace_state_clean():
            if frames[0][2] == "default_backend" and not by_jax:
                self.outside[place] = None
            return
        for file, first_line, _, _ in frames:
            self._asked.setdefault((file, first_line), place)

    def find(self, jaxpr: Any) -> "str | None":
        """Return where it was asked, if a function of this program was being traced then."""
        if not self._asked:
            return None
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        info = getattr(inner, "debug_info", None)
        source = str(getattr(info, "func_src_info", None) or "").rpartition(" at ")[2]
        file, _, line = source.rpartition(":")
        if line.isdigit() and (place := self._asked.get((file, int(line)))):
            return place
        for part in self._core.subjaxprs(inner):
            if place := self.find(part):
                return place
        return None

    def _frames(self) -> "Iterator[tuple[str, int, str, int]]":
        """File, first line of the function, its name and the line, from the asker outwards."""
        for frame, line in walk_stack(sys._getframe(1)):
            code = frame.f_code
            if not code.co_filename.startswith((_PACKAGE, "<frozen")):
                yield code.co_filename, code.co_firstlineno, code.co_name, line

    def _is_jax(self, file: str) -> bool:
        return file.startswith((self._jax, "<")) or os.sep + "contextlib.py" in file

    def _is_library(self, file: str) -> bool:
        inside = file[len(self._jax) :]
        return inside.startswith((f"experimental{os.sep}", *_LIBRARY_FILES))
