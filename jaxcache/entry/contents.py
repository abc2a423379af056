"""The contents of an entry, as data: the fields of the ``show`` JSON contract, in NumPy's terms.

Facts that an entry of that generation does not contain are None, never a guess.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

from jaxcache.core.wire import WireError
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
        """The memory of a run without the code: arguments, outputs, temporaries, constants."""
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
    """Such as ``9.0a``; for AMD the architecture, such as ``gfx942``."""
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
    """Everything that is read from an entry's payload."""

    program: Program | None = None
    source: tuple[SourceLine, ...] = ()
    memory: Memory = field(default_factory=Memory)
    device: Device = field(default_factory=lambda: Device("unknown"))
    compile_options: XlaCompileOptions = field(default_factory=XlaCompileOptions)
    format: EntryFormat = field(default_factory=EntryFormat)
    written_in_cache_dir: str | None = None
    """The cache directory at the time of writing, where the options hold it (0.4.36 and later)."""
    flags: dict[str, str | int | float | bool | None] | None = None
    """Every XLA flag that the options contain, by name: 63 of them in 0.4.30, 269 in 0.12."""
    like_jaxlib: str | None = None
    """The known jaxlib whose default flags are nearest to these."""
    problems: tuple[tuple[ProblemKind, str], ...] = ()
    """(kind, detail): ``bad-payload`` and ``module-mismatch``."""

    @property
    def kernel_cache(self) -> bool:
        """Whether XLA's kernel cache was on, whose path every JAX since 0.4.36 hashes."""
        return bool((self.flags or {}).get("xla_gpu_kernel_cache_file"))


_TUPLE = 13
#: ``PrimitiveType`` (xla/xla_data.proto) to the names of NumPy and ml_dtypes.
_DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16",
    8: "uint32", 9: "uint64", 10: "float16", 11: "float32", 12: "float64", 13: "tuple",
    14: "opaque", 15: "complex64", 16: "bfloat16", 17: "token", 18: "complex128",
    19: "float8_e5m2", 20: "float8_e4m3fn", 21: "int4", 22: "uint4", 23: "float8_e4m3b11fnuz",
    24: "float8_e5m2fnuz", 25: "float8_e4m3fnuz", 26: "int2", 27: "uint2", 28: "float8_e4m3",
    29: "float8_e3m4", 30: "int1", 31: "uint1", 32: "float4_e2m1fn", 33: "float8_e8m0fnu",
    34: "buffer",
}  # fmt: skip
#: HLO's own short names, where they differ from the rule of letter and bits.
_SHORT = {"bool": "pred", "bfloat16": "bf16", "opaque": "opaque", "token": "token"}
#: Far more than the largest programs take or give, which a few megabytes of empty shapes surpass.
MAX_ARRAYS = 200_000
_LETTERS = {"int": "s", "uint": "u", "float": "f", "complex": "c"}


def array_types(shapes: Iterable[Any]) -> tuple[ArrayType, ...]:
    """The arrays of ``Shape`` messages, the leaves of tuples in order.

    Raises:
        WireError: more of them than any compiler writes.
    """
    arrays = tuple(islice((leaf for s in shapes for leaf in _leaves(s)), MAX_ARRAYS + 1))
    if len(arrays) > MAX_ARRAYS:
        raise WireError("more arrays than any compiler writes")
    return arrays


def _leaves(shape: Any) -> Iterator[ArrayType]:
    if shape.element_type == _TUPLE:
        for inner in shape.tuple_shapes:
            yield from _leaves(inner)
    else:
        name = _DTYPES.get(shape.element_type, f"type{shape.element_type}")
        yield ArrayType(name, tuple(shape.dimensions))


def short_type(array: ArrayType) -> str:
    """An array in HLO's notation: ``f32[8,16]``, ``bf16[]``, ``pred[4]``."""
    dims = ",".join(map(str, array.shape))
    return f"{_short_dtype(array.dtype)}[{dims}]"


def _short_dtype(dtype: str) -> str:
    if dtype in _SHORT:
        return _SHORT[dtype]
    word = dtype.rstrip("0123456789")
    if word in _LETTERS:
        return _LETTERS[word] + dtype[len(word) :]
    if dtype.startswith("float"):  # float8_e4m3fn -> f8e4m3fn
        return "f" + dtype[5:].replace("_", "")
    return dtype


_ARRAY = re.compile(r"(?P<dtype>[a-z][a-z0-9_]*)\[(?P<dims>\s*\d+\s*(,\s*\d+\s*)*)?\]")
#: No array that a program declares has more, and dimensions are 64 bits.
_MAX_RANK = 64
_MAX_DIM_DIGITS = 18


def parse_short_type(text: str) -> ArrayType | None:
    """Read an array in HLO's, JAX's or NumPy's notation; None if it is not an array.

    ``f32[8,16]``, ``i32[]``, ``s32[]``, ``bool[4]``, ``float8_e4m3fn[2]``.
    """
    match = _ARRAY.fullmatch(text.strip())
    dtype = dtype_names().get(match["dtype"]) if match else None
    if match is None or dtype is None:
        return None
    dims = match["dims"].split(",") if match["dims"] else []
    if len(dims) > _MAX_RANK or any(len(d.strip()) > _MAX_DIM_DIGITS for d in dims):
        return None
    return ArrayType(dtype, tuple(map(int, dims)))


@cache
def dtype_names() -> dict[str, str]:
    """Every way to write a dtype, to its name."""
    arrays = [d for d in _DTYPES.values() if d not in ("tuple", "opaque", "token", "buffer")]
    names = {d: d for d in arrays} | {_short_dtype(d): d for d in arrays}
    return names | {f"i{d[3:]}": d for d in arrays if d.startswith("int")}


def signature(parameters: tuple[ArrayType, ...], results: tuple[ArrayType, ...]) -> str:
    """One line: ``f32[8,16], f32[16,32] → f32[8,32]``."""
    return f"{_join(parameters)} → {_join(results)}"


def _join(arrays: tuple[ArrayType, ...]) -> str:
    return ", ".join(map(short_type, arrays)) or "()"
