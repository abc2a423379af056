"""The results of ``compile``: one for each request of a recipe."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from jaxcache.model import result_repr

CompileOutcome = Literal["written", "already-cached", "missing", "failed", "refused"]
COMPILE_OUTCOMES: tuple[CompileOutcome, ...] = get_args(CompileOutcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileResult:
    """One request and its end; a row of the JSON."""

    module: str
    key: str | None
    """As JAX makes it here; the recorded one where it came to none."""
    outcome: CompileOutcome
    """``missing`` only with ``--check``: compiling it would write it."""
    compile_seconds: float | None = None
    recorded_key: str | None
    differs: tuple[str, ...] = ()
    """Parts of the key that are not as recorded, by JAX's names."""
    moved: bool = False
    """Nothing but the cache directory differs, which is part of the key in JAX 0.4.36 to 0.10."""
    reason: str | None = None
    """Kebab-case: why it was refused, or ``worker-died``, ``compile-failed``, …"""
    detail: str | None = None
    size_bytes: int | None = None
    function: str | None = None
    attempts: int = 1
    doubts: tuple[str, ...] = ()
    tuning: str | None = None
    """``tuned`` or ``untuned``, for an entry that was compiled without its GPU."""


@dataclass(frozen=True, slots=True)
class CompileReport:
    """The result of one ``compile``."""

    __repr__ = result_repr

    cache_dir: str
    recipe: str
    modules: tuple[CompileResult, ...]
    wall_seconds: float
    check: bool = False
    interrupted: bool = False
    unreached: int = 0
    """Requests that an interruption left undone."""
    notes: tuple[str, ...] = field(default=())

    def count(self, outcome: CompileOutcome) -> int:
        """Count the requests with this outcome."""
        return sum(m.outcome == outcome for m in self.modules)

    @property
    def compile_seconds(self) -> float:
        """Seconds that compiling took, over all workers."""
        return math.fsum(m.compile_seconds or 0.0 for m in self.modules if m.outcome == "written")
