"""``doctor`` as data: look, run every check, apply the repairs, and look again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxcache.cache.doctor import keys, place, writes
from jaxcache.cache.doctor.facts import Facts, Finding, Interpreter, Setting
from jaxcache.cache.doctor.mend import Fix, execute
from jaxcache.cache.doctor.survey import look_at_cache, look_at_host
from jaxcache.cache.scan import Progress
from jaxcache.model import result_repr
from jaxcache.store import open_store

#: Every trap that is known: the functions ``find_*`` of these, in the order of the report.
TRAPS: tuple[Callable[[Facts], Iterator[Finding]], ...] = tuple(
    trap
    for module in (writes, keys, place)
    for name, trap in vars(module).items()
    if name.startswith("find_")
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of ``doctor``."""

    __repr__ = result_repr

    facts: Facts
    findings: tuple[Finding, ...]
    """Problems first."""
    mended: tuple[str, ...] = ()
    """The repairs that ``--fix`` made, or would make, one sentence each."""
    no_jax: str | None = None
    """Why no Python with jax was asked."""

    @property
    def wrong(self) -> bool:
        """Whether there is a problem, not only something worth knowing."""
        return any(f.severity == "problem" for f in self.findings)


def examine(facts: Facts) -> tuple[Finding, ...]:
    """Every trap that is present, problems first."""
    findings = [finding for trap in TRAPS for finding in trap(facts)]
    return tuple(sorted(findings, key=lambda f: f.severity != "problem"))


def diagnose(
    path: str,
    *,
    settings: Sequence[Setting],
    interpreter: Interpreter | None,
    no_jax: str | None = None,
    uncacheable: Mapping[str, tuple[str, ...]] | None = None,
    max_decoded: int | None = None,
    fix: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Diagnosis:
    """Examine a cache, whether or not it exists yet.

    Args:
        settings, interpreter: see :mod:`jaxcache.warm.ask`.
        no_jax: why there is no interpreter.
        uncacheable: modules of a run that JAX could not cache, by the reason.
        max_decoded: how many entries to decode, the newest first; all if None.
        fix: make the repairs that lose nothing, then look again.
        dry_run: with ``fix``, only tell what would be done.

    Raises:
        LockedError: a repair needs JAX's lock, and another process holds it.
        UsageError: a URL of a kind that no store serves.
        NoCacheError: a bucket that cannot be reached.
    """

    def look() -> Facts:
        cache = look_at_cache(path, max_decoded=max_decoded, progress=progress)
        return Facts(cache, tuple(settings), interpreter, look_at_host(path), uncacheable or {})

    facts = look()
    findings = examine(facts)
    repairs = tuple(Fix(f.mend, f.files) for f in findings if fix and f.mend)
    if not repairs:
        return Diagnosis(facts, findings, no_jax=no_jax)
    if dry_run:
        return Diagnosis(facts, findings, tuple(map(str, repairs)), no_jax)
    mended = execute(open_store(path), facts, repairs)
    facts = look()
    return Diagnosis(facts, examine(facts), mended, no_jax)
