"""``doctor`` as data: look, ask every trap, mend what may be mended, and look again."""

from collections.abc import Mapping, Sequence

from jaxcache.cache.doctor.examine import Diagnosis, examine
from jaxcache.cache.doctor.facts import Facts, Interpreter, Setting
from jaxcache.cache.doctor.mend import execute, plan_repairs
from jaxcache.cache.doctor.survey import look_at_cache, look_at_host
from jaxcache.cache.scan import Progress
from jaxcache.store import open_store


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
    repairs = plan_repairs(findings) if fix else ()
    if not repairs:
        return Diagnosis(facts, findings, no_jax=no_jax)
    if dry_run:
        return Diagnosis(facts, findings, tuple(map(str, repairs)), no_jax)
    mended = execute(open_store(path), facts, repairs)
    facts = look()
    return Diagnosis(facts, examine(facts), mended, no_jax)
