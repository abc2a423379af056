"""Before a job: the key of its cache, and what fits of that which another job has left.

The key is equal where JAX can hit, and different where it cannot. At its heart is the key that the
job's own jax made for one trivial program (``jaxcache/warm/child/query.py``): a SHA-256 over
jaxlib, platform, XLA's flags, compile options, accelerator and codec, by JAX's own hand
(``jax/_src/cache_key.py``), so that nothing that enters JAX's keys can be forgotten here. What that
key leaves out is added: the directory, for those JAX that hash it, the CPU, for those that do not,
and the settings that act through the program, which a trivial one does not show.
"""

import glob
import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, NamedTuple

from jaxcache.cache.bundle.compat import Compatibility, ForecastOutcome, Host, forecast_items
from jaxcache.cache.bundle.format import Bundle
from jaxcache.cache.ledger.record import fold
from jaxcache.cache.move.execute import carry_out
from jaxcache.cache.move.import_bundle import execute_import, plan_import
from jaxcache.cache.move.plan import WRITES, Item, ItemFacts, MoveAction, Outcome, Step
from jaxcache.cache.move.stores import make_source
from jaxcache.cache.move.sync import plan_sync
from jaxcache.cache.verify.check import Signed
from jaxcache.core.machine import hashes_path
from jaxcache.core.names import XLA_CACHES
from jaxcache.errors import UntrustedError, UsageError, system_errors_as
from jaxcache.options.move import RestoreOptions, SyncOptions
from jaxcache.store.base import Store

_FITTING = (
    *WRITES,
    MoveAction.SAME,
    MoveAction.KEEP,
    MoveAction.OVERTAKEN,
    MoveAction.FAILED,
    MoveAction.UNTRIED,
)
#: What is left out besides damaged entries.
REFUSED = (MoveAction.STRAY, MoveAction.BLOCKED, MoveAction.UNFINISHED)


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """What a job takes from its source."""

    cache_dir: str
    """The cache, as JAX is going to be given it."""
    host: Host | None
    """The jax of the job; where none was asked, everything may hit."""
    options: RestoreOptions

    def refuse(self, item: Item) -> str | None:
        """Return why an entry whose contents are known cannot hit; None if it may."""
        if self.options.everything:
            return None
        forecasts = forecast_items([item], self.host, self.cache_dir).forecasts
        missing = [f.reason for f in forecasts if f.outlook is ForecastOutcome.MISS]
        return missing[0] if missing else None


class MissReason(NamedTuple):
    """A reason why entries cannot hit."""

    reason: str
    entries: int


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What became of a restore."""

    cache_dir: str
    source: str
    done: Outcome
    """Without steps where the source is missing or unusable."""
    outlooks: Compatibility
    trouble: str | None = None
    """The reason why there is nothing to restore from."""
    is_missing: bool = False
    """Whether that is because the source does not exist."""

    @property
    def fitting(self) -> tuple[Item, ...]:
        """Entries that may hit here."""
        return tuple(s.item for s in self.done if _fits(s))

    @property
    def present(self) -> int:
        """Entries that were not even read, because the cache has them."""
        return self.count(MoveAction.PRESENT)

    @property
    def entries(self) -> int:
        """Entries that fit, or are here already."""
        return len(self.fitting) + self.present

    @property
    def found(self) -> int:
        """Entries of the source."""
        return len(self.outlooks.forecasts) + self.present

    @property
    def left_out(self) -> int:
        """Entries that are damaged, or cannot come in."""
        return self.count(MoveAction.DAMAGED, *REFUSED)

    @property
    def untrusted(self) -> int:
        """Entries that no trusted key has signed."""
        return self.count(MoveAction.UNTRUSTED)

    @property
    def misses(self) -> tuple[MissReason, ...]:
        """The reasons why entries cannot hit, the most frequent first."""
        missing = (f for f in self.outlooks.forecasts if f.outlook is ForecastOutcome.MISS)
        counts = Counter(f.reason for f in missing if f.reason)
        return tuple(
            sorted(starmap(MissReason, counts.items()), key=lambda m: (-m.entries, m.reason))
        )

    @property
    def hit(self) -> bool:
        """Return whether the source has anything for this job."""
        return self.entries > 0

    @property
    def written(self) -> int:
        """Files that were written."""
        return 0 if self.done.dry_run else len(self.done.written)

    @property
    def unwritten(self) -> bool:
        """Whether a file was sound and could not be written."""
        return any(step.item.facts is not None for step in self.done.failed)

    @property
    def unusable_keys(self) -> tuple[str, ...]:
        """Keys of the entries that cannot hit here."""
        missing = ForecastOutcome.MISS
        return tuple(f.key for f in self.outlooks.forecasts if f.outlook is missing)

    @property
    def stored_seconds(self) -> float:
        """The compile seconds of the entries that fit."""
        return math.fsum(map(item_seconds, self.fitting))

    def count(self, *actions: MoveAction) -> int:
        """Return the number of entries that ended like this."""
        return sum(step.action in actions and step.key is not None for step in self.done)


def _fits(step: Step) -> bool:
    return step.key is not None and step.item.facts is not None and step.action in _FITTING


def restore_bundle(store: Store | None, bundle: Bundle, job: RestoreJob) -> Outcome:
    """Write those entries of a verified bundle that this job can use.

    Args:
        store: the cache; None where its directory does not exist yet.
    """
    plan = plan_import(store, bundle, cache_dir=job.cache_dir, wanted=job.refuse)
    if not any(map(_fits, plan.steps)):
        plan = replace(plan, steps=tuple(map(_leave, plan.steps)))
    dry_run = job.options.lookup_only
    return execute_import(store, bundle, plan, dry_run=dry_run)


def restore_cache(
    source: Store, target: Store | None, job: RestoreJob, *, signed: Signed | None, now_ns: int
) -> Outcome:
    """Read the entries of a cache, and write those that this job can use.

    A directory is compared payload by payload. Of a bucket, only the names that the job's cache
    lacks are read.

    Args:
        target: None where its directory does not exist yet.
        signed: only what is vouched for here (``jaxcache.cache.trust``); the rest is
            left out, and where that is all, refused.

    Raises:
        NoCacheError: the source cannot be reached.
        UntrustedError
    """

    def fits(item: Item, facts: ItemFacts) -> str | None:
        return job.refuse(replace(item, facts=facts))

    plan = plan_sync(
        source,
        target,
        SyncOptions(allow_large=job.options.allow_large),
        target_url=job.cache_dir,
        now_ns=now_ns,
        signed=signed,
        fits=fits,
        on_conflict=None if source.remote else "keep",
    )

    def receive(steps: tuple[Step, ...], *, runs: bool) -> Outcome:
        return carry_out(
            make_source(source, plan),
            target,
            replace(plan, steps=steps, runs=runs),
            now_ns=now_ns,
            jobs=job.options.jobs,
            dry_run=job.options.lookup_only,
        )

    plan = replace(plan, by_name=False, segments=())  # each payload is read, and recorded here
    entries = tuple(s for s in plan.steps if s.key is not None)
    sides = tuple(s for s in plan.steps if s.key is None)
    done = receive(entries, runs=False)
    if done.count(MoveAction.UNTRUSTED) and not done.count(*_FITTING, MoveAction.PRESENT):
        raise UntrustedError(
            f"no trusted key has signed anything in {source.url}",
            hint="sign it where it is saved (--sign KEY), and trust the key here: "
            "jaxcache trust add NAME KEY",
        )
    if any(map(_fits, done.steps)) or done.count(MoveAction.PRESENT):
        sides_done = receive(sides, runs=plan.runs).steps
    else:
        sides_done = tuple(map(_leave, sides))
    whole = replace(plan, steps=(*entries, *sides))
    return replace(done, plan=whole, steps=(*done.steps, *sides_done))


def _leave(step: Step) -> Step:
    """Leave out a side file where no entry is of use."""
    if step.key is not None:
        return step
    return replace(step, action=MoveAction.LEFT, detail="nothing here can hit")


def item_seconds(item: Item) -> float:
    """Return the compile seconds of an entry: as measured, else of its header."""
    measured = fold(item.key or "", item.events).compile_seconds
    header = item.facts.compile_seconds if item.facts else 0
    return float(header) if measured is None else measured


def forecast_restored(done: Outcome, job: RestoreJob) -> Compatibility:
    """Forecast which of the entries that can come in will hit."""
    left_out = (MoveAction.DAMAGED, *REFUSED)
    items = (step.item for step in done.steps if step.action not in left_out)
    return forecast_items(items, job.host, job.cache_dir)


#: Counted up when the same environment gets another name.
SCHEME = "v2"
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class KeyEnvironment:
    """The facts on which the keys of one job's JAX depend."""

    platform: str
    device: str
    """CPU name, ``sm_90a``, or the device's name."""
    device_kind: str
    platform_version: str
    jax_version: str
    jaxlib_version: str
    codec: str
    cpu_features: tuple[str, ...] | None
    """As LLVM names them, sorted; None on accelerators, and where they are unknown."""
    xla_flags: tuple[str, ...]
    xla_caches: str | None
    """``JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES``; None where it is not set."""
    cache_dir_in_key: str | None
    """None where the directory is not part of JAX's keys."""
    device_count: int
    """Devices of a process."""
    process_count: int
    """``JAX_NUM_PROCESSES``; 1 where it is not set."""
    settings: Mapping[str, Any]
    """Settings of JAX that act on keys and that the environment changes, by JAX's names."""
    jax_key: str
    """The hash that JAX gave to the trivial program."""

    @property
    def digest(self) -> str:
        """Over everything but the version of jax, which JAX does not hash."""
        parts = {
            "jax_key": self.jax_key,
            "cpu_features": self.cpu_features,
            "xla_caches": self.xla_caches,
            "cache_dir": self.cache_dir_in_key,
            "process_count": self.process_count,
            "settings": self.settings,
        }
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]


@dataclass(frozen=True, slots=True)
class HashedFiles:
    """The files that were hashed, and their digest."""

    digest: str
    """SHA-256 over names and contents, in the order of the names."""
    names: tuple[str, ...]


def hash_files(patterns: Sequence[str], root: str) -> HashedFiles:
    """Hash every file that one of the globs matches; ``**`` crosses directories; follows links.

    Args:
        patterns: relative to ``root``; one that begins with ``!`` takes files out again.

    Raises:
        UsageError: ``no-match`` where no file is left, ``io-error`` where one cannot be read.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        matches = glob.glob(pattern.removeprefix("!"), root_dir=root, recursive=True)
        files = {os.path.normpath(f) for f in matches if os.path.isfile(os.path.join(root, f))}
        chosen = chosen - files if pattern.startswith("!") else chosen | files
    if not chosen:
        raise UsageError(
            f"no file matches {' '.join(patterns)}",
            code="no-match",
            hint="quote the glob, so that it reaches jaxcache, and mind the current directory",
        )
    names = tuple(sorted(chosen))
    digest = hashlib.sha256()
    for name in names:
        digest.update(os.fsencode(name) + b"\0" + _digest(os.path.join(root, name)))
    return HashedFiles(digest.hexdigest(), names)


def _digest(path: str) -> bytes:
    failure = f"cannot read {path}"
    with system_errors_as(UsageError, failure, code="io-error"), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


@dataclass(frozen=True, slots=True)
class CiKey:
    """The name of a cache, and those under which an older one would do."""

    environment: KeyEnvironment
    files: HashedFiles | None
    prefix: str = "jaxcache"

    @property
    def key(self) -> str:
        """Letters, digits, ``.``, ``_`` and ``-``, from the loosest component to the tightest."""
        return "-".join(self._parts)

    @property
    def restore_keys(self) -> tuple[str, ...]:
        """Prefixes, from precise to loose.

        The loosest still names the environment: under another one JAX finds nothing, and
        downloading it would be for nothing.
        """
        parts = self._parts
        fewest = len(self._environment_parts)
        return tuple("-".join(parts[:n]) + "-" for n in range(len(parts) - 1, fewest - 1, -1))

    @property
    def _environment_parts(self) -> list[str]:
        environment = self.environment
        return [
            slug(self.prefix),
            SCHEME,
            environment.platform,
            slug(environment.device),
            f"jaxlib{slug(environment.jaxlib_version)}",
            environment.digest,
        ]

    @property
    def _parts(self) -> list[str]:
        parts = [*self._environment_parts, f"jax{slug(self.environment.jax_version)}"]
        return [*parts, self.files.digest[:_DIGITS]] if self.files else parts


def describe_environment(
    host: Host, environment: Mapping[str, str], *, cache_dir: str
) -> KeyEnvironment:
    """Put together what keys depend on.

    Args:
        host: probed with ``JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none``, so that the probe's own
            directory is not in its key.
        environment: of the job.
        cache_dir: as JAX is going to be given it, for that is how it enters the key.
    """
    origin = host.origin
    machine = host.machine
    version = machine.jax_version or ""
    caches = environment.get(XLA_CACHES.upper())
    if caches == "none" and not hashes_path(version):
        caches = None  # no key of this jax has a path to leave out
    return KeyEnvironment(
        platform=origin.platform,
        device=origin.target or origin.device_name or machine.device_kind or "unknown",
        device_kind=machine.device_kind or "",
        platform_version=machine.platform_version or "",
        jax_version=version,
        jaxlib_version=machine.jaxlib_version or "",
        codec=machine.codec or "",
        cpu_features=machine.cpu_features if origin.platform == "cpu" else None,
        xla_flags=machine.xla_flags or (),
        xla_caches=caches,
        cache_dir_in_key=cache_dir if hashes_path(version, caches) else None,
        device_count=machine.device_count or 1,
        process_count=machine.process_count or 1,
        settings=machine.changed_settings,
        jax_key=host.key[-64:],
    )


def slug(text: str) -> str:
    """A text in letters, digits, ``.`` and ``_``: what every CI system takes in a key."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_") or "unknown"
