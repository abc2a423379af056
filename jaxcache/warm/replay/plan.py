"""Which requests of a recipe are compiled, in which order, and which cannot be."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jaxcache.cache.bundle.compat import version_tuple
from jaxcache.cache.recipe.format import RecipeFile
from jaxcache.cache.recipe.model import Environment, Request
from jaxcache.entry.options import read_options
from jaxcache.entry.wire import Budget, WireError
from jaxcache.errors import UsageError

#: Flags that JAX leaves out of keys (``xla_flags_to_exclude_from_cache_key`` in
#: jax/_src/cache_key.py): they do not reach a worker, so what they say does not matter.
_LEFT_OUT = re.compile(
    r"-*(xla_dump_\w+|xla_gpu_cuda_data_dir|xla_force_host_platform_device_count)"
)
#: Paths that a worker sets anew.
_REPLACED = frozenset({
    "xla_gpu_cuda_data_dir", "xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_kernel_cache_file",
    "xla_dump_to",
})  # fmt: skip
#: Seconds per byte of bytecode where nothing at all is known; measured on a small transformer.
_SECONDS_PER_BYTE = 2e-4
_LEAST_SECONDS = 0.01
#: The first JAX whose executables may have host callbacks that are given to them when loaded.
_CALLBACKS_SINCE = (0, 12)

#: Why a request cannot be compiled from a recipe, in a sentence.
REFUSALS = {
    "host-callbacks": "it calls back into the Python that recorded it; compiled without, it would "
    "make later runs crash on JAX before 0.12",
    "custom-partitioning": "it holds a pointer to a partitioner of the process that recorded it",
    "pgle": "it was compiled with a profile (PGLE), which is not in the recipe",
    "flags-file": "XLA_FLAGS names a file, which is not in the recipe",
    "path-in-flags": "its XLA flags name a path, which need not mean the same here",
    "unreadable-options": "its compile options cannot be read",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One request to compile."""

    request: Request
    environment: Environment
    seconds: float
    """What it is going to take, as recorded, or guessed from its size."""


@dataclass(frozen=True, slots=True)
class Refused:
    """One request that is not compiled."""

    request: Request
    reason: str
    """One of :data:`REFUSALS`."""


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """What is going to be compiled."""

    jobs: tuple[Job, ...]
    """Longest first."""
    refused: tuple[Refused, ...]
    environments: tuple[Environment, ...]
    """All of the recipe: a program of several processes needs them all."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several machines that split a recipe."""

    number: int
    """From 1."""
    count: int


def parse_shard(text: str) -> Shard:
    """Read ``2/4``: the second of four.

    Raises:
        UsageError: ``bad-shard``.
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    shard = Shard(int(match[1]), int(match[2])) if match else Shard(0, 0)
    if not 1 <= shard.number <= shard.count:
        raise UsageError(
            f"{text} is no shard", code="bad-shard", hint="the first of four is 1/4, the last 4/4"
        )
    return shard


def plan_compile(file: RecipeFile, *, shard: Shard | None = None) -> CompilePlan:
    """Decide what is compiled.

    Args:
        shard: compile only this part; the parts depend on the recipe alone.
    """
    recipe = file.recipe
    refused, kept = [], []
    for request in recipe.requests:
        reason = refuse(request, recipe.environment_of(request), file.blob)
        if reason:
            refused.append(Refused(request, reason))
        else:
            kept.append(request)
    rate = _seconds_per_byte(kept, file)
    jobs = [
        Job(r, recipe.environment_of(r), _seconds(r, rate * file.blob_bytes(r.bytecode)))
        for r in kept
    ]
    jobs.sort(key=lambda j: (-j.seconds, j.request.name, j.request.bytecode, j.request.environment))
    if shard is not None:
        jobs = _shards(jobs, shard.count)[shard.number - 1]
    return CompilePlan(tuple(jobs), tuple(refused), recipe.environments)


def _seconds_per_byte(requests: Sequence[Request], file: RecipeFile) -> float:
    known = [r for r in requests if r.compile_seconds is not None]
    size_bytes = sum(file.blob_bytes(r.bytecode) for r in known)
    seconds = sum(r.compile_seconds or 0.0 for r in known)
    return seconds / size_bytes if size_bytes and seconds else _SECONDS_PER_BYTE


def _seconds(request: Request, guess: float) -> float:
    return max(
        guess if request.compile_seconds is None else request.compile_seconds, _LEAST_SECONDS
    )


def _shards(jobs: Iterable[Job], count: int) -> list[list[Job]]:
    """Give each job, longest first, to the shard that has least to do; of equals, to the first."""
    shards: list[list[Job]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for job in jobs:
        least = loads.index(min(loads))
        shards[least].append(job)
        # Whole milliseconds: sums of floats in another order may differ by a bit.
        loads[least] += round(job.seconds * 1000)
    return shards


def refuse(request: Request, environment: Environment, blob: Callable[[str], bytes]) -> str | None:
    """Why a request cannot be compiled; a key of :data:`REFUSALS`, or None if it can.

    Args:
        blob: gives the bytes of the options.
    """
    for reason in request.refusals:
        if reason in REFUSALS:
            return reason
    if request.callbacks and version_tuple(environment.jax_version) < _CALLBACKS_SINCE:
        return "host-callbacks"
    flags = (*environment.xla_flags, *environment.libtpu_init_args, *environment.argv_flags)
    if not all(f.startswith("--") for f in flags):
        return "flags-file"
    if any("/" in f and not _LEFT_OUT.match(f) for f in flags):
        return "path-in-flags"
    try:
        options = read_options(memoryview(blob(request.options)), None, Budget()).flags or {}
    except (WireError, ValueError):
        return "unreadable-options"
    paths = (n for n, v in options.items() if isinstance(v, str) and "/" in v)
    if any(n not in _REPLACED and not _LEFT_OUT.match(n) for n in paths):
        return "path-in-flags"
    return None


def kept_flags(flags: Iterable[str]) -> list[str]:
    """The flags that a worker is given: those that enter keys."""
    return [f for f in flags if not _LEFT_OUT.match(f)]
