"""Read why JAX traces a function again, and find the copies of one source line in what it traced.

The first is JAX's own comparison of two trace keys.

JAX prints it where ``jax_explain_cache_misses`` is set. It compares with every earlier
key, 1.5 to 12 ms a trace; here the newest few suffice, for a limited time per process.

Private names of JAX, tried on 0.10.2, 0.11.2 and 0.12.0.1; before 0.9.2 nothing is compared:
``partial_eval.trace_to_jaxpr(function, arguments, debug_info, …)``, a cache, and
``partial_eval.diff_tracing_cache_keys(new, old)``: severity, number of differences, text.

The second are what a Python loop over equal layers leaves in a program.
"""

import re
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..core.seams import wrap
from .adapter import place_of

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
    equations = list(_equations(getattr(jaxpr, "jaxpr", jaxpr)))
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


def _equations(outermost: Any) -> "Iterator[Any]":
    """Yield the equations of a jaxpr and of those inside it, each jaxpr once."""
    waiting = [outermost]
    seen: set[int] = set()
    count = 0
    while waiting:
        jaxpr = waiting.pop()
        if id(jaxpr) in seen:
            continue
        seen.add(id(jaxpr))
        for equation in jaxpr.eqns:
            count += 1
            if count > _MOST_EQUATIONS:
                return
            yield equation
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
