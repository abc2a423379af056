"""``explain SCRIPT``: run it, and compare each miss with what the cache had before."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace

from jaxcache.cache.explain.cached_facts import CachedFacts, open_cached_facts
from jaxcache.cache.explain.compare import explain
from jaxcache.cache.explain.sides import Comparison, Compile, Explanation, Side
from jaxcache.cache.explain.undone import past_paths
from jaxcache.cache.leftovers import scratch_directory
from jaxcache.options.run import WarmOptions
from jaxcache.store import open_store
from jaxcache.warm.advice import advise
from jaxcache.warm.child.launch import RunCallbacks
from jaxcache.warm.programs import WarmProgram
from jaxcache.warm.report.builder import ReportBuilder
from jaxcache.warm.report.causes import as_compile, compare_with
from jaxcache.warm.report.report import require_observed
from jaxcache.warm.run import run_command, warm_program

#: Keys of one module, the newest ones, that a miss is compared with.
_MAX_CANDIDATES = 20


def explain_script(
    program: WarmProgram, options: WarmOptions, *, command: Sequence[str] = ()
) -> tuple[Explanation, int]:
    """Run a script that reads the cache but does not fill it, and explain each miss.

    Args:
        command: any command line, which the program is.

    Returns:
        The explanation, with the cache on the left, and the exit code.

    Raises:
        UsageError, NoJaxError: see :func:`jaxcache.warm.run.warm_program`.
        NoJaxError: ``unknown-jax`` where nobody here can listen to it.
        JaxcacheError: ``program-failed`` where it failed before that.
        NoCacheError: neither the cache nor the one that the program names is there.
    """
    cache = open_cached_facts(options.cache_dir)
    recorder = ReportBuilder(options.cache_dir)
    with scratch_directory("explain") as scratch:
        run_options = options.replace(components=True, scratch=scratch, undo=past_paths(cache))
        watch = RunCallbacks(on_event=recorder.add)
        if command:
            report = run_command(command, run_options, watch)
        else:
            report = warm_program(program, run_options, watch)
        if cache is None:  # JAX has made it
            with contextlib.suppress(OSError):
                os.rmdir(options.cache_dir)
        if report.interrupted:
            raise KeyboardInterrupt
        require_observed(report, "jax")
        compiles = _first_looks(recorder)
        new = CachedFacts(open_store(scratch))
        missed = tuple(new.complete(c) for c in compiles if c.outcome != "hit")
    directory = report.cache_dir or options.cache_dir
    if cache is None or directory != options.cache_dir:  # the program may name another one
        cache = CachedFacts(open_store(directory))
    candidates: list[Compile] = []
    hits = {c.key for c in compiles if c.outcome == "hit"}
    undone = {c.undone_key for c in missed}
    for module in sorted({c.module for c in missed}):
        keys = cache.keys_by_use(module)
        nearest = sorted([k for k in keys if k not in hits] or keys, key=lambda k: k not in undone)
        candidates += (cache.complete(Compile(module, k)) for k in nearest[:_MAX_CANDIDATES])
    left = Side(directory, tuple(candidates), is_run=False)
    explanation = explain(left, Side(program.name, missed))
    served = [c for c in compiles if c.outcome == "hit"]
    earlier = (_compare_with_earlier(cache, c) for c in served)
    past = tuple(sorted(earlier, key=_rank))
    same = explanation.same + len(served)
    # The comparisons already explain why a module was compiled.
    advice = tuple(f for f in advise(report) if f.trap != "slow-compile")
    explanation = replace(explanation, same=same, hits=len(served), past=past, advice=advice)
    return explanation, report.script_exit_code


def _compare_with_earlier(cache: CachedFacts, hit: Compile) -> Comparison:
    """Compare an entry that is hit with those that its module had when it was written."""
    keys = cache.keys_of(hit.module, before=hit.key)
    return compare_with(cache, keys, hit) if keys else Comparison(None, hit, ())


def _rank(comparison: Comparison) -> tuple[bool, bool, float]:
    """Sort the program's own functions first; among them those with a cause, then the slowest."""
    right = comparison.right
    seconds = right.record.compile_seconds if right.record else None
    return right.is_helper, not comparison.differences, -(seconds or 0.0)


def _first_looks(recorder: ReportBuilder) -> list[Compile]:
    """Return one compile for each key: only the first look-up shows whether the cache had it."""
    compiles: dict[str, Compile] = {}
    for event in recorder.modules:
        name = event.key or f"{event.module} {len(compiles)}"
        if name not in compiles or event.outcome != "hit":
            compiles[name] = as_compile(event, recorder)
    return [
        # What this run uses itself is another compile of it, and no cause.
        replace(c, undone=(), undone_key=None) if c.undone_key in compiles else c
        for c in compiles.values()
    ]
