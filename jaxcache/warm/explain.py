"""``explain SCRIPT``: run it, and compare each miss with what the cache had before."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace

from jaxcache.cache.explain.compare import explain
from jaxcache.cache.explain.known import KnownCache, open_known
from jaxcache.cache.explain.sides import Compile, Explanation, Side
from jaxcache.cache.leftovers import scratch_folder
from jaxcache.errors import NoJaxError
from jaxcache.options.run import WarmOptions
from jaxcache.store import open_store
from jaxcache.warm.causes import as_compile
from jaxcache.warm.events import Done
from jaxcache.warm.programs import Program
from jaxcache.warm.run import Watch, warm_programs

#: Keys of one module, the newest ones, that a miss is compared with.
_MAX_CANDIDATES = 20


def explain_script(
    script: str, arguments: Sequence[str], options: WarmOptions
) -> tuple[Explanation, int]:
    """Run a script that reads the cache but does not fill it, and say why each compile missed.

    Returns:
        The explanation, with the cache on the left, and the exit code.

    Raises:
        UsageError, NoJaxError: see :func:`jaxcache.warm.run.warm_programs`.
        NoJaxError: ``unknown-jax`` where nobody here can listen to it.
    """
    known = open_known(options.cache_dir)
    done: list[Done] = []
    with scratch_folder("explain") as scratch:
        asked = options.replace(components=True, scratch=scratch)
        watch = Watch(on_event=lambda e: done.append(e) if isinstance(e, Done) else None)
        report = warm_programs([Program(script, tuple(arguments))], asked, watch)
        if known is None:  # JAX has made it
            with contextlib.suppress(OSError):
                os.rmdir(options.cache_dir)
        if report.unobserved and not report.modules:
            raise NoJaxError(report.unobserved[0], code="unknown-jax")
        compiles = _first_looks(done)
        new = KnownCache(open_store(scratch))
        missed = tuple(new.complete(c) for c in compiles if c.outcome != "hit")
    candidates: list[Compile] = []
    hits = {c.key for c in compiles if c.outcome == "hit"}
    for module in sorted({c.module for c in missed}):
        keys = known.keys_of(module) if known else []
        nearest = ([k for k in keys if k not in hits] or keys)[:_MAX_CANDIDATES]
        candidates += (known.complete(Compile(module, k)) for k in nearest if known)
    left = Side(options.cache_dir, tuple(candidates), is_run=False)
    found = explain(left, Side(script, missed))
    served = len(compiles) - len(missed)
    return replace(found, same=found.same + served, hits=served), report.script_exit_code


def _first_looks(done: Sequence[Done]) -> list[Compile]:
    """One compile for each key: the first look-up is the one that says something."""
    found: dict[str, Compile] = {}
    for event in done:
        name = event.key or f"{event.module} {len(found)}"
        if name not in found or event.outcome != "hit":
            found[name] = as_compile(event)
    return list(found.values())
