"""Documents of the commands under *Fill*."""

from collections.abc import Mapping
from typing import Any, TypedDict

from jaxcache.warm.compiling.worker import CompileResult
from jaxcache.warm.crosshost.compare import ProfileDifference
from jaxcache.warm.report.events import TorchBreak
from jaxcache.warm.report.report import Function, FunctionSeconds, Module, Phases, Process
from jaxcache.warm.torch.run import CompiledFrame, Lookup, TorchProcess


class RunSums(TypedDict):
    compile_seconds: float
    saved_seconds: float
    wall_seconds: float


class JaxSums(RunSums):
    compile_requests: int
    hits: int
    misses: int
    hit_rate: float | None
    written: int
    skipped: int
    uncacheable: int
    refused: int
    errors: int
    phases: Phases
    longest: Mapping[str, list[FunctionSeconds]]


class RunEnd(TypedDict):
    notes: list[str]
    unobserved: list[str]
    timed_out: bool
    interrupted: bool
    script_exit_code: int


class RunDocument(RunEnd):
    modules: list[Module]
    functions: list[Function]
    processes: list[Process]
    summary: JaxSums


class TierSums(TypedDict):
    hits: int
    misses: int
    guard_misses: int
    saved: int
    bypassed: int
    off: int


class TorchSums(RunSums):
    aotautograd: TierSums
    fxgraph: TierSums
    compiles: int
    recompiles: int
    graph_breaks: int


class TorchRunDocument(RunEnd):
    graphs: list[Lookup]
    compiles: list[CompiledFrame]
    graph_breaks: list[TorchBreak]
    processes: list[TorchProcess]
    summary: TorchSums


class CompileSums(TypedDict):
    requested: int
    written: int
    already_cached: int
    missing: int
    failed: int
    refused: int
    unreached: int
    wall_seconds: float
    compile_seconds: float


class CompileDocument(TypedDict):
    recipe: str
    check: bool
    modules: list[CompileResult]
    summary: CompileSums
    notes: list[str]
    interrupted: bool


class ProfileDocument(TypedDict):
    profile: Mapping[str, Any]
    differences: list[ProfileDifference] | None
