"""The contents of an entry, as data: the fields of the ``show`` JSON contract.

What an entry of that generation does not tell is None, never a guess.
"""

from dataclasses import dataclass, field

from jaxcache.model import Platform, ProblemKind


@dataclass(frozen=True, slots=True)
class ArrayType:
    """Type and shape of one array; per shard, where the program is partitioned."""

    dtype: str
    """NumPy's (and ml_dtypes') name: ``float32``, ``bfloat16``, ``bool``."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """The optimized HLO module."""

    module: str
    parameters: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]
    instructions: int
    computations: int
    opcodes: dict[str, int]
    """Number of instructions of each opcode over all computations, the most frequent first."""
    custom_calls: dict[str, int]
    """Targets of custom calls, the most frequent first."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of Python that instructions came from."""

    file: str
    line: int
    function: str | None
    """None in entries whose metadata has no frames."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device, as ``jax.stages.Compiled.memory_analysis()`` counts them."""

    argument_bytes: int | None = None
    output_bytes: int | None = None
    temp_bytes: int | None = None
    alias_bytes: int | None = None
    constant_bytes: int | None = None
    code_bytes: int | None = None
    """Machine code in the entry: objects on CPU, PTX and cubins on GPU."""

    @property
    def total_bytes(self) -> int | None:
        """The memory a run takes beside the code: arguments, outputs, temporaries, constants."""
        parts = (self.argument_bytes, self.output_bytes, self.temp_bytes, self.constant_bytes)
        recorded = [p for p in parts if p is not None]
        return sum(recorded) - (self.alias_bytes or 0) if len(recorded) == len(parts) else None


@dataclass(frozen=True, slots=True)
class Device:
    """The device it was compiled for."""

    platform: Platform
    name: str | None = None
    """Such as ``NVIDIA H200``."""
    compute_capability: str | None = None
    """Such as ``9.0a``; of AMD the architecture, such as ``gfx942``."""
    toolkit: str | None = None
    cudnn: str | None = None
    cpu_triple: str | None = None
    cpu_name: str | None = None
    cpu_features: tuple[str, ...] | None = None

    @property
    def target(self) -> str | None:
        """Short text: the CPU's name, ``sm_90a``, ``gfx942``, the TPU's generation."""
        if self.platform == "gpu" and self.compute_capability:
            capability = self.compute_capability
            if capability[0].isdigit():
                return f"sm_{capability.replace('.', '')}"
            return capability
        return self.cpu_name if self.platform == "cpu" else self.name


@dataclass(frozen=True, slots=True)
class XlaCompileOptions:
    """The options of the compile."""

    num_replicas: int | None = None
    num_partitions: int | None = None
    device_assignment: tuple[tuple[int, ...], ...] | None = None
    """One tuple per replica, in it the device of each partition."""
    flags_changed: dict[str, str | int | float | bool | None] | None = None
    """XLA flags that differ from that version's defaults; None where those are not known."""
    profile_guided: bool | None = None
    """Whether a profile guided the compiler (PGLE); None where the entry has no options."""


@dataclass(frozen=True, slots=True)
class EntryFormat:
    """The container of the payload."""

    ifrt_version: int | None = None
    abi: str | None = None
    container: str | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything that an entry's payload tells."""

    program: Program | None = None
    source: tuple[SourceLine, ...] = ()
    memory: Memory = field(default_factory=Memory)
    device: Device = field(default_factory=lambda: Device("unknown"))
    compile_options: XlaCompileOptions = field(default_factory=XlaCompileOptions)
    format: EntryFormat = field(default_factory=EntryFormat)
    written_in_cache_dir: str | None = None
    """The cache directory at the time of writing, where the options hold it (0.4.36 and later)."""
    flags: dict[str, str | int | float | bool | None] | None = None
    """Every XLA flag that the options tell, by name: 63 of them in 0.4.30, 269 in 0.12."""
    like_jaxlib: str | None = None
    """The known jaxlib whose default flags are nearest to these."""
    problems: tuple[tuple[ProblemKind, str], ...] = ()
    """(kind, detail): ``bad-payload`` and ``module-mismatch``."""

    @property
    def kernel_cache(self) -> bool:
        """Whether XLA's kernel cache was on, whose path every JAX since 0.4.36 hashes."""
        return bool((self.flags or {}).get("xla_gpu_kernel_cache_file"))
