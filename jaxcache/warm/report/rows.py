"""Fold compiles that are alike into the rows of a report: modules, and functions."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from jaxcache.cache.untrusted_json import Span
from jaxcache.warm.report.events import ColocatedCompiled, CompileFinished
from jaxcache.warm.report.report import Argument, Function, FunctionSeconds, Module


def fold_modules(
    events: Iterable[CompileFinished], recorded_seconds: Mapping[str, float]
) -> Iterable[Module]:
    """Yield a row for the compiles that are alike.

    Args:
        recorded_seconds: exact compile seconds by key.
    """
    groups: defaultdict[tuple[object, ...], list[CompileFinished]] = defaultdict(list)
    for e in events:
        place = (e.process, e.module, e.key, e.outcome, e.reason, _counted(e), e.directory)
        groups[place].append(e)
    for same in groups.values():
        first = same[0]
        alike = {name: getattr(first, name) for name in _ALIKE}
        yield Module(
            **alike,
            occurrences=len(same),
            compile_seconds=recorded_seconds.get(first.key or "", first.stored_seconds)
            if first.outcome == "hit"
            else _mean(e.compile for e in same),
            retrieval_seconds=_mean(e.retrieve for e in same),
            trace_seconds=_mean(e.trace for e in same),
            lower_seconds=_mean(e.lower for e in same),
            counted=_counted(first),
            cache_dir=first.directory,
            has_whole_seconds=first.outcome == "hit" and first.key not in recorded_seconds,
        )


#: Fields that a row has from its first event.
_ALIKE = (
    *("module", "key", "outcome", "reason", "detail", "function", "file", "line", "arguments"),
    *("size_bytes", "process", "tuning", "constant_bytes", "copies", "errno"),
)


def fold_functions(events: Iterable[ColocatedCompiled]) -> Iterable[Function]:
    """Yield a row for each function, over all its signatures."""
    groups: defaultdict[tuple[str, str | None, int | None], list[ColocatedCompiled]] = defaultdict(
        list
    )
    for e in events:
        if e.function:
            groups[e.function, e.file, e.line].append(e)
    for (function, file, line), same in groups.items():
        signatures = list(dict.fromkeys(e.arguments for e in same))
        by_process: defaultdict[int, list[ColocatedCompiled]] = defaultdict(list)
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
            compile_seconds=sum(span_seconds(e.compile) or 0.0 for e in same),
            traces=sum(isinstance(e, CompileFinished) and e.trace is not None for e in repeated),
            repeated_seconds=_repeated_seconds(repeated),
            varies=tuple(_describe_variation(signatures)),
            retrace_reasons=tuple(dict.fromkeys(reasons))[:_SHOWN_VALUES],
        )


def find_longest(events: Iterable[CompileFinished]) -> dict[str, tuple[FunctionSeconds, ...]]:
    """Return the functions that took most of each phase."""
    sums: defaultdict[str, Counter[tuple[str, str | None, int | None]]] = defaultdict(Counter)
    counts = Counter[tuple[str, str, str | None, int | None]]()
    for e in events:
        place = e.function or e.module, e.file, e.line
        for phase, names in _SPANS.items():
            if spans := [span for name in names if (span := getattr(e, name))]:
                sums[phase][place] += sum(span[1] for span in spans)
                counts[phase, *place] += 1
    return {
        phase: tuple(
            FunctionSeconds(*place, seconds, counts[phase, *place])
            for place, seconds in by.most_common(3)
        )
        for phase, by in sums.items()
    }


#: The spans of a compile by phase.
_SPANS = {
    "trace": ("trace",),
    "lower": ("lower",),
    "key": ("make_key",),
    "load": ("retrieve",),
    "compile": ("compile", "write"),
}


def _repeated_seconds(events: list[ColocatedCompiled]) -> float:
    """Return the seconds from a trace until the function can run, without the longest time."""
    return math.fsum(sorted(map(_start_seconds, events))[:-1])


def _start_seconds(event: ColocatedCompiled) -> float:
    spans = (getattr(event, name, None) for name in chain(*_SPANS.values()))
    return math.fsum(span[1] for span in spans if span)


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


def _counted(event: CompileFinished) -> str | None:
    for name, outcome in (("hits", "hit"), ("misses", "miss"), ("requests", "request")):
        if name in event.counted:
            return outcome
    return None


def span_seconds(span: Span | None) -> float | None:
    """Return the length of a span."""
    return span[1] if span else None


def _mean(spans: Iterable[Span | None]) -> float | None:
    seconds = [span[1] for span in spans if span]
    return sum(seconds) / len(seconds) if seconds else None
