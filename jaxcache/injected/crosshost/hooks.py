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
"""

import threading
from contextlib import contextmanager
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
