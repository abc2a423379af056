"""Recipes as data: the processes that compiled, and each compile that one of them asked for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxcache.cache.archive import ArchiveError
from jaxcache.core.names import parse_key

_HINT = "get the file again, or record it again with: jaxcache warm --record"


class RecipeError(ArchiveError):
    """The file is no recipe, or a damaged or hostile one."""

    def __init__(self, message: str, *, hint: str | None = _HINT, code: str = "bad-recipe") -> None:
        super().__init__(message, code=code, hint=hint)


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings of one process that enter its keys, and all that starting another takes."""

    jax_version: str
    jaxlib_version: str
    platform: str
    """As JAX's backend names itself: ``cpu``, ``gpu``, ``cuda``, ``tpu``."""
    device_count: int = 1
    """Devices of this platform in the process."""
    process_count: int = 1
    process_id: int = 0
    xla_flags: tuple[str, ...] = ()
    """The items of ``XLA_FLAGS``, as set."""
    libtpu_init_args: tuple[str, ...] = ()
    argv_flags: tuple[str, ...] = ()
    """Command-line items that JAX hashes because they begin with ``--xla``."""
    settings: Mapping[str, bool | int | str] = field(default_factory=dict)
    """Settings of JAX that enter keys, by JAX's names; those at their defaults are left out."""
    cache_dir: str | None = None
    """The cache directory; JAX 0.4.36 to 0.10.x hashes it."""
    jaxlib_digest: str | None = None
    python_version: str | None = None
    platform_version: str | None = None
    device_kind: str | None = None
    topology_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One compile, however often it was asked for."""

    module: str
    bytecode: str
    """SHA-256 of the StableHLO module as MLIR bytecode."""
    options: str
    """SHA-256 of the serialized ``CompileOptionsProto``."""
    environment: int
    """Index into the environments of the recipe."""
    device_ids: tuple[int, ...]
    """The device assignment, row by row."""
    device_shape: tuple[int, ...]
    """Replicas and partitions, or however JAX has arranged the devices."""
    executable_device_ids: tuple[int, ...] | None = None
    """Devices that the executable is for, where they are not just ``device_ids``."""
    key: str | None = None
    """None where the run ended before JAX had made it, or JAX made none."""
    components: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each part of the key, by JAX's name for it."""
    callbacks: int = 0
    """Host callbacks that the executable was given."""
    refusals: tuple[str, ...] = ()
    """Why it cannot be compiled again: ``custom-partitioning``, ``pgle``, ``flags-file``."""
    doubts: tuple[str, ...] = ()
    """Reasons why the program may ask for another module when it runs; only where it was collected
    without executing."""
    stubbed: bool = False
    """It was answered with zeros and has never been compiled."""
    function: str | None = None
    file: str | None = None
    line: int | None = None
    compile_seconds: float | None = None
    occurrences: int = 1

    @property
    def name(self) -> str:
        """The key, or the module's name where there is none."""
        return self.key or self.module

    @property
    def hash(self) -> str | None:
        """The hexadecimal part of the key."""
        parsed = parse_key(self.key) if self.key else None
        return parsed.hash if parsed else None


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything but the bytes of the modules and options."""

    environments: tuple[Environment, ...]
    requests: tuple[Request, ...]
    notes: tuple[str, ...] = ()
    """Remarks for the reader: a run that ended early, functions that were not reached."""

    def environment_of(self, request: Request) -> Environment:
        """The process that asked for it."""
        return self.environments[request.environment]

    @property
    def compile_seconds(self) -> float:
        """The sum of the known compile times, each module once."""
        return math.fsum(r.compile_seconds or 0.0 for r in self.requests)
