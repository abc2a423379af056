"""Bring into a cache what fits this job, from a bundle or a cache that another job has left."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxcache.cache.admission import Signed
from jaxcache.cache.bundle.compat import Compatibility, ForecastOutcome, Host, forecast_items
from jaxcache.cache.bundle.format import Bundle
from jaxcache.cache.ledger.record import fold
from jaxcache.cache.move.import_bundle import execute_import, plan_import, receive
from jaxcache.cache.move.plan import WRITES, Item, ItemFacts, MoveAction, Outcome, Step
from jaxcache.cache.move.stores import make_source, read_records, receive_records
from jaxcache.cache.move.sync import plan_sync
from jaxcache.errors import UntrustedError
from jaxcache.model import Progress
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


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What became of a restore."""

    cache_dir: str
    source: str
    done: Outcome
    """Without steps where the source is missing or unusable."""
    outlooks: Compatibility
    trouble: str = ""
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
    def hit(self) -> bool:
        """Return whether the source has anything for this job."""
        return bool(self.fitting) or self.present > 0

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


def restore_bundle(
    store: Store | None, bundle: Bundle, job: RestoreJob, progress: Progress | None
) -> Outcome:
    """Write those entries of a verified bundle that this job can use.

    Args:
        store: the cache; None where its directory does not exist yet.
    """
    plan = plan_import(store, bundle, cache_dir=job.cache_dir, wanted=job.refuse)
    if not any(map(_fits, plan.steps)):
        plan = replace(plan, steps=tuple(map(_leave, plan.steps)))
    dry_run = job.options.lookup_only
    return execute_import(store, bundle, plan, dry_run=dry_run, progress=progress)


def restore_cache(
    source: Store,
    target: Store | None,
    job: RestoreJob,
    *,
    signed: Signed | None,
    now_ns: int,
    progress: Progress | None,
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

    def receive_some(steps: tuple[Step, ...]) -> Outcome:
        return receive(
            None if job.options.lookup_only else target,
            make_source(source, plan),
            replace(plan, steps=steps),
            now_ns=now_ns,
            jobs=job.options.jobs,
            progress=progress,
        )

    entries = tuple(s for s in plan.steps if s.key is not None)
    sides = tuple(s for s in plan.steps if s.key is None)
    done = receive_some(entries)
    if done.count(MoveAction.UNTRUSTED) and not done.count(*_FITTING, MoveAction.PRESENT):
        raise UntrustedError(
            f"no trusted key has signed anything in {source.url}",
            hint="sign it where it is saved (--sign KEY), and trust the key here: "
            "jaxcache trust add NAME KEY",
        )
    if any(map(_fits, done.steps)) or done.count(MoveAction.PRESENT):
        sides_done = receive_some(sides).steps
        if target is not None and plan.runs and not job.options.lookup_only:
            receive_records(target, read_records(source))
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
    """Forecast which of the entries that were read will hit."""
    items = (step.item for step in done.steps if step.action is not MoveAction.DAMAGED)
    return forecast_items(items, job.host, job.cache_dir)


def miss_reasons(outlooks: Compatibility) -> Sequence[tuple[str, int]]:
    """Return the reasons why entries cannot hit, the most frequent first."""
    missing = (f for f in outlooks.forecasts if f.outlook is ForecastOutcome.MISS)
    counts = Counter(f.reason for f in missing if f.reason)
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
