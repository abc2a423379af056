"""The event of one compile: what the listener in the user's Python sends, and the parent reads.

The fields have the names of the JSON contract. The parent reads them by their types
(``warm/report/events.py``), so a value of another type never gets further.

:class:`Timeline` divides a period among phases, so that each instant counts for one phase alone.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Literal

from .call_site import CallSite

RunOutcome = Literal["hit", "written", "skipped", "uncacheable", "refused", "error"]
Counted = Literal["hit", "miss", "request"]
CompileStep = Literal["trace", "lower", "key", "retrieve", "compile", "write"]
Span = tuple[float, float]
"""Start in seconds since the epoch, and length in seconds."""


@dataclass(slots=True, kw_only=True)
class RunEvent:
    """One event of one process."""

    process: int = 0
    """A number per connection, which the parent gives."""
    at: float = 0.0
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a compiled function."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of one source location in a program, such as a Python loop over layers makes."""

    count: int
    share: float
    """The part of the program's equations that are such copies."""
    file: str | None = None
    line: int | None = None


UndoneKind = Literal["flag", "option", "setting", "devices", "codec", "path"]


@dataclass(frozen=True, slots=True)
class UndonePart:
    """One part of a key as a process has it, and as the entry that is there has it."""

    kind: UndoneKind
    name: str
    """The variable or setting: ``XLA_FLAGS``, ``JAX_NUM_CPU_DEVICES``, ``compiler_options``."""
    value: str
    """What the process has: the flags that the entry lacks, a number of devices, a codec."""
    undone: str
    """What the entry has in its place; empty for nothing."""
    restored: str | None = None
    """The value of the variable that undoes it, empty to unset it; None where no variable does."""


@dataclass(slots=True, kw_only=True)
class FunctionCompiled(RunEvent):
    """A function and the arguments that it was compiled for."""

    function: str | None = None
    kind: str | None = None
    file: str | None = None
    line: int | None = None
    arguments: tuple[Argument, ...] = ()
    site: CallSite | None = None
    """None where it was not lowered by a call that was observed."""
    spans: Mapping[CompileStep, Span] = field(default_factory=dict)
    """When each step was done that this compile took."""

    def seconds_of(self, step: CompileStep) -> float | None:
        """Return the length of a step; None where it was not done."""
        span = self.spans.get(step)
        return span[1] if span else None


@dataclass(slots=True, kw_only=True)
class CompileFinished(FunctionCompiled):
    """A compile request has ended."""

    number: int
    """The number of the request in its process."""
    module: str
    outcome: RunOutcome
    reason: str
    detail: str | None = None
    errno: int | None = None
    """The system's number of an error, if reading or writing the entry failed with one."""
    key: str | None = None
    seconds: float = 0.0
    """From the request to its end."""
    thread: int = 0
    process_id: int = 0
    """The number of the process in a distributed program."""
    cache_dir: str | None = None
    """The directory that JAX had open; a program may use several."""
    backend: int | None = None
    components: Mapping[str, str] | None = None
    """SHA-256 of each part of the key, by JAX's name for it."""
    counted: Counted | None = None
    """The count of JAX's own monitoring: ``hit``, ``miss`` (JAX meant to write), ``request``
    (neither), or None (JAX made no key)."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """The counters of the process by then."""
    stubbed: bool = False
    """Answered with zeros, never compiled."""
    stored_seconds: float | None = None
    """The compile time that JAX stored in the entry, in whole seconds."""
    retrace: str | None = None
    """The reason, in JAX's words, why it was traced again."""
    copies: Copies | None = None
    """None where few operations repeat, or where the trace took less than half a second."""
    constant_bytes: int = 0
    """Bytes of the arrays that the function closes over, which are part of the module."""
    size_bytes: int | None = None
    """Of the entry, also of one that JAX has made and not written because of its size."""
    mtime_ns: int | None = None
    tuning: str | None = None
    """``tuned`` or ``untuned``, for an entry that was compiled without its GPU."""
    spool: str | None = None
    """The file with an executable for a target, of which the parent makes an entry."""
    sketch: str | None = None
    """The sketch of a request of which only the key was wanted."""
    undone: tuple[UndonePart, ...] = ()
    """The parts of the key of a miss without which it is :attr:`undone_key`, whose entry is there;
    looked for by ``explain`` alone."""
    undone_key: str | None = None

    @property
    def local_directory(self) -> str | None:
        """The directory that JAX had open; None where it is in a bucket, or none was."""
        return self.cache_dir if self.cache_dir and "://" not in self.cache_dir else None


#: The phases of a start. Writing belongs to ``compile``; ``load`` includes the lookup of a miss.
PHASES = ("import", "backend", "trace", "lower", "key", "load", "compile")
#: Spans whose ends are this close touch: clocks and durations are rounded differently.
_TOUCHING_SECONDS = 1e-6


class Timeline:
    """Spans of time without overlaps.

    The span that is added first keeps its instants: what is nested ends first, and so is its own
    phase, and threads that compile at the same time count once.
    """

    def __init__(self, began_at: float = 0.0) -> None:
        self.spans: list[tuple[float, float, str]] = []
        """Start, end and phase of each, in order."""
        self._began_at = began_at

    def add(self, phase: str, start: float, end: float) -> None:
        """Add a span; only the instants that no other span has become its own."""
        start = max(start, self._began_at)
        if end <= start:
            return
        low = bisect_left(self.spans, start - _TOUCHING_SECONDS, key=itemgetter(1))
        high = bisect_right(self.spans, end + _TOUCHING_SECONDS, key=itemgetter(0))
        joined: list[tuple[float, float, str]] = []
        for first, last, name in [*self.spans[low:high], (end, end, phase)]:
            if start < first:
                _join(joined, (start, min(first, end), phase))
            _join(joined, (first, last, name))
            start = max(start, last)
        self.spans[low:high] = joined

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase."""
        sums: defaultdict[str, float] = defaultdict(float)
        for start, end, phase in self.spans:
            sums[phase] += end - start
        return dict(sums)


def _join(spans: list[tuple[float, float, str]], span: tuple[float, float, str]) -> None:
    """Append a span, or lengthen the last one if that touches it and has the same phase."""
    start, end, phase = span
    if spans and spans[-1][2] == phase and start - spans[-1][1] <= _TOUCHING_SECONDS:
        spans[-1] = (spans[-1][0], max(end, spans[-1][1]), phase)
    elif start < end:
        spans.append(span)
