"""``explain SCRIPT``: run it, and compare each miss with what the cache had before."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jaxcache.cache.explain.compare import explain
from jaxcache.cache.explain.known import KnownCache
from jaxcache.cache.explain.reports import read_document
from jaxcache.cache.explain.sides import Compile, Explanation, Side
from jaxcache.errors import NoCacheError, NoJaxError
from jaxcache.store import open_store
from jaxcache.warm.inbox import Event
from jaxcache.warm.run import WarmOptions, Watch, warm_script

#: Keys of one module, the newest ones, that a miss is compared with.
_MAX_CANDIDATES = 20


def explain_script(
    script: str, arguments: Sequence[str], options: WarmOptions
) -> tuple[Explanation, int]:
    """Run a script with the cache on, and say why each compile missed.

    What is learnt of the keys goes into the cache's ledger, as in every warm run.

    Returns:
        The explanation, with the cache as it was before on the left, and the exit code.

    Raises:
        UsageError, NoJaxError: see :func:`jaxcache.warm.run.warm_script`.
        NoJaxError: ``unknown-jax`` where nobody here can listen to it.
    """
    before = _keys(options.cache_dir)
    events: list[Event] = []
    watch = Watch(on_event=events.append)
    report = warm_script(script, arguments, replace(options, components=True), watch)
    if report.unheard:
        raise NoJaxError(report.unheard, code="unknown-jax")
    compiles = read_document({"modules": [e for e in events if e["event"] == "module"]})
    try:
        store = open_store(options.cache_dir)
    except NoCacheError:  # nothing was cacheable
        return explain(Side(options.cache_dir, (), is_run=False), Side(script, compiles)), (
            report.script_exit_code
        )
    known = KnownCache(store)
    misses = {c.module for c in compiles if c.outcome != "hit"}
    candidates: list[Compile] = []
    for module in sorted(misses):
        keys = [k for k in known.keys_of(module) if k in before]
        candidates += (known.complete(Compile(module, k)) for k in keys[:_MAX_CANDIDATES])
    left = Side(f"{options.cache_dir} as it was before", tuple(candidates), is_run=False)
    missed = tuple(known.complete(c) for c in compiles if c.outcome != "hit")
    found = explain(left, Side(script, missed))
    hits = len(compiles) - len(missed)
    return replace(found, same=found.same + hits), report.script_exit_code


def _keys(cache_dir: str) -> set[str]:
    if "://" not in cache_dir and not Path(cache_dir).is_dir():
        return set()
    return set(KnownCache(open_store(cache_dir)).keys())
