"""From a payload to the compiler's result: IFRT's prefix, Riegeli, ExecutableAndOptionsProto.

docs/entry-format.md describes the generations and how they differ.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxcache.entry import riegeli, wire
from jaxcache.entry.riegeli import Piece
from jaxcache.entry.wire import Budget, Field, WireError
from jaxcache.model import Platform

#: Field 2 of IFRT's metadata, which every prefix holds near its start.
_IFRT_MARK = b"\x12\x09pjrt_ifrt"
_IFRT_MARK_WITHIN = 64
_PTX_MARK = b".version "
_PTX_MARK_WITHIN = 4096
_ELF_MAGIC = b"\x7fELF"
#: ELF ``e_machine``: EM_CUDA, EM_AMDGPU.
_GPU_MACHINES = (190, 224)
_TPU_TYPE = "xla.TpuExecutableProto"
_GPU_TYPE = "xla.gpu.GpuExecutableProto"


@dataclass(frozen=True, slots=True)
class Envelope:
    """An opened payload: what the compiler handed over, and what came with it."""

    platform: Platform
    ifrt: memoryview | None
    executable: tuple[Field, ...]
    """The top fields of the CPU, GPU or TPU result, in order."""
    options: memoryview | None
    """CompileOptionsProto."""
    container: str
    """The layers from the outside in, such as ``ifrt+riegeli+riegeli(snappy)``."""


def open_envelope(payload: memoryview, budget: Budget, *, check: bool = True) -> Envelope:
    """Open a payload as far as the compiler's own result, and determine its platform.

    Args:
        check: also check the hashes of Riegeli chunks.

    Raises:
        WireError: damaged, or of no known generation.
    """
    layers: list[str] = []
    ifrt, outer = _split_ifrt(payload)
    if ifrt is not None:
        layers.append("ifrt")
    fields: Iterable[Field]
    if outer[:8] == riegeli.MAGIC:
        split = riegeli.read_split_message(outer, budget, check=check)
        layers.append(_layer(split))
        if split.type_name == _TPU_TYPE:
            return _tpu(split, ifrt, layers, budget)
        fields = fields_of(split.pieces, budget)
    else:
        layers.append("proto")
        fields = wire.walk(outer, budget)
    messages: dict[int, memoryview] = {}
    for number, wire_type, value in fields:
        if wire_type == wire.BYTES and isinstance(value, memoryview):
            messages[number] = value
    if (executable := messages.get(1)) is None:
        raise WireError("no executable in it")
    if executable[:8] == riegeli.MAGIC:
        split = riegeli.read_split_message(executable, budget, check=check)
        layers.append(_layer(split))
        parts = tuple(fields_of(split.pieces, budget))
        platform: Platform = "gpu" if split.type_name == _GPU_TYPE else tell_platform(parts)
    else:
        parts = tuple(wire.walk(executable, budget))
        platform = tell_platform(parts)
    return Envelope(platform, ifrt, parts, messages.get(2), "+".join(layers))


def fields_of(pieces: Iterable[Piece], budget: Budget) -> Iterator[Field]:
    """Yield the fields of a message in pieces, in order."""
    for piece in pieces:
        if isinstance(piece, Field):
            yield piece
        else:
            yield from wire.walk(piece, budget)


def tell_platform(fields: Iterable[Field]) -> Platform:
    """Tell a CPU result from a GPU result, whose fields 1 to 6 share their numbers.

    By wire types and magic numbers alone: both parse as either.
    """
    votes: set[Platform] = set()
    for number, wire_type, value in fields:
        if number == 5 and wire_type == wire.VARINT:
            return "cpu"
        if not isinstance(value, memoryview):
            continue
        if number == 4 and value[:4] == _ELF_MAGIC:
            votes.add("gpu" if int.from_bytes(value[18:20], "little") in _GPU_MACHINES else "cpu")
        elif number == 3 and _PTX_MARK in bytes(value[:_PTX_MARK_WITHIN]):
            votes.add("gpu")
        elif number in (8, 9):
            votes.add("cpu")
    return votes.pop() if len(votes) == 1 else "unknown"


def _split_ifrt(payload: memoryview) -> tuple[memoryview | None, memoryview]:
    """Cut off the length-prefixed metadata that JAX 0.9.2 and later put in front."""
    size, at = wire.read_varint(payload, 0)
    meta = payload[at : at + size]
    if len(meta) == size and _IFRT_MARK in bytes(meta[:_IFRT_MARK_WITHIN]):
        return meta, payload[at + size :]
    return None, payload


def _tpu(
    split: riegeli.SplitMessage, ifrt: memoryview | None, layers: list[str], budget: Budget
) -> Envelope:
    """A TPU result holds module and options itself: put the module where the others have it."""
    parts: list[Field] = []
    options: memoryview | None = None
    for field in fields_of(split.pieces, budget):
        if field.number == 2:
            parts.append(field._replace(number=1))
        elif field.number == 4 and isinstance(field.value, memoryview):
            options = field.value
    return Envelope("tpu", ifrt, tuple(parts), options, "+".join(layers))


def _layer(split: riegeli.SplitMessage) -> str:
    return "riegeli" if split.compression == "none" else f"riegeli({split.compression})"
