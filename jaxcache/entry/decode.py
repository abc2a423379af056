"""From the payload of an entry to :class:`Contents`, with its device; damage becomes findings."""

import contextlib
import hashlib
import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any, BinaryIO, Literal

from jaxcache.core import wire
from jaxcache.core.names import HEADER_BYTES, max_payload_bytes, same_module
from jaxcache.core.wire import Budget, WireError
from jaxcache.entry.codec import CodecError, check_header, decompress_chunks, detect_codec
from jaxcache.entry.contents import Contents, Device, EntryFormat, Memory
from jaxcache.entry.envelope import Envelope, open_envelope
from jaxcache.entry.hlo import ModuleReader
from jaxcache.entry.messages import WHOLE_BYTES, parse
from jaxcache.entry.options import read_options
from jaxcache.model import ProblemKind

#: ``FeatureExtension`` of xla/stream_executor/cuda: the letter after the capability.
_EXTENSIONS = {2: "a", 3: "f"}
_GPU_ABI = b"xla::GpuXlaExecutableAbiVersion"
_TPU_ABI = b"xla::TpuXlaExecutableAbiVersion"
#: Generation and variant to JAX's ``device_kind``, as libtpu 0.0.51 compiled for each of them.
_TPU_KINDS = {
    (1, b""): "TPU v2",
    (2, b""): "TPU v3",
    (3, b""): "TPU v4",
    (4, b""): "TPU v5",
    (4, b"lite"): "TPU v5 lite",
    (5, b""): "TPU v6 lite",
}
_PTX_TARGET = re.compile(rb"^\.target\s+sm_(\d+)(\d)([af]?)\b", re.MULTILINE)
_PTX_HEAD_BYTES = 4096
_ELF_MAGIC = b"\x7fELF"
#: The path of a kernel's cubin in the thunks of a GPU executable (0.10.2 and later).
_CUBIN_PATH = (36, 3, 2, 2, 1)


def read_device(envelope: Envelope, budget: Budget) -> tuple[Device, int | None]:
    """The device, and how many bytes of machine code there are for it (None: cannot be known).

    Raises:
        WireError: the fields are not what that platform's are.
    """
    if envelope.platform == "cpu":
        return _cpu(envelope, budget)
    if envelope.platform == "gpu":
        return _gpu(envelope, budget)
    if envelope.platform == "tpu":
        return _tpu(envelope), None
    return Device(envelope.platform), None


def _cpu(envelope: Envelope, budget: Budget) -> tuple[Device, int]:
    code = 0
    triple = name = None
    features: tuple[str, ...] | None = None
    for number, value in wire.bytes_fields(envelope.executable):
        if number == 4 and value[:4] == _ELF_MAGIC:
            code += len(value)
        elif number == 8:
            contents = wire.first_bytes(value, 1, budget)
            code += len(contents) if contents is not None else 0
        elif number == 9:
            triple, name, features = _cpu_target(bytes(value))
    device = Device("cpu", cpu_triple=triple, cpu_name=name, cpu_features=features)
    return device, code


@lru_cache(maxsize=64)
def _cpu_target(data: bytes) -> tuple[str | None, str | None, tuple[str, ...]]:
    """Triple, name and features of a CPU, once for all entries that were compiled for it."""
    target = parse("CpuTarget", data)
    features = (_text(target.features) or "").split(",") if target.features else ()
    return _text(target.triple), _text(target.cpu), tuple(features)


def _gpu(envelope: Envelope, budget: Budget) -> tuple[Device, int]:
    code = 0
    fields: dict[str, str | None] = {}
    for number, value in wire.bytes_fields(envelope.executable):
        if number == 3:
            code += len(value)
            if match := _PTX_TARGET.search(bytes(value[:_PTX_HEAD_BYTES])):
                major, minor, letter = (g.decode() for g in match.groups())
                fields.setdefault("compute_capability", f"{major}.{minor}{letter}")
        elif number == 4:
            code += len(value)
        elif number == 6:
            fields["compute_capability"] = _capability(value)
        elif number == 13:
            code += sum(len(v) for v in _descend(value, _CUBIN_PATH, budget))
        elif number == 14:
            versions = parse("GpuAbi", value).versions
            fields |= {"toolkit": _text(versions.toolkit), "cudnn": _text(versions.cudnn)}
        elif number == 15:
            host = parse("CpuTarget", value)
            fields |= {"cpu_triple": _text(host.triple), "cpu_name": _text(host.cpu)}
        elif number == 17:
            config = parse("GpuTopology", value).target_config
            name = _text(config.device.model_name) or _text(config.name)
            fields |= {"name": name} if name else {}
            if config.device.cudnn_version and not fields.get("cudnn"):
                fields["cudnn"] = _text(config.device.cudnn_version)
    return Device("gpu", **fields), code  # type: ignore[arg-type]


def _tpu(envelope: Envelope) -> Device:
    """Return the generation, from the ABI in the metadata in front (0.12 and later)."""
    executable = parse("IfrtMeta", envelope.ifrt or b"").abi.executable
    if executable.type_name != _TPU_ABI:
        return Device("tpu")
    abi = parse("TpuAbi", parse("XlaExecutableAbi", executable.value).target)
    return Device("tpu", name=_TPU_KINDS.get((abi.generation, abi.variant)))


def _capability(data: memoryview) -> str | None:
    capability = parse("ComputeCapability", data)
    if capability.HasField("rocm"):
        return _text(capability.rocm.gcn_arch_name)
    if not capability.HasField("cuda"):
        return None
    cuda = capability.cuda
    return f"{cuda.major}.{cuda.minor}{_EXTENSIONS.get(cuda.feature_extension, '')}"


def describe_abi(ifrt: memoryview) -> tuple[int | None, str | None]:
    """IFRT's version, and the executable's ABI as text, from the metadata in front.

    Raises:
        WireError: it does not parse.
    """
    meta = parse("IfrtMeta", ifrt)
    version = meta.version if meta.HasField("version") else 0
    executable = meta.abi.executable
    if not executable.type_name:
        return version, None
    words = [_text(executable.type_name)]
    if executable.type_name != _GPU_ABI:
        return version, words[0]
    gpu = parse("GpuAbi", parse("XlaExecutableAbi", executable.value).target)
    words.append(_text(gpu.platform))
    for label, value in (
        ("", gpu.versions.toolkit),
        ("cuDNN ", gpu.versions.cudnn),
        ("CUB ", gpu.versions.cub),
    ):
        words.append(f"{label}{_text(value)}" if value else None)
    return version, " ".join(w for w in words if w)


def _descend(data: memoryview, path: tuple[int, ...], budget: Budget) -> Iterator[memoryview]:
    """The bytes at a path of field numbers, over all repetitions."""
    if not path:
        yield data
        return
    for value in wire.select(wire.walk(data, budget), path[0]):
        yield from _descend(value, path[1:], budget)


def _text(data: bytes) -> str | None:
    return data[:8192].decode("utf-8", "backslashreplace") or None


_Findings = list[tuple[ProblemKind, str]]


#: How much of a payload is decoded. ``structure`` checks all, counts nothing, and leaves what
#: ``origin`` reads alone, without a check of hashes: the compiler and the target. ``program`` is
#: program, source and device, without that check, at a sixth of the cost.
Parts = Literal["all", "structure", "origin", "program"]


def decode_payload(
    payload: bytes | bytearray | memoryview,
    module: str | None = None,
    *,
    parts: Parts = "all",
    check: bool = True,
) -> Contents:
    """Decode a serialized executable; nothing is raised for what it holds.

    Parts that do not decode are left out, with a finding ``bad-payload``.

    Args:
        payload: as :mod:`jaxcache.entry.codec` gives it, without the 4-byte header.
        module: the name that it should have; another one is a finding ``module-mismatch``.
        check: also check the hashes inside (GPU and TPU entries of JAX 0.10.2 and later).
    """
    findings: _Findings = []
    budget = Budget()
    check = check and parts in ("all", "structure")
    try:
        envelope = open_envelope(memoryview(payload), budget, check=check)
    except WireError as error:
        return Contents(problems=((error.kind, str(error)),))
    if envelope.platform == "unknown":
        findings.append(("bad-payload", "neither a CPU, a GPU nor a TPU executable"))
    return _Decoder(envelope, budget, findings).contents(module, parts)


def find_hlo_module(payload: bytes | bytearray | memoryview) -> memoryview:
    """The ``HloModuleProto`` of a payload, not copied.

    Raises:
        WireError: it has none.
    """
    budget = Budget()
    envelope = open_envelope(memoryview(payload), budget)
    findings: _Findings = []
    module, _ = _Decoder(envelope, budget, findings).hlo()
    if module is None:
        raise WireError(findings[0][1] if findings else "no HLO module in it")
    return module


class _Decoder:
    def __init__(self, envelope: Envelope, budget: Budget, findings: _Findings) -> None:
        self._envelope = envelope
        self._budget = budget
        self._found = findings

    def contents(self, module: str | None, parts: Parts) -> Contents:
        envelope = self._envelope
        counts = parts != "structure"
        hlo, config = self.hlo()
        facts: dict[str, Any] = {"device": Device(envelope.platform)}
        code_bytes = None
        if parts != "origin":
            with self._finding("the HLO module"):
                if hlo is None:
                    raise WireError("none")
                reader = ModuleReader(hlo, self._budget, counts=counts)
                facts |= {"program": reader.program, "source": reader.source}
                if module and not same_module(name := reader.program.module, module):
                    detail = f"holds {name!r}, but the file name has {module!r}"
                    self._found.append(("module-mismatch", detail))
        with self._finding("the target"):
            facts["device"], code_bytes = read_device(envelope, self._budget)
        if parts in ("all", "structure"):
            facts["memory"] = Memory(code_bytes=code_bytes)
            with self._finding("the buffer assignment"):
                if envelope.platform in ("cpu", "gpu"):
                    buffers = self._buffers()
                    if counts:
                        facts["memory"] = sum_buffers(buffers, code_bytes)
                    else:
                        deque(buffers, maxlen=0)
        if parts != "program":
            with self._finding("the compile options"):
                facts |= read_options(envelope.options, config, self._budget)._asdict()
            version = abi = None
            with self._finding("the IFRT metadata"):
                if envelope.ifrt is not None:
                    version, abi = describe_abi(envelope.ifrt)
            facts["format"] = EntryFormat(version, abi, envelope.container)
        return Contents(**facts, problems=tuple(self._found))

    @contextlib.contextmanager
    def _finding(self, part: str) -> Iterator[None]:
        """Turn damage in one part into a finding, so that the others are still read."""
        try:
            yield
        except (WireError, RecursionError) as error:
            self._found.append(("bad-payload", f"{part}: {error}"))

    def hlo(self) -> tuple[memoryview | None, memoryview | None]:
        """HloModuleProto and HloModuleConfigProto."""
        messages: dict[int, memoryview] = {}
        with self._finding("the HLO module"):
            for data in self._parts(1):
                messages.update(wire.bytes_fields(wire.walk(data, self._budget)))
        return messages.get(1), messages.get(2)

    def _buffers(self) -> Iterator[Any]:
        """The BufferAllocation messages: GPU 0.10.2 and later lists them apart."""
        if self._envelope.platform == "gpu":
            apart = self._allocations(10, "BufferAllocations", 1)
            if (first := next(apart, None)) is not None:
                yield first
                yield from apart
                return
        yield from self._allocations(2, "BufferAssignment", 3)

    def _allocations(self, part: int, name: str, number: int) -> Iterator[Any]:
        for message in self._parts(part):
            if len(message) <= WHOLE_BYTES:
                yield from parse(name, message).allocations
                continue
            for allocation in wire.select(wire.walk(message, self._budget), number):
                yield parse("BufferAllocation", allocation)

    def _parts(self, number: int) -> Iterable[memoryview]:
        return wire.select(self._envelope.executable, number)


def sum_buffers(allocations: Iterable[Any], code_bytes: int | None) -> Memory:
    """Sum the ``BufferAllocation`` messages of a program, as XLA does for ``memory_analysis()``.

    An argument that is also an output is aliased: 0.6.2 and later record it, before it follows.
    Source: ``CompiledMemoryStats`` in xla/pjrt/pjrt_executable.cc.

    Raises:
        WireError: one of them does not parse.
    """
    argument = output = temp = alias = constant = 0
    for buffer in allocations:
        size = max(buffer.size, 0)
        is_argument = buffer.is_entry_computation_parameter
        if is_argument:
            argument += size
            if buffer.maybe_live_out or buffer.is_parameter_aliased_with_output:
                alias += size
        if buffer.maybe_live_out:
            output += size
        if buffer.is_constant:
            constant += size
        elif not (is_argument or buffer.maybe_live_out or buffer.is_thread_local):
            temp += size
    return Memory(argument, output, temp, alias, constant, code_bytes)


class OpenPayload:
    """The payload of an entry: the facts in its header, then its bytes, checked as they come.

    Args:
        file: seekable, the whole entry; no other code seeks in it meanwhile.
        size_bytes: its size, which bounds what it may announce.
        limit: refuse a payload of more bytes.
        hashed: take its SHA-256 on the way.

    Raises:
        CodecError: empty, damaged, truncated, or followed by other bytes.
    """

    def __init__(
        self, file: BinaryIO, size_bytes: int, *, limit: int | None = None, hashed: bool = True
    ) -> None:
        file.seek(0)
        self.codec = detect_codec(file.read(HEADER_BYTES))
        self._limit = limit
        self._file_bytes = size_bytes
        self._chunks = decompress_chunks(file, size_bytes)
        first = b""
        while len(first) < HEADER_BYTES and (chunk := next(self._chunks, b"")):
            first += chunk
        self.compile_seconds = check_header(first)
        self._first = first
        self._hash = hashlib.sha256() if hashed else None
        self.size_bytes = 0
        """The size of the payload, as far as it was read."""

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the payload once, at most 256 KiB at a time.

        Raises:
            CodecError: damaged, or larger than the limit (``bad-payload``).
        """
        chunks: Iterator[bytes] = chain((self._first[HEADER_BYTES:],), self._chunks)
        for chunk in chunks:
            self.size_bytes += len(chunk)
            if self._limit is not None and self.size_bytes > self._limit:
                detail = f"{self._file_bytes} bytes inflate to more than {self._limit}"
                raise CodecError("bad-payload", f"{detail}, which is not read")
            if self._hash is not None:
                self._hash.update(chunk)
            yield memoryview(chunk)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the bytes read so far."""
        return self._hash.hexdigest() if self._hash is not None else ""


def read_payload(file: BinaryIO, size_bytes: int, *, limit: int | None = None) -> bytearray:
    """Decompress an entry, without its 4-byte header.

    Memory stays within 1.2 times the payload.

    Args:
        file: seekable, the whole entry.
        size_bytes: its size.
        limit: of the payload; :func:`max_payload_bytes` by default.

    Raises:
        CodecError: damaged, or inflating beyond those bounds (``bad-payload``).
    """
    payload = bytearray()
    limit = max_payload_bytes(size_bytes) if limit is None else limit
    for chunk in OpenPayload(file, size_bytes, limit=limit, hashed=False):
        payload += chunk
    return payload


def read_contents(
    file: BinaryIO,
    size_bytes: int,
    module: str | None = None,
    *,
    parts: Parts = "all",
    check: bool = True,
) -> Contents:
    """Decode an entry; damage of any kind becomes findings.

    Args:
        file: seekable, the whole entry.
        size_bytes: its size.
        module, parts, check: see :func:`decode_payload`.
    """
    try:
        payload = read_payload(file, size_bytes)
    except CodecError as error:
        return Contents(problems=((error.kind, error.detail),))
    return decode_payload(payload, module, parts=parts, check=check)
