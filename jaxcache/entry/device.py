"""The device that an executable was compiled for."""

import re
from collections.abc import Iterator

from jaxcache.entry import wire
from jaxcache.entry.contents import Device
from jaxcache.entry.envelope import Envelope
from jaxcache.entry.schema import parse
from jaxcache.entry.wire import Budget

#: ``FeatureExtension`` of xla/stream_executor/cuda: the letter behind the capability.
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
#: Where a kernel's cubin lies in the thunks of a GPU executable (0.10.2 and later).
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
    for number, value in _bytes_fields(envelope):
        if number == 4 and value[:4] == _ELF_MAGIC:
            code += len(value)
        elif number == 8:
            contents = wire.first_bytes(value, 1, budget)
            code += len(contents) if contents is not None else 0
        elif number == 9:
            target = parse("CpuTarget", value)
            triple = _text(target.triple)
            name = _text(target.cpu)
            features = tuple((_text(target.features) or "").split(",")) if target.features else ()
    device = Device("cpu", cpu_triple=triple, cpu_name=name, cpu_features=features)
    return device, code


def _gpu(envelope: Envelope, budget: Budget) -> tuple[Device, int]:
    code = 0
    fields: dict[str, str | None] = {}
    for number, value in _bytes_fields(envelope):
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
    """The generation, which the ABI in the metadata in front tells (0.12 and later)."""
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


def _bytes_fields(envelope: Envelope) -> Iterator[tuple[int, memoryview]]:
    for number, wire_type, value in envelope.executable:
        if wire_type == wire.BYTES and isinstance(value, memoryview):
            yield number, value


def _descend(data: memoryview, path: tuple[int, ...], budget: Budget) -> Iterator[memoryview]:
    """The bytes at a path of field numbers, over all repetitions."""
    if not path:
        yield data
        return
    for number, wire_type, value in wire.walk(data, budget):
        if number == path[0] and wire_type == wire.BYTES and isinstance(value, memoryview):
            yield from _descend(value, path[1:], budget)


def _text(data: bytes) -> str | None:
    return data[:8192].decode("utf-8", "backslashreplace") or None
