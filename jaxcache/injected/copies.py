"""Find what a Python loop over equal layers leaves in a program: copies of one source location."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

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
