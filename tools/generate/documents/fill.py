"""Documents of the commands under *Fill*."""

from collections.abc import Mapping
from typing import Any, TypedDict

from jaxcache.warm.compiling.worker import CompileResult
from jaxcache.warm.crosshost.compare import ProfileDifference


class Placed(TypedDict):
    cache_dir: str | None


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
