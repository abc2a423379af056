"""Why JAX traces a function again, copies of a source line in a trace, what a guard stands before.

The first is JAX's own comparison of two trace keys.

JAX prints it where ``jax_explain_cache_misses`` is set. It compares with every earlier
key, 1.5 to 12 ms a trace; here the newest few suffice, for a limited time per process.

Private names of JAX, tried on 0.10.2, 0.11.2 and 0.12.0.1; before 0.9.2 nothing is compared:
``partial_eval.trace_to_jaxpr(function, arguments, debug_info, …)``, a cache, and
``partial_eval.diff_tracing_cache_keys(new, old)``: severity, number of differences, text.

The second are what a Python loop over equal layers leaves in a program.
"""

import contextlib
import inspect
import itertools
import os
import re
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import hide_frames, known_to, wrap
from .listening import place_of

_COMPARED_KEYS = 8
_MAX_SECONDS = 0.25
_MAX_CHARACTERS = 300
#: As JAX words it.
_NEW_FUNCTION = (
    "never seen function, but seen another function defined on the same line; maybe the function "
    "is being re-defined repeatedly, preventing caching?"
)
_UNAVAILABLE = "explanation unavailable"


class Retraces:
    """The reason of the last trace of each thread, where JAX had traced the function before.

    Args:
        is_observed: whether reasons are wanted.
    """

    def __init__(self, is_observed: Callable[[], bool]) -> None:
        self._is_observed = is_observed
        self._local = threading.local()
        self._places: set[str] = set()
        self._keys: Any = weakref.WeakKeyDictionary()
        self._seconds = 0.0

    def listen(self) -> None:
        """Stand in front of JAX's cache of traces."""
        from jax._src import config, source_info_util
        from jax._src.interpreters import partial_eval

        self._is_of_user = source_info_util.is_user_filename
        if hasattr(partial_eval, "diff_tracing_cache_keys"):
            self._config = config
            self._diff = partial_eval.diff_tracing_cache_keys
            _stand_before(partial_eval, "trace_to_jaxpr", self._around_trace)

    def take(self, lowering: "dict[str, Any]") -> "str | None":
        """Return why the function that was lowered had been traced again, once."""
        place, reason = getattr(self._local, "last", ({}, None))
        self._local.last = ({}, None)
        return reason if place.items() <= lowering.items() else None

    def _around_trace(self, trace: Any, args: Any, kwargs: Any) -> Any:
        result = trace(*args, **kwargs)
        if self._is_observed() and len(args) > 2:
            self._explain(args[0], args[2], args)
        return result

    def _explain(self, function: Any, debug: Any, args: Any) -> None:
        """Keep the reason of the trace that has ended; a failure here never reaches the program."""
        if self._seconds > _MAX_SECONDS or not self._is_of_user(debug.func_filename or ""):
            return
        started = time.monotonic()
        place = str(debug.func_src_info)
        try:
            reason = self._compare(function, debug, args)
        except Exception:  # a ``repr`` of the user's, or a key that cannot be compared
            reason = None
        self._places.add(place)
        self._local.last = (place_of(place), reason)
        self._seconds += time.monotonic() - started

    def _compare(self, function: Any, debug: Any, args: Any) -> "str | None":
        keys = self._keys.setdefault(function, deque(maxlen=_COMPARED_KEYS))
        key: Any = (self._config.trace_context(), args[1:], {})
        if debug.traced_for != "jit" or key in keys:
            return None
        reason = self._nearest(key, keys) if keys else self._new_function(function, debug)
        keys.append(key)
        return reason

    def _new_function(self, function: Any, debug: Any) -> "str | None":
        """Return JAX's words where the source of this function was traced as another object.

        Transformations make functions of their own with the place of the user's.
        """
        code = getattr(function, "__code__", None)
        is_own = code is not None and code.co_filename == debug.func_filename
        return _NEW_FUNCTION if is_own and str(debug.func_src_info) in self._places else None

    def _nearest(self, key: Any, earlier: "Iterable[Any]") -> "str | None":
        """Return the difference from the nearest earlier key, the newest first."""
        deadline = time.monotonic() + _MAX_SECONDS
        differences: list[tuple[int, int, int, str]] = []
        for old in reversed(list(earlier)):
            severity, count, text = self._diff(key, old)
            if _UNAVAILABLE not in text:
                # JAX looks at the most severe difference first.
                differences.append((-severity, count, len(differences), " ".join(text.split())))
            if time.monotonic() > deadline:
                break
        return min(differences)[-1][:_MAX_CHARACTERS] if differences else None


def _stand_before(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Wrap one of JAX's caches, which keeps its methods."""
    cache = getattr(owner, name)
    wrap(owner, name, around)
    for method in dir(cache):
        if not method.startswith("_"):
            setattr(getattr(owner, name), method, getattr(cache, method))


_FEWEST_COPIES = 8
#: A count that fewer of the equations have is not the program's number of layers.
_LEAST_SHARE = 0.1
_MOST_EQUATIONS = 200_000
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


def find_copies(jaxpr: Any) -> "dict[str, Any] | None":
    """Return how often the equations of a program repeat; None where they do not.

    Equations with the same traceback come from one instruction of Python that ran several times.
    """
    every = (equation for inner in each_jaxpr(jaxpr) for equation in inner.eqns)
    equations = list(itertools.islice(every, _MOST_EQUATIONS))
    locations = Counter(e.source_info.traceback for e in equations if e.source_info.traceback)
    weights: Counter[int] = Counter()
    for count in locations.values():
        weights[count] += count
    # Differentiating makes several operations of one, so that some counts are multiples.
    least_weight = _LEAST_SHARE * len(equations)
    counts = [n for n, weight in weights.items() if n >= _FEWEST_COPIES and weight >= least_weight]
    if not counts:
        return None
    count = min(counts)
    covered = sum(weight for n, weight in weights.items() if n >= count)
    copied = (e.source_info for e in equations if locations[e.source_info.traceback] == count)
    places = [_user_line(info) for info in {info.traceback: info for info in copied}.values()]
    # A line of the user's own is more helpful than one of a library that it calls.
    own = (place for place in places if place[0] and not _INSTALLED.search(place[0]))
    file, line = next(own, places[0])
    return {"count": count, "share": covered / len(equations), "file": file, "line": line}


def each_jaxpr(outermost: Any) -> "Iterator[Any]":
    """Yield a jaxpr and those inside it, each once."""
    waiting = [getattr(outermost, "jaxpr", outermost)]
    seen: set[int] = set()
    while waiting:
        jaxpr = waiting.pop()
        if id(jaxpr) in seen:
            continue
        seen.add(id(jaxpr))
        yield jaxpr
        for equation in jaxpr.eqns:
            for value in equation.params.values():
                for inner in value if isinstance(value, (tuple, list)) else (value,):
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        waiting.append(inner)


def _user_line(source_info: Any) -> "tuple[str | None, int | None]":
    """Return file and line of the user's innermost frame (JAX 0.4.38 to 0.12.0.1)."""
    from jax._src import source_info_util

    try:
        frame = source_info_util.user_frame(source_info.traceback)
    except AttributeError:  # to 0.7
        frame = source_info_util.user_frame(source_info)
    return (frame.file_name, frame.start_line) if frame else (None, None)


# What a guard stands before -----------------------------------------------------------------------

_TRIED = "0.4.38 to 0.12"


class JaxFunctions:
    """The parts of one imported jax that guards use.

    Tried on JAX 0.4.38, 0.5.3, 0.6.2, 0.8.3, 0.10.2 and 0.12.0.1. JAX looks each of these module
    attributes up at every call, and calls them only after its C++ dispatch has missed, so that a
    warm call never meets them:

    * ``compiler.backend_compile_and_load(backend, module, …)`` (``backend_compile`` below 0.6.2):
      XLA compiles next.
    * ``compiler.compile_or_get_cached(backend, computation, …)``: JAX looks the key up next.
    * ``pjit._trace_for_jit`` (``_infer_params_impl`` to 0.8.3): JAX traces next.

    ``pjit._infer_params_cached.cache_keys()`` holds what was traced before, so that a guard that is
    put up after the warm-up has something to compare with.

    An exception out of one of these makes JAX's C++ fall back to Python for that signature for as
    long as its entry lives: 3.3 µs a warm call become 72 (measured on all versions above). A second
    C++ wrapper of the same function shares the entries, and its ``_clear_cache()`` drops the
    fallback without a compile. Below 0.6 the exception also stays in JAX's compile cache as an
    entry without a result, so that every later call compiles: there nothing is raised.

    Raises:
        UnknownJaxError: one of the names is gone.
    """

    def __init__(self, jax: Any) -> None:
        with known_to("guard", jax, _TRIED):
            from jax._src import api_util, compiler, config, core, distributed, pjit

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
        version = tuple(int(n) for n in jax.__version__.split(".")[:2] if n.isdigit())
        #: Below 0.6 an exception would make every later call compile.
        self.can_raise = version >= (0, 6)
        self.version = str(jax.__version__)
        self.directory = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
        self._tree = jax.tree_util
        self._local = threading.local()
        self._refused: deque[list[tuple[Any, Any]]] = deque()
        hide_frames()

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

        def trace(original: Any, args: Any, kwargs: Any) -> Any:
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

        def load(original: Any, args: Any, kwargs: Any) -> Any:
            module = args[1] if len(args) > 1 else kwargs["computation"]
            check("load", module, None)
            executable = original(*args, **kwargs)
            record(module)
            return executable

        def compile_(original: Any, args: Any, kwargs: Any) -> Any:
            check("compile", args[1] if len(args) > 1 else kwargs["module"], None)
            return original(*args, **kwargs)

        for step, around in (("trace", trace), ("load", load), ("compile", compile_)):
            wrap(*self._owners[step], around)

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
