"""Will the entries of a bundle hit here? Told from the manifest and a probe of the Python to use.

A probe is the entry that this jax writes for a trivial program (``warm/child/query.py``): what
the two have in common is what their keys have in common. JAX 0.4.36 to 0.10.x hashes the cache
directory into the key (``xla_gpu_per_fusion_autotune_cache_dir``); 0.11.0 and later do so only
where ``xla_gpu_kernel_cache_file`` is on.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxcache.cache.allow_lists import kept_flags
from jaxcache.cache.bundle.format import Manifest, Origin, read_origin
from jaxcache.cache.ledger.record import LedgerRecord, fold
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.move.plan import Item, Outcome, Step, bundle_items
from jaxcache.core.machine import DIFFERS, SAME, UNKNOWN, FactDifference, Machine, hashes_path
from jaxcache.entry.summary import Entry
from jaxcache.model import Problem
from jaxcache.store.base import Store
from jaxcache.units import format_count, join_some

if TYPE_CHECKING:
    from jaxcache.cache.trust import Verdict

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
#: The part of a key that is a hash of all devices of a program.
TOPOLOGY = "accelerator_config"


class ForecastOutcome(StrEnum):
    """The forecast for an entry."""

    HIT = "hit"
    """No known reason against it."""
    MISS = "miss"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Host:
    """The Python that is going to use the cache, and what its jax wrote for a trivial program."""

    python: str
    machine: Machine
    origin: Origin
    """The origin of the entry that it wrote."""
    key: str = ""
    """JAX's own key of that entry."""


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
    unrecorded: bool = False
    """Nothing that is known prevents a hit, but not all that matters was recorded."""


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
        return Counter(sorted(f.outlook for f in self.forecasts))

    @property
    def compatible(self) -> bool:
        """Return whether no entry is known to miss, or to hit on a condition."""
        return all(f.unrecorded or f.outlook is ForecastOutcome.HIT for f in self.forecasts)


class Arrival(NamedTuple):
    """What came into a cache, and what is known of it."""

    done: Outcome
    outlooks: Compatibility | None
    """What will hit there; None where nothing was looked at."""
    verdict: "Verdict | None" = None
    """Who signed it; None where it comes from this machine."""
    is_forecast: bool = False
    """Whether a jax was asked what will hit."""
    left_out: tuple[Problem, ...] = ()
    """The files that do not travel."""
    warnings: tuple[str, ...] = ()
    """Warnings about what the source offers."""
    bundle_sha256: str | None = None
    """The digest of the manifest of the bundle in between; None without one."""


class _Known(NamedTuple):
    """The facts of an entry that a forecast needs."""

    key: str
    origin: Origin
    machine: Machine
    """The machine that filled it."""


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
        _known(
            item.key,
            item.facts.origin or Origin(),
            fold(item.key, item.events),
            codec=item.facts.codec,
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
        origin = (facts and facts.origin) or read_origin(store, step.name)
        parts.append(_known(key, origin, ledger.record(key) or LedgerRecord(key)))
    return _forecast_all(parts, None, cache_dir, len(steps))


def forecast_path(
    store: Store, entries: Iterable[Entry], ledger: Ledger, cache_dir: str
) -> tuple[Forecast, ...]:
    """Return the forecasts of the entries that miss in a directory because of the path in keys."""
    parts = []
    for entry in entries:
        record = ledger.record(entry.key) or LedgerRecord(entry.key)
        parts.append(_known(entry.key, read_origin(store, entry.file), record))
    forecasts = _forecast_all(parts, None, cache_dir, len(parts)).forecasts
    return tuple(f for f in forecasts if f.portable or f.outlook is ForecastOutcome.MISS)


def _known(key: str, origin: Origin, record: LedgerRecord, *, codec: str | None = None) -> _Known:
    """Put together what an entry itself and the ledger tell of the machine that filled it."""
    flags = record.xla_flags
    machine = Machine(
        jaxlib_version=record.jaxlib_version,
        platform=None if origin.platform == "unknown" else origin.platform,
        cpu_features=origin.cpu_features and tuple(sorted(origin.cpu_features)),
        device_count=record.device_count,
        process_count=record.process_count,
        topology=(record.components or {}).get(TOPOLOGY),
        codec=codec,
        xla_flags=None if flags is None else tuple(sorted(kept_flags(flags.split()))),
        settings=record.key_settings,
        jax_version=record.jax_version,
    )
    return _Known(key, origin, machine)


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
    version = host.machine.jax_version if host else item.machine.jax_version or origin.like_jaxlib
    bound = hashes_path(version, kernel_cache=origin.kernel_cache)
    moved = recorded is not None and recorded not in spellings and bound
    hashed = version is not None and hashes_path(version)
    portable = hashed and origin.is_portable
    # Where no jax was asked, and the entry is to be used here.
    is_set_here = bool(spellings) and os.environ.get(XLA_CACHES) == "none"
    asked_portable = hashed and (host.origin.is_portable if host else is_set_here)
    if host is not None:
        compared = _compare(item, host)
        if reason := _other_machine(item, host, compared):
            return Forecast(item.key, ForecastOutcome.MISS, reason)
        if compared["xla_flags"].answer == UNKNOWN and (other := _other_flags(item, host)):
            return other
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
        reason = "its executable could not be read"
        return Forecast(item.key, ForecastOutcome.UNKNOWN, reason, unrecorded=True)
    if processes := _unlike_probe(item, host):
        reason = f"compiled by a program of {processes} processes, as which jax was not asked"
        return Forecast(item.key, ForecastOutcome.UNKNOWN, reason, unrecorded=True)
    if missing := [name for fact, name in _NEEDED.items() if compared[fact].answer == UNKNOWN]:
        reason = f"who filled it did not record {' and '.join(missing)}"
        return Forecast(item.key, ForecastOutcome.UNKNOWN, reason, unrecorded=True)
    return Forecast(item.key, ForecastOutcome.HIT)


#: The facts that an entry does not show, and without which its hits are not known.
_NEEDED = {"device_count": "the number of devices", "settings": "settings of JAX, such as x64"}


def _unlike_probe(item: _Known, host: Host) -> int | None:
    """Return the number of processes of an entry's program, where it is not the probe's one."""
    processes = item.machine.process_count or 1
    return processes if processes > 1 and host.machine.process_count == 1 else None


def _compare(item: _Known, host: Host) -> dict[str, FactDifference]:
    """Compare the machines; JAX's own hash of the devices decides where both are known."""
    theirs = item.machine
    if _unlike_probe(item, host) or theirs.process_count is None:
        theirs = theirs._replace(process_count=None)
        if theirs.topology != host.machine.topology:
            theirs = theirs._replace(topology=None)
    compared = {d.fact: d for d in theirs.differences(host.machine)}
    if compared["topology"].answer == SAME:
        compared["device_count"] = compared["topology"]
    return compared


def _other_machine(item: _Known, host: Host, compared: dict[str, FactDifference]) -> str | None:
    """Return the first reason why keys of an entry's machine are other ones here."""
    if compared["jaxlib_version"].answer == UNKNOWN and (reason := _other_build(item.origin, host)):
        return reason
    for difference in compared.values():
        if difference.answer == DIFFERS and (reason := _describe(difference, item, host)):
            return reason
    return _other_device(item.origin, host.origin)


def _describe(difference: FactDifference, item: _Known, host: Host) -> str | None:
    """Return what a fact that differs means for an entry; None where keys do not depend on it."""
    theirs = difference.left
    here = difference.right
    match difference.fact:
        case "jaxlib_version":
            return f"compiled by jaxlib {theirs}, and this is {here}"
        case "platform":
            return f"compiled for {theirs}, and jax here uses {here}"
        case "cpu_features":
            return _other_cpu(item.origin, host, set(theirs), set(here))
        case "device_count":
            devices = format_count(theirs, "device")
            return f"compiled in a process of {devices}, and this one has {here}"
        case "process_count":
            processes = "1 process" if theirs == 1 else f"{theirs} processes"
            return f"compiled by a program of {processes}, and this one has {here}"
        case "topology":
            return "compiled for other devices, or another number of them"
        case "codec":
            rule = "before Python 3.14, JAX uses zstd if the package zstandard is installed"
            return f"compressed with {theirs}, and jax here uses {here} ({rule})"
        case "xla_flags":
            are_set = f"{_named(set(here))} {'is' if len({*here}) == 1 else 'are'} set"
            return f"compiled with {_named(set(theirs))}, and here {are_set}"
        case "settings":
            return f"compiled with {_assigned(theirs)}, and here with {_assigned(here)}"
    return None


def _assigned(settings: Mapping[str, Any]) -> str:
    """Return settings as a shell sets them; one that is None is not set, and has its default."""
    shown = {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in settings.items()}
    values = [f"{n.upper()}={'unset' if settings[n] is None else v}" for n, v in shown.items()]
    return join_some(values, _SHOWN_FLAGS)


def _other_build(origin: Origin, host: Host) -> str | None:
    """Return the reason if another jaxlib compiled it, by the flags and the format of an entry."""
    mine = host.origin
    version = host.machine.jaxlib_version
    if origin.like_jaxlib and mine.like_jaxlib and origin.like_jaxlib != mine.like_jaxlib:
        return f"compiled by a jaxlib like {origin.like_jaxlib}, and this is {version}"
    formats = [(side.ifrt_version, side.container) for side in (origin, mine)]
    if origin.platform == mine.platform != "unknown" and formats[0] != formats[1]:
        return f"packed as no executable of jaxlib {version} is ({origin.container})"
    return None


def _other_flags(item: _Known, host: Host) -> Forecast | None:
    """Forecast by the XLA flags of an executable, where the ledger does not know what was set.

    It holds those that are not at their default, and one that the program gave to ``jit`` looks
    the same there.
    """
    ours = set(host.machine.xla_flags or ())
    recorded = item.origin.xla_flags
    here = host.origin.xla_flags
    if recorded is None or here is None:
        unknown = ours
    else:
        if lacking := set(here) - set(recorded):
            reason = f"compiled without {_named(lacking)}, which is set here"
            return Forecast(item.key, ForecastOutcome.MISS, reason)
        if extra := set(recorded) - set(here):
            reason = f"compiled with {_named(extra)}, which is not set here"
            reason += "; it hits if the program itself asks for it"
            return Forecast(item.key, ForecastOutcome.UNKNOWN, reason)
        shown = {flag.partition("=")[0] for flag in here}
        unknown = {flag for flag in ours if flag.partition("=")[0] not in shown}
    if unknown:
        reason = f"whether it was compiled with {_named(unknown)} is not recorded"
        return Forecast(item.key, ForecastOutcome.UNKNOWN, reason, unrecorded=True)
    return None


def _named(flags: set[str]) -> str:
    return join_some(sorted(flags), _SHOWN_FLAGS) if flags else "no XLA flags"


def _other_device(origin: Origin, mine: Origin) -> str | None:
    """Return the reason if an executable names another GPU, or another of its libraries."""
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
        ours_set = host.machine.xla_flags or ()
        is_limited = any(flag.startswith("--xla_cpu_max_isa") for flag in ours_set)
        return f"{lacks}, or which --xla_cpu_max_isa in XLA_FLAGS hides" if is_limited else lacks
    return f"compiled for another CPU ({origin.cpu_name}; this is {host.origin.cpu_name})"
