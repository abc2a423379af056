"""``xla_gpu_kernel_cache_file``: XLA's cache of compiled GPU kernels, one file for all modules.

Source: ``CompilationCacheProto`` in xla/service/gpu/kernel_reuse_cache.proto.
"""

from dataclasses import dataclass

from jaxcache.entry import wire
from jaxcache.entry.wire import Budget, WireError, parse

_FINGERPRINT_BYTES = 80


@dataclass(frozen=True, slots=True)
class Kernel:
    """One compiled kernel."""

    name: str
    fingerprint: str
    """The kernel's source and launch, by which XLA finds it; its first line, shortened."""
    blocks: int | None
    """In the launch grid; None if the file does not contain it."""
    threads: int | None
    """Per block."""
    shared_memory_bytes: int
    code_bytes: int


@dataclass(frozen=True, slots=True)
class KernelCache:
    """The content of the file, kernels by name."""

    kernels: tuple[Kernel, ...]
    version: int | None
    """The version of the format (jaxlib 0.10.2 and later)."""
    problem: str | None = None
    """Why it could not be read to its end."""


def read_kernel_cache(data: bytes | memoryview) -> KernelCache:
    """Read a kernel cache; damage ends the list and is reported in it, not raised."""
    budget = Budget()
    kernels: list[Kernel] = []
    version = problem = None
    try:
        for number, _, value in wire.walk(memoryview(data), budget):
            if number == 1 and isinstance(value, memoryview):
                kernels.append(_read_kernel(value, budget))
            elif number == 2 and isinstance(value, int):
                version = value
    except WireError as error:
        problem = str(error)
    return KernelCache(tuple(sorted(kernels, key=lambda k: k.name)), version, problem)


def _read_kernel(entry: memoryview, budget: Budget) -> Kernel:
    """One entry of the map: 1 name, 2 kernel."""
    name = ""
    small = bytearray()
    code_bytes = 0
    for number, _, value in wire.walk(entry, budget):
        if number == 1 and isinstance(value, memoryview):
            name = bytes(value[:4096]).decode("utf-8", "backslashreplace")
        elif number == 2 and isinstance(value, memoryview):
            for inner in wire.walk(value, budget):
                if inner.number == 5 and isinstance(inner.value, memoryview):
                    code_bytes = len(inner.value)
                else:
                    small += wire.write_field(inner)
    kernel = parse("CachedKernel", bytes(small))
    has_launch = kernel.HasField("launch")
    fingerprint = kernel.fingerprint.split(b"\n", 1)[0][:_FINGERPRINT_BYTES]
    return Kernel(
        name,
        fingerprint.decode("utf-8", "backslashreplace"),
        kernel.launch.num_blocks if has_launch else None,
        kernel.launch.num_threads_per_block if has_launch else None,
        kernel.shared_memory_bytes,
        code_bytes,
    )
