"""Fold compiles that are alike into the rows of a report: modules, and functions."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields
from heapq import nlargest
from typing import Any

from jaxcache.core.compile_event import Argument, CompileFinished, CompileStep, FunctionCompiled
from jaxcache.warm.report.report import Function, FunctionSeconds, Module


def fold_modules(
    events: Iterable[CompileFinished], recorded_seconds: Mapping[str, float]
) -> Iterable[Module]:
    """Yield a row for the compiles that are alike.

    Args:
        recorded_seconds: exact compile seconds by key.
    """
    groups: defaultdict[tuple[object, ...], list[CompileFinished]] = defaultdict(list)
    for e in events:
        alike = (e.process, e.module, e.key, e.outcome, e.reason, e.counted, e.cache_dir)
        groups[alike].append(e)
    for same in groups.values():
        first = same[0]
        is_hit = first.outcome == "hit"
        compile_seconds = _mean(same, "compile")
        if is_hit:
            compile_seconds = recorded_seconds.get(first.key or "", first.stored_seconds)
        retrieval_seconds = _mean(same, "retrieve")
        saved_seconds = 0.0
        if is_hit and compile_seconds is not None:
            saved_seconds = (compile_seconds - (retrieval_seconds or 0.0)) * len(same)
        yield Module(
            **{name: getattr(first, name) for name in _OF_FIRST},
            compile_seconds=compile_seconds,
            retrieval_seconds=retrieval_seconds,
            saved_seconds=saved_seconds,
            trace_seconds=_mean(same, "trace"),
            lower_seconds=_mean(same, "lower"),
            occurrences=len(same),
            cause=None,
        )


_OF_FIRST = {f.name for f in fields(Module)} & {f.name for f in fields(CompileFinished)}


def fold_functions(events: Iterable[FunctionCompiled]) -> Iterable[Function]:
    """Yield a row for each function, over all its signatures."""
    groups: defaultdict[tuple[str, str | None, int | None], list[FunctionCompiled]] = defaultdict(
        list
    )
    for e in events:
        if e.function:
            groups[e.function, e.file, e.line].append(e)
    for (function, file, line), same in groups.items():
        signatures = list(dict.fromkeys(e.arguments for e in same))
        by_process: defaultdict[int, list[FunctionCompiled]] = defaultdict(list)
        for e in same:
            by_process[e.process].append(e)
        # Work that processes do at the same time is not a repetition.
        repeated = max(by_process.values(), key=_repeated_seconds)
        reasons = (e.retrace for e in same if isinstance(e, CompileFinished) and e.retrace)
        yield Function(
            function=function,
            kind=same[0].kind or "jit",
            file=file,
            line=line,
            signatures=len(signatures),
            compiles=max(map(len, by_process.values())),
            compile_seconds=sum(e.seconds_of("compile") or 0.0 for e in same),
            traces=sum("trace" in e.spans for e in repeated),
            repeated_seconds=_repeated_seconds(repeated),
            varies=tuple(_describe_variation(signatures)),
            retrace_reasons=tuple(dict.fromkeys(reasons))[:_SHOWN_VALUES],
        )


def find_longest(events: Iterable[CompileFinished]) -> dict[str, tuple[FunctionSeconds, ...]]:
    """Return the functions that took most of each phase."""
    places: defaultdict[str, defaultdict[tuple[str, str | None, int | None], list[float]]]
    places = defaultdict(lambda: defaultdict(list))
    for e in events:
        seconds: defaultdict[str, float] = defaultdict(float)
        for step, span in e.spans.items():
            seconds[_PHASES.get(step, step)] += span[1]
        for phase, spent in seconds.items():
            places[phase][e.function or e.module, e.file, e.line].append(spent)
    return {
        phase: tuple(
            FunctionSeconds(*place, sum(spent), len(spent))
            for place, spent in nlargest(3, times.items(), key=lambda item: sum(item[1]))
        )
        for phase, times in places.items()
    }


#: The phase of a start that a step belongs to, where it has another name.
_PHASES = {"retrieve": "load", "write": "compile"}


def _repeated_seconds(events: list[FunctionCompiled]) -> float:
    """Return the seconds from a trace until the function can run, without the longest time."""
    return math.fsum(sorted(map(_start_seconds, events))[:-1])


def _start_seconds(event: FunctionCompiled) -> float:
    return math.fsum(seconds for _, seconds in event.spans.values())


def _describe_variation(signatures: list[tuple[Argument, ...]]) -> Iterable[str]:
    """Say which arguments, axes or dtypes differ between the signatures of one function."""
    if len(signatures) < 2:
        return
    if len({len(s) for s in signatures}) > 1:
        yield f"the number of arguments ({_values(len(s) for s in signatures)})"
        return
    for position, arguments in enumerate(zip(*signatures, strict=True)):
        name = arguments[0].name or f"argument {position}"
        if len({a.dtype for a in arguments}) > 1:
            yield f"dtype of {name} ({_values(a.dtype for a in arguments)})"
        if len({len(a.shape) for a in arguments}) > 1:
            yield f"rank of {name} ({_values(len(a.shape) for a in arguments)})"
            continue
        for axis, lengths in enumerate(zip(*(a.shape for a in arguments), strict=True)):
            if len(set(lengths)) > 1:
                yield f"axis {axis} of {name} ({_values(lengths)})"


def _values(values: Iterable[Any]) -> str:
    texts = list(dict.fromkeys(str(v) for v in values))
    return ", ".join(texts[:_SHOWN_VALUES]) + (", …" if len(texts) > _SHOWN_VALUES else "")


_SHOWN_VALUES = 6


def _mean(events: Iterable[CompileFinished], step: CompileStep) -> float | None:
    """Return the mean length of a step in those events that have it."""
    seconds = [e.spans[step][1] for e in events if step in e.spans]
    return sum(seconds) / len(seconds) if seconds else None
