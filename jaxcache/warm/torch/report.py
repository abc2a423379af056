"""The report of a run with torch: every look into its two caches, graph breaks, recompiles."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxcache.layouts.torch.names import TorchTier
from jaxcache.model import result_repr
from jaxcache.warm.report.events import TorchBreak

LookupOutcome = Literal["hit", "miss", "bypassed", "off"]


@dataclass(frozen=True, slots=True)
class Lookup:
    """One look of torch's into one of its caches."""

    tier: TorchTier
    outcome: LookupOutcome
    """``off``: there was a graph, and torch did not look for it."""
    process: int
    reason: str | None = None
    """The cause of a bypass, in torch's words; for a miss, ``full_miss`` or ``guard_miss``."""
    key: str | None = None
    """As a listing shows it, with the tier in front; None where torch made none."""
    saved: bool = False
    """Whether it was written here."""
    function: str | None = None
    file: str | None = None
    line: int | None = None
    compile_id: str | None = None
    compile_seconds: float | None = None
    """Compile time, for a hit when it was written; an AOT graph's without its FX graphs'."""
    retrieval_seconds: float | None = None
    """Time to read an AOT graph that was hit and its FX graphs, and what that led to."""
    size_bytes: int | None = None

    @property
    def occurrences(self) -> int:
        """Always 1: every look has a row of its own."""
        return 1


@dataclass(frozen=True, slots=True)
class CompiledFrame:
    """One compile of a frame by torch, with its backward pass."""

    compile_id: str | None
    function: str | None
    file: str | None
    line: int | None
    compile_seconds: float
    """All of it: tracing, the backend, guards."""
    backend_seconds: float
    guards: tuple[str, ...]
    """For a recompile, the guard that failed of each compile before, in torch's words."""
    failure: str | None
    process: int


@dataclass(frozen=True, slots=True)
class TorchProcess:
    """One Python that compiled with torch."""

    process: int
    pid: int
    executable: str
    torch: str
    rank: int | None
    """Its number in a distributed program."""
    cache_dir: str | None
    settings: Mapping[str, Any]
    counters: Mapping[str, int]
    """Torch's own: ``torch._dynamo.utils.counters``."""


@dataclass(frozen=True, slots=True)
class TorchReport:
    """All that a run did with torch's caches."""

    __repr__ = result_repr

    cache_dir: str
    modules: tuple[Lookup, ...]
    compiles: tuple[CompiledFrame, ...]
    graph_breaks: tuple[TorchBreak, ...]
    processes: tuple[TorchProcess, ...]
    notes: tuple[str, ...]
    script_exit_code: int
    timed_out: bool
    interrupted: bool
    wall_seconds: float
    saved_seconds: float
    """Compile seconds saved by hits, less what retrieving them took."""
    unobserved: tuple[str, ...] = ()
    trace: Mapping[str, Any] = field(default_factory=dict, repr=False)

    recorded = None
    unit = "graph"

    def count(self, outcome: LookupOutcome, tier: TorchTier | None = None) -> int:
        """Looks that ended so."""
        return sum(g.outcome == outcome and tier in (None, g.tier) for g in self.modules)

    @property
    def uncacheable(self) -> int:
        """Looks that torch did not make: bypassed, or with the cache off."""
        return self.count("bypassed") + self.count("off")

    def tally(self, tier: TorchTier) -> dict[str, int]:
        """Counts of one cache, by the names of torch's counters."""
        mine = [g for g in self.modules if g.tier == tier]
        return {
            "hits": self.count("hit", tier),
            "misses": self.count("miss", tier),
            "guard_misses": sum(g.reason == "guard_miss" for g in mine),
            "saved": sum(g.saved for g in mine),
            "bypassed": self.count("bypassed", tier),
            "off": self.count("off", tier),
        }

    @property
    def compile_seconds(self) -> float:
        """Seconds spent compiling in this run."""
        return math.fsum(c.compile_seconds for c in self.compiles)
