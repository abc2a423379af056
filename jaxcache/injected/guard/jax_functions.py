"""JAX's own functions in front of which a guard stands. The private names are here alone.

Tried on JAX 0.4.38, 0.5.3, 0.6.2, 0.8.3, 0.10.2 and 0.12.0.1. JAX looks each of these module
attributes up at every call, and calls them only after its C++ dispatch has missed, so that a warm
call never meets them:

* ``compiler.backend_compile_and_load(backend, module, …)`` (``backend_compile`` below 0.6.2): XLA
  compiles next.
* ``compiler.compile_or_get_cached(backend, computation, …)``: JAX looks the key up next.
* ``pjit._trace_for_jit`` (``_infer_params_impl`` to 0.8.3): JAX traces next.

``pjit._infer_params_cached.cache_keys()`` holds what was traced before, so that a guard that is
put up after the warm-up has something to compare with.

An exception out of one of these makes JAX's C++ fall back to Python for that signature for as long
as its entry lives: 3.3 µs a warm call become 72 (measured on all versions above). A second C++
wrapper of the same function shares the entries, and its ``_clear_cache()`` drops the fallback
without a compile. Below 0.6 the exception also stays in JAX's compile cache as an entry without a
result, so that every later call compiles: there nothing is raised.
"""

import contextlib
import functools
import inspect
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ...core.seams import UnknownJaxError

TRIED = "0.4.38 to 0.12"


class JaxFunctions:
    """The parts of one imported jax that guards use."""

    def __init__(self, jax: Any) -> None:
        try:
            from jax._src import api_util, compiler, config, core, distributed, pjit, traceback_util

            tracer = "_trace_for_jit" if hasattr(pjit, "_trace_for_jit") else "_infer_params_impl"
            is_new = hasattr(compiler, "backend_compile_and_load")
            compile_name = "backend_compile_and_load" if is_new else "backend_compile"
            self._owners = {
                "trace": (pjit, tracer),
                "load": (compiler, "compile_or_get_cached"),
                "compile": (compiler, compile_name),
            }
            names = [*inspect.signature(getattr(pjit, tracer)).parameters]
            self._traced_arguments = tuple((n, names.index(n)) for n in ("args", "kwargs"))
            self._infer_params = pjit._infer_params_cached
            self._dispatch = pjit._cpp_pjit
            self._jaxpr_functions = pjit._get_jaxpr_as_fun
            self._abstractify = getattr(core, "shaped_abstractify", None) or getattr(
                api_util, "shaped_abstractify", None
            )
            self._abstract_value = core.AbstractValue
            self._config = config
            self._distributed = distributed.global_state
            for owner, name in self._owners.values():
                getattr(owner, name)
        except (ImportError, AttributeError, ValueError) as error:
            raise UnknownJaxError(
                f"cannot guard jax {jax.__version__} ({error}); known are {TRIED}: "
                "upgrade jaxcache, or use an older jax"
            ) from error
        version = tuple(int(n) for n in jax.__version__.split(".")[:2] if n.isdigit())
        #: Below 0.6 an exception would make every later call compile.
        self.can_raise = version >= (0, 6)
        self.version = str(jax.__version__)
        self.directory = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
        self._tree = jax.tree_util
        self._local = threading.local()
        self._refused: deque[list[tuple[Any, Any]]] = deque()
        here = os.path.dirname(os.path.abspath(__file__))
        for name in os.listdir(here):  # JAX leaves our frames out of tracebacks
            if name.endswith(".py"):
                traceback_util.register_exclusion(os.path.join(here, name))

    def install(
        self, check: Callable[[str, Any, Any], None], record: Callable[[Any], None]
    ) -> None:
        """Stand in front of JAX's steps, for the rest of the process.

        Args:
            check: called with a step, its module (None while tracing), and the traced call
                ``(function, JAX's info of it, arguments, keyword arguments)`` (None after it); what
                it raises reaches the user.
            record: called with a module that JAX has compiled or loaded.
        """

        def trace(original: Any, *args: Any, **kwargs: Any) -> Any:
            depth = getattr(self._local, "depth", 0)
            if not depth:  # an inner trace is part of the outer one
                values = [
                    kwargs[n] if n in kwargs else args[at] for n, at in self._traced_arguments
                ]
                check("trace", None, (args[0], args[1], *values))
            self._local.depth = depth + 1
            try:
                return original(*args, **kwargs)
            finally:
                self._local.depth = depth

        def load(original: Any, *args: Any, **kwargs: Any) -> Any:
            module = args[1] if len(args) > 1 else kwargs["computation"]
            check("load", module, None)
            executable = original(*args, **kwargs)
            record(module)
            return executable

        def compile_(original: Any, *args: Any, **kwargs: Any) -> Any:
            check("compile", args[1] if len(args) > 1 else kwargs["module"], None)
            return original(*args, **kwargs)

        for (owner, name), around in zip(
            self._owners.values(), (trace, load, compile_), strict=True
        ):
            original = getattr(owner, name)
            wrapped = functools.wraps(original)(functools.partial(around, original))
            setattr(owner, name, wrapped)

    # What was traced before -------------------------------------------------------------------

    def history(self) -> "Iterator[tuple[Any, Any, Any, Any, Any]]":
        """Yield what JAX has traced: weak function, JAX's info, signature, avals, configuration.

        In no order, at most 2,048; dead functions are not among them.
        """
        for reference, context, (info, signature, avals, *_), *_ in self._infer_params.cache_keys():
            yield reference, info, signature, avals, context

    def configuration(self) -> "tuple[Any, ...]":
        """The values of the settings that decide what a trace is, as JAX's caches hold them."""
        return tuple(self._config.trace_context())

    def count_processes(self) -> int:
        """The processes of ``jax.distributed`` that this one belongs to; 1 where it is alone."""
        return int(self._distributed.num_processes or 1)

    def setting_names(self, count: int) -> "list[str]":
        """The names of those settings, which JAX gives from 0.10.2 on; else empty texts."""
        try:
            names = [str(name) for name in self._config.trace_context_names()]
        except (AttributeError, NotImplementedError):
            names = []
        return names if len(names) == count else [""] * count

    # Values -----------------------------------------------------------------------------------

    def abstract(self, value: Any) -> Any:
        """The shape, dtype and weak type of a value, as JAX's own object.

        Raises:
            Exception: JAX knows no such value.
        """
        is_abstract = isinstance(value, self._abstract_value)
        return value if is_abstract or self._abstractify is None else self._abstractify(value)

    def leaves(self, value: Any) -> "tuple[list[tuple[str, Any]], Any]":
        """The leaves of a pytree, each with its path as text, and its structure."""
        leaves, structure = self._tree.tree_flatten_with_path(value)
        return [(self._tree.keystr(path), leaf) for path, leaf in leaves], structure

    def unflatten(self, treedef: Any, avals: "Iterator[Any]") -> Any:
        """A pytree with the next avals as its leaves."""
        leaves = [next(avals) for _ in range(treedef.num_leaves)]
        return self._tree.tree_unflatten(treedef, leaves)

    # The fast path ----------------------------------------------------------------------------

    def remember_refused(self, calls: "list[tuple[Any, Any]]", error: BaseException) -> None:
        """Note calls whose fast path an exception takes away; None is one of grad's halves.

        They are restored when the error is gone, because by then it has left JAX, and before that
        where a guard ends.
        """
        refused = [(f if f is None else weakref.ref(f), info) for f, info in calls]
        self._refused.append(refused)
        with contextlib.suppress(TypeError):  # an exception of Python's own
            weakref.finalize(error, self._restore, refused)

    def restore(self) -> None:
        """Give refused calls their C++ fast path back, once the exception has left JAX.

        Nothing is compiled. The other signatures of such a function dispatch once in Python.
        """
        while self._refused:
            self._restore(self._refused.pop())

    def _restore(self, refused: "list[tuple[Any, Any]]") -> None:
        for reference, info in refused:
            if reference is None:
                self._jaxpr_functions.cache_clear()
            elif (function := reference()) is not None:
                self._dispatch(function, info)._clear_cache()
