"""Will the entries of a bundle hit here? Told from the manifest and a probe of the Python to use.

A probe is the entry that this jax writes for a trivial program (``warm/child/query.py``): what
the two have in common is what their keys have in common. JAX 0.4.36 to 0.10.x hashes the cache
directory into the key (``xla_gpu_per_fusion_autotune_cache_dir``); 0.11.0 and later do so only
where ``xla_gpu_kernel_cache_file`` is on.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple

from jaxcache.cache.allow_lists import kept_flags
from jaxcache.cache.bundle.manifest import Manifest, Origin
from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.move.items import Item, Step, bundle_items
from jaxcache.core.machine import hashes_path
from jaxcache.entry.codec import CodecError
from jaxcache.entry.contents import Contents
from jaxcache.entry.decode import decode_origin
from jaxcache.entry.read import read_payload
from jaxcache.store.base import Store, StoreError
from jaxcache.units import join_some, printable

XLA_CACHES = "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"
#: Of entries that --portable filled, or plain JAX under that setting; nothing tells which.
PORTABLE_REASON = f"needs {XLA_CACHES}=none"
PORTABLE_FIX = (
    f"set {XLA_CACHES}=none before the program starts, or start it with jaxcache run --portable"
)
#: Entries that a forecast reads of a cache: each takes milliseconds.
_LOOKED_AT = 32
_SHOWN_FEATURES = 4
_SHOWN_FLAGS = 3


class ForecastOutcome(StrEnum):
    """The forecast for an entry."""

    HIT = "hit"
    """No known reason against it."""
    MISS = "miss"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Host:
    """The jax that is going to use the cache."""

    python: str
    jax_version: str
    jaxlib_version: str
    codec: str
    origin: Origin
    """The origin of the entry that it wrote."""
    device_kind: str = ""
    """As JAX names it, such as ``NVIDIA H200`` or ``TPU v5e``."""
    platform_version: str = ""
    """As the backend reports it; on GPUs it holds the driver's and the toolkit's versions."""
    key: str = ""
    """JAX's own key of the entry that it wrote."""
    cpu_features: tuple[str, ...] | None = None
    """The CPU's, as its jaxlib reports them; the entries of jaxlib before 0.8.3 hold none."""
    xla_flags: tuple[str, ...] = ()
    """Those of ``XLA_FLAGS`` and ``LIBTPU_INIT_ARGS`` that JAX hashes, sorted."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast for one entry, and the reason."""

    key: str
    outlook: ForecastOutcome
    reason: str | None = None
    restore_to: str | None = None
    """The directory under which it would hit, where the directory is the only obstacle."""
    jax_version: str | None = None
    """The version of the jax that wrote it, or is to read it."""
    portable: bool = False
    """Its key lacks the directory that this jax puts into keys unless :data:`XLA_CACHES` is
    ``none``, as ``--portable`` sets it."""


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The forecasts for the entries of a bundle or a cache in one directory."""

    forecasts: tuple[Forecast, ...]
    host: Host | None
    cache_dir: str | None = None
    """None: any directory but their own."""
    entries: int = 0
    """Including those that were not looked at."""

    @property
    def counts(self) -> Mapping[ForecastOutcome, int]:
        """The number of entries by outlook."""
        return Counter(f.outlook for f in self.forecasts)

    @property
    def compatible(self) -> bool:
        """Return whether every entry can be expected to hit."""
        return all(f.outlook is ForecastOutcome.HIT for f in self.forecasts)


class _Known(NamedTuple):
    """The facts of an entry that a forecast needs."""

    key: str
    origin: Origin
    codec: str | None = None
    jax_version: str | None = None
    jaxlib_version: str | None = None
    xla_flags: str | None = None
    """As :attr:`Host.xla_flags`, in one text, by the ledger."""


def forecast(manifest: Manifest, host: Host | None, cache_dir: str | None) -> Compatibility:
    """Forecast which entries of a bundle will hit; see :func:`forecast_items`."""
    return forecast_items(bundle_items(manifest), host, cache_dir)


def forecast_items(
    items: Iterable[Item], host: Host | None, cache_dir: str | None
) -> Compatibility:
    """Forecast which entries will hit, of those whose contents are known.

    Args:
        host: None where no jax was asked.
        cache_dir: the directory as JAX is going to be given it, None for any but their own. JAX
            hashes it as it is spelt; of a relative one it is not known here whether JAX is given
            that or the whole path.
    """
    parts = [
        _Known(
            item.key,
            item.facts.origin or Origin(),
            item.facts.codec,
            _latest(item.events, "jax_version"),
            _latest(item.events, "jaxlib_version"),
            _latest(item.events, "xla_flags"),
        )
        for item in items
        if item.key is not None and item.facts is not None
    ]
    return _forecast_all(parts, host, cache_dir, len(parts))


def forecast_steps(store: Store, steps: Sequence[Step], cache_dir: str | None) -> Compatibility:
    """Forecast which entries of a cache will hit elsewhere, by some of them.

    An entry whose origin a move has found out is not read again.
    """
    steps = [step for step in steps if step.key is not None]
    ledger = Ledger.load(store)
    parts = []
    for step in steps[:: -(-len(steps) // _LOOKED_AT) or 1]:
        key = step.key or ""
        facts = step.item.facts
        origin = (facts and facts.origin) or _read_origin(store, step)
        record = ledger.record(key)
        parts.append(_Known(key, origin, jax_version=record.jax_version if record else None))
    return _forecast_all(parts, None, cache_dir, len(steps))


def _read_origin(store: Store, step: Step) -> Origin:
    try:
        with store.open(step.name) as opened:
            return make_origin(decode_origin(read_payload(opened, step.item.size_bytes)))
    except (CodecError, StoreError):
        return Origin()


def _forecast_all(
    parts: Sequence[_Known], host: Host | None, cache_dir: str | None, entries: int
) -> Compatibility:
    spellings = set()
    if cache_dir is not None:
        spellings = {cache_dir} | (set() if "://" in cache_dir else {os.path.abspath(cache_dir)})
    return Compatibility(
        tuple(_forecast(one, host, spellings) for one in parts), host, cache_dir, entries
    )


def _forecast(item: _Known, host: Host | None, spellings: set[str]) -> Forecast:
    origin, recorded = item.origin, item.origin.written_in_cache_dir
    version = host.jax_version if host else item.jax_version or origin.like_jaxlib
    bound = hashes_path(version, kernel_cache=origin.kernel_cache)
    moved = recorded is not None and recorded not in spellings and bound
    hashed = version is not None and hashes_path(version)
    portable = hashed and origin.is_portable
    # Where no jax was asked, and the entry is to be used here.
    is_set_here = bool(spellings) and os.environ.get(XLA_CACHES) == "none"
    asked_portable = hashed and (host.origin.is_portable if host else is_set_here)
    if host is not None:
        reason = _other_build(item, host) or _other_device(origin, host)
        if not reason and item.codec != host.codec:
            uses = f"jax here uses {host.codec}"
            rule = "before Python 3.14, JAX uses zstd if the package zstandard is installed"
            reason = f"compressed with {item.codec}, and {uses} ({rule})"
        if reason:
            return Forecast(item.key, ForecastOutcome.MISS, reason)
        if other_flags := _other_flags(item, host):
            return Forecast(item.key, *other_flags)
    if asked_portable and recorded is not None:
        reason = f"its key holds the directory {recorded}, and {XLA_CACHES}=none is set here"
        return Forecast(item.key, ForecastOutcome.MISS, reason)
    if moved:
        reason = f"its key holds the directory it was written in, {recorded}"
        return Forecast(item.key, ForecastOutcome.MISS, reason, recorded, version)
    if portable and not asked_portable:
        outlook = ForecastOutcome.UNKNOWN
        return Forecast(item.key, outlook, PORTABLE_REASON, jax_version=version, portable=True)
    if host is None:
        return Forecast(item.key, ForecastOutcome.UNKNOWN, "not checked with jax")
    if origin.platform == "unknown":
        return Forecast(item.key, ForecastOutcome.UNKNOWN, "its executable could not be read")
    return Forecast(item.key, ForecastOutcome.HIT)


def _latest(events: Sequence[Event], name: str) -> str | None:
    """A text that the ledger knows; the latest event counts."""
    for event in reversed(events):
        if isinstance(version := event.facts.get(name), str):
            return version
    return None


def _other_build(item: _Known, host: Host) -> str | None:
    """Return the reason if another jaxlib compiled it, by the ledger or by its flags."""
    if item.jaxlib_version is not None:
        if item.jaxlib_version == host.jaxlib_version:
            return None
        return f"compiled by jaxlib {item.jaxlib_version}, and this is {host.jaxlib_version}"
    origin = item.origin
    mine = host.origin
    if origin.like_jaxlib and mine.like_jaxlib and origin.like_jaxlib != mine.like_jaxlib:
        return f"compiled by a jaxlib like {origin.like_jaxlib}, and this is {host.jaxlib_version}"
    if origin.platform == mine.platform != "unknown" and (
        origin.ifrt_version,
        origin.container,
    ) != (mine.ifrt_version, mine.container):
        return f"packed as no executable of jaxlib {host.jaxlib_version} is ({origin.container})"
    return None


def _other_flags(item: _Known, host: Host) -> tuple[ForecastOutcome, str] | None:
    """Return what other XLA flags, which JAX hashes as they are spelled, mean for an entry.

    The ledger knows them as they were set. The executable knows those that are not at their
    default, and there one that the program gave to ``jit`` looks the same.
    """
    ours = set(host.xla_flags)
    if item.xla_flags is not None:
        theirs = set(kept_flags(item.xla_flags.split()))
        if theirs == ours:
            return None
        reason = f"compiled with {_named(theirs)}, and here {_are_set(ours)}"
        return ForecastOutcome.MISS, reason
    recorded = item.origin.xla_flags
    here = host.origin.xla_flags
    if recorded is None or here is None:
        unknown = ours
    else:
        if lacking := set(here) - set(recorded):
            return ForecastOutcome.MISS, f"compiled without {_named(lacking)}, which is set here"
        if extra := set(recorded) - set(here):
            reason = f"compiled with {_named(extra)}, which is not set here"
            return ForecastOutcome.UNKNOWN, f"{reason}; it hits if the program itself asks for it"
        shown = {flag.partition("=")[0] for flag in here}
        unknown = {flag for flag in ours if flag.partition("=")[0] not in shown}
    if unknown:
        reason = f"whether it was compiled with {_named(unknown)} is not recorded"
        return ForecastOutcome.UNKNOWN, reason
    return None


def _named(flags: set[str]) -> str:
    return join_some(sorted(flags), _SHOWN_FLAGS) if flags else "no XLA flags"


def _are_set(flags: set[str]) -> str:
    return f"{_named(flags)} {'is' if len(flags) == 1 else 'are'} set"


def _other_device(origin: Origin, host: Host) -> str | None:
    mine = host.origin
    if "unknown" in (origin.platform, mine.platform):
        return None
    if origin.platform != mine.platform:
        return f"compiled for {origin.platform}, and jax here uses {mine.platform}"
    if origin.cpu_features is not None and mine.cpu_features is not None:
        theirs = set(origin.cpu_features)
        ours = set(mine.cpu_features)
        if theirs != ours:
            return _other_cpu(origin, host, theirs, ours)
    for name, label in (
        ("compute_capability", "compute capability"),
        ("device_name", "device"),
        ("toolkit", "toolkit"),
        ("cudnn", "cuDNN"),
    ):
        theirs = getattr(origin, name)
        here = getattr(mine, name)
        if theirs and here and theirs != here:
            return f"compiled for {label} {theirs}, and here it is {here}"
    return None


def _other_cpu(origin: Origin, host: Host, theirs: set[str], ours: set[str]) -> str:
    lacking = sorted(f for f in theirs - ours if f.startswith("+"))
    if lacking:
        shown = join_some([f[1:] for f in lacking], _SHOWN_FEATURES)
        lacks = f"compiled for a CPU ({origin.cpu_name}) with {shown}, which this one lacks"
        is_limited = any(flag.startswith("--xla_cpu_max_isa") for flag in host.xla_flags)
        return f"{lacks}, or which --xla_cpu_max_isa in XLA_FLAGS hides" if is_limited else lacks
    return f"compiled for another CPU ({origin.cpu_name}; this is {host.origin.cpu_name})"


def make_origin(contents: Contents) -> Origin:
    """Read from a payload which compiler made it, and for which device."""
    device = contents.device
    facts: dict[str, Any] = {"device_name": device.name, "target": device.target}
    for part in (device, contents.format, contents):
        facts |= {f.name: getattr(part, f.name) for f in fields(part) if f.name in _FIELDS}
    facts = {n: printable(v) if isinstance(v, str) else v for n, v in facts.items()}
    changed = contents.compile_options.flags_changed
    flags = None
    if changed is not None:
        flags = tuple(sorted(kept_flags(printable(f"--{n}={v}") for n, v in changed.items())))
    return Origin(**facts, kernel_cache=contents.kernel_cache or None, xla_flags=flags)


_FIELDS = {f.name for f in fields(Origin)}
