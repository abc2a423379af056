"""Compile options, and which XLA flags differ from their defaults."""

import json
import posixpath
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from jaxcache.core import wire
from jaxcache.core.remote import SERVICES
from jaxcache.core.wire import Budget, WireError
from jaxcache.entry.contents import XlaCompileOptions
from jaxcache.entry.messages import parse

#: ``xla_gpu_kernel_cache_file`` and ``xla_gpu_per_fusion_autotune_cache_dir``: JAX 0.4.36 and
#: later sets them to paths inside the cache directory.
PATHS_IN_CACHE = (306, 310)
#: Options that JAX or PJRT always set by themselves (jax/_src/compiler.py
#: of 0.10.2): xla_gpu_cuda_data_dir, xla_detailed_logging, LLVM parallelism (with a kernel
#: cache), xla_gpu_experimental_autotune_cache_mode, xla_pjrt_allow_auto_layout_in_hlo.
_SET_BY_JAX = frozenset({61, 252, 268, 324, 344, *PATHS_IN_CACHE})
#: ``fdo_profile`` of ExecutableBuildOptionsProto (xla/pjrt/proto/compile_options.proto).
_FDO_PROFILE = 14
#: Larger assignments are damage.
_MAX_REPLICAS = 1 << 16
#: An entry with more unusual flags than this was made by a version whose defaults are not known.
_MAX_CHANGES = 12

#: Flags by which two compiles of one XLA may differ in what they write at all.
_LOOSE_FLAGS = 4
#: Larger messages are parsed each time; those of 0.12 have 4 kB.
_MAX_REMEMBERED_BYTES = 64 << 10

_T = TypeVar("_T")
_Values = dict[int, tuple[str, ...]]
FlagValue = str | int | float | bool | None


class OptionFacts(NamedTuple):
    """The facts in the compile options of an entry."""

    compile_options: XlaCompileOptions
    written_in_cache_dir: str | None
    flags: dict[str, FlagValue] | None
    """Return every XLA flag by name, as written; None if the options contain none."""
    like_jaxlib: str | None
    """The known jaxlib whose default flags are nearest to these."""


def read_options(
    options: memoryview | None, config: memoryview | None, budget: Budget
) -> OptionFacts:
    """Read CompileOptionsProto and HloModuleConfigProto, of which either may be missing.

    Raises:
        WireError: one of them does not parse.
    """
    if options is None:
        requested = _RequestedOptions(guided=None)
    else:
        requested = _read_once(_read_requested, options, budget)
    debug, replicas, partitions, assignment, guided, overrides = requested
    if config is not None:
        for number, _, value in wire.walk(config, budget):
            if number == 14 and isinstance(value, memoryview):
                debug = value
            elif number == 4 and isinstance(value, int):
                replicas = replicas or value
            elif number == 5 and isinstance(value, int):
                partitions = partitions or value
    if debug is None:
        compile_options = XlaCompileOptions(
            replicas, partitions, assignment, {**overrides} or None, guided
        )
        return OptionFacts(compile_options, None, None, None)
    changed, written_in, named, like = _read_once(_read_flags, debug, budget)
    shown = {**overrides} or None if changed is None else {**changed, **overrides}
    compile_options = XlaCompileOptions(replicas, partitions, assignment, shown, guided)
    return OptionFacts(compile_options, written_in, {**named, **overrides}, like)


class _RequestedOptions(NamedTuple):
    """The contents of CompileOptionsProto."""

    debug: memoryview | None = None
    replicas: int | None = None
    partitions: int | None = None
    assignment: tuple[tuple[int, ...], ...] | None = None
    guided: bool | None = False
    overrides: Mapping[str, FlagValue] = {}


def _read_requested(options: memoryview, budget: Budget) -> _RequestedOptions:
    values: dict[str, Any] = {}
    overrides: dict[str, FlagValue] = {}
    for number, _, value in wire.walk(options, budget):
        if number == 3 and isinstance(value, memoryview):
            for inner in wire.walk(value, budget):
                if inner.number == 3 and isinstance(inner.value, memoryview):
                    values["debug"] = inner.value
                elif inner.number == 4 and isinstance(inner.value, int):
                    values["replicas"] = inner.value
                elif inner.number == 5 and isinstance(inner.value, int):
                    values["partitions"] = inner.value
                elif inner.number == 9 and isinstance(inner.value, memoryview):
                    values["assignment"] = _assignment(inner.value)
                elif inner.number == _FDO_PROFILE and isinstance(inner.value, memoryview):
                    values["guided"] = len(inner.value) > 0
        elif number == 7 and isinstance(value, memoryview):
            name, chosen = option_override(value)
            overrides[name] = chosen
    return _RequestedOptions(overrides=overrides, **values)


_Flags = tuple[dict[str, FlagValue] | None, str | None, dict[str, FlagValue], str | None]


def _read_flags(debug: memoryview, budget: Budget) -> _Flags:
    """Changed flags, the cache directory, every flag, and the jaxlib that they are nearest to."""
    values = flag_values(debug, budget)
    like, changed = _nearest(values)
    shown = None if changed is None else _named(values, changed)
    return shown, _cache_dir(values), _named(values, values), like


def _read_once(read: Callable[[memoryview, Budget], _T], data: memoryview, budget: Budget) -> _T:
    """Read a message once for all entries of a cache that were compiled with the same options."""
    if len(data) > _MAX_REMEMBERED_BYTES:
        return read(data, budget)
    remembered: _T = _remembered(read, bytes(data))
    return remembered


@lru_cache(maxsize=128)
def _remembered(read: Callable[[memoryview, Budget], _T], data: bytes) -> _T:
    return read(memoryview(data), Budget())


def _assignment(data: memoryview) -> tuple[tuple[int, ...], ...]:
    """Devices by replica, then partition; the message holds them the other way round."""
    message = parse("DeviceAssignment", data)
    columns = [c.replica_device_ids for c in message.computation_devices]
    rows = message.replica_count
    if not 0 <= rows <= _MAX_REPLICAS or any(len(c) != rows for c in columns):
        raise WireError("a device assignment that is not a matrix")
    return tuple(tuple(column[i] for column in columns) for i in range(rows))


def option_override(data: memoryview) -> tuple[str, FlagValue]:
    """Name and value of one of ``env_option_overrides``."""
    message = parse("OptionOverride", data)
    chosen: FlagValue = None
    for descriptor, value in message.value.ListFields():
        chosen = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
        if descriptor.name == "bool_field":
            chosen = bool(value)
    return message.key.decode("utf-8", "backslashreplace"), chosen


def flag_values(debug: memoryview, budget: Budget | None = None) -> _Values:
    """DebugOptions: number to values, each as ``i7``, ``f1.5``, ``d1.5`` or ``x`` and hexadecimals.

    Raises:
        WireError: it is not a message.
    """
    budget = budget or Budget()
    values: dict[int, list[str]] = {}
    for number, wire_type, value in wire.walk(debug, budget):
        if isinstance(value, int):
            text = f"i{value - (1 << 64) if value >> 63 else value}"
        elif wire_type == wire.FIXED32:
            text = f"f{struct.unpack('<f', value)[0]:.9g}"
        elif wire_type == wire.FIXED64:
            text = f"d{struct.unpack('<d', value)[0]!r}"
        else:
            text = "x" + bytes(value[:4096]).hex()
        values.setdefault(number, []).append(text)
    return {number: tuple(sorted(texts)) for number, texts in values.items()}


def _nearest(values: _Values) -> tuple[str | None, set[int] | None]:
    """The known version whose defaults are nearest, and the options that differ from them.

    The options are None where so many differ that the version's own defaults are not known.
    """
    distances = ((_differing(values, d), version) for version, d in known_defaults().items())
    changed, version = min(distances, key=lambda f: len(f[0]), default=(set(), None))
    return version, changed if version and len(changed) <= _MAX_CHANGES else None


def _named(values: _Values, numbers: Iterable[int]) -> dict[str, FlagValue]:
    names = flag_names()
    return {names.get(n, f"#{n}"): _show(values.get(n)) for n in sorted(numbers)}


def _differing(values: _Values, defaults: _Values) -> set[int]:
    numbers = {n for n in values.keys() | defaults.keys() if values.get(n) != defaults.get(n)}
    return numbers - _SET_BY_JAX


def _show(texts: tuple[str, ...] | None) -> FlagValue:
    if texts is None:
        return None  # set to what counts as absent: false, 0 or empty
    shown = [_show_one(t) for t in texts]
    return shown[0] if len(shown) == 1 else ", ".join(map(str, shown))


def _show_one(text: str) -> str | int | float:
    kind = text[0]
    value = text[1:]
    if kind == "i":
        return int(value)
    if kind in "fd":
        return float(value)
    data = bytes.fromhex(value)
    try:
        decoded = data.decode("utf-8")
    except UnicodeDecodeError:
        decoded = "\0"
    return decoded if decoded.isprintable() else f"0x{value}"


def _cache_dir(values: _Values) -> str | None:
    """The cache directory, from the paths that JAX derives from it."""
    for number in PATHS_IN_CACHE[::-1]:
        for text in values.get(number, ()):
            if text.startswith("x") and (path := bytes.fromhex(text[1:])):
                directory = posixpath.dirname(path.decode("utf-8", "backslashreplace"))
                return _restore_url(directory) or None
    return None


def _restore_url(path: str) -> str:
    """Return a URL as the user wrote it: JAX makes ``s3:/team`` of it, by way of pathlib."""
    scheme, colon, path_part = path.partition(":/")
    is_url = colon and scheme in SERVICES and not path_part.startswith("/")
    return f"{scheme}://{path_part}" if is_url else path


@cache
def flag_names() -> dict[int, str]:
    """Numbers of XLA's debug options (xla/xla.proto) to their names."""
    return {int(number): name for number, name in _load("xla_flags.json").items()}


def same_generation(left: Iterable[str], right: Iterable[str]) -> bool:
    """Whether one XLA may have written both sets of flags.

    XLA writes nearly every flag that it has, so the names alone identify its version; a few appear
    only if they are set. The releases that are known here differ by seven names or more.
    """
    return len(set(left) ^ set(right)) <= _LOOSE_FLAGS


@cache
def nearest_version(flags: frozenset[str]) -> str | None:
    """The known jaxlib that writes just these flags; None where none of the known ones does."""
    distances = {v: len(flags ^ default_flags(v)) for v in known_defaults()}
    best = min(distances, key=lambda v: distances[v], default=None)
    return best if best is not None and distances[best] <= _LOOSE_FLAGS else None


def default_flags(version: str | None) -> frozenset[str]:
    """Return the flags that a known jaxlib writes; none for one that is not known."""
    names = flag_names()
    return frozenset(names.get(n, f"#{n}") for n in known_defaults().get(version or "", ()))


@cache
def known_defaults() -> dict[str, _Values]:
    """Return the debug options that each known jaxlib writes by default."""
    return {
        version: {int(n): tuple(v) if isinstance(v, list) else (v,) for n, v in values.items()}
        for version, values in _load("xla_defaults.json").items()
    }


def _load(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text("utf-8"))
