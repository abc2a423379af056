"""Recipes as data: the processes that compiled, and each compile that one of them asked for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from jaxcache.cache.archive import ArchiveError
from jaxcache.cache.untrusted_json import Digest, Seconds, Text
from jaxcache.core.names import parse_key

#: Larger assignments are damage.
MAX_DEVICES = 1 << 20
Number = Annotated[int, range(MAX_DEVICES)]
LargeNumber = Annotated[int, range(1 << 40)]
_HINT = "get the file again, or record it again with: jaxcache warm --record"


class RecipeError(ArchiveError):
    """The file is no recipe, or a damaged or hostile one."""

    def __init__(self, message: str, *, hint: str | None = _HINT, code: str = "bad-recipe") -> None:
        super().__init__(message, code=code, hint=hint)


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings of one process that enter its keys, and all that starting another takes."""

    jax_version: Text
    jaxlib_version: Text
    platform: Text
    """As JAX's backend names itself: ``cpu``, ``gpu``, ``cuda``, ``tpu``."""
    device_count: Number = 1
    """Devices of this platform in the process."""
    process_count: Number = 1
    process_id: Number = 0
    xla_flags: tuple[Text, ...] = ()
    """The items of ``XLA_FLAGS``, as set."""
    libtpu_init_args: tuple[Text, ...] = ()
    argv_flags: tuple[Text, ...] = ()
    """Command-line items that JAX hashes because they begin with ``--xla``."""
    settings: Mapping[Text, bool | int | str] = field(default_factory=dict)
    """Settings of JAX that enter keys, by JAX's names; those at their defaults are left out."""
    cache_dir: Text | None = None
    """The cache directory; JAX 0.4.36 to 0.10.x hashes it."""
    jaxlib_digest: Text | None = None
    python_version: Text | None = None
    platform_version: Text | None = None
    device_kind: Text | None = None
    topology_fingerprint: Text | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One compile, however often it was asked for."""

    module: Text
    bytecode: Digest
    """SHA-256 of the StableHLO module as MLIR bytecode."""
    options: Digest
    """SHA-256 of the serialized ``CompileOptionsProto``."""
    environment: Number
    """Index into the environments of the recipe."""
    device_ids: tuple[LargeNumber, ...]
    """The device assignment, row by row."""
    device_shape: tuple[Number, ...]
    """Replicas and partitions, or however JAX has arranged the devices."""
    executable_device_ids: tuple[LargeNumber, ...] | None = None
    """Devices that the executable is for, where they are not just ``device_ids``."""
    key: Text | None = None
    """None where the run ended before JAX had made it, or JAX made none."""
    components: Mapping[Text, Text] = field(default_factory=dict)
    """SHA-256 of each part of the key, by JAX's name for it."""
    callbacks: LargeNumber = 0
    """Host callbacks that the executable was given."""
    refusals: tuple[Text, ...] = ()
    """Why it cannot be compiled again: ``custom-partitioning``, ``pgle``, ``flags-file``."""
    doubts: tuple[Text, ...] = ()
    """Reasons why the program may ask for another module when it runs; only where it was collected
    without executing."""
    stubbed: bool = False
    """It was answered with zeros and has never been compiled."""
    function: Text | None = None
    file: Text | None = None
    line: Annotated[int, range(1 << 31)] | None = None
    compile_seconds: Seconds | None = None
    occurrences: LargeNumber = 1

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
