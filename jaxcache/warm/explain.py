"""``explain SCRIPT``: run it, and compare each miss with what the cache had before."""

import contextlib
import json
import math
import os
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence

from jaxcache.cache.explain.answer import sum_up
from jaxcache.cache.explain.sides import CachedFacts, Comparison, Explanation, open_cached_facts
from jaxcache.cache.files import scratch_directory
from jaxcache.core.compile_event import CompileFinished
from jaxcache.options.run import WarmOptions
from jaxcache.store import open_store
from jaxcache.warm.child.launch import RunCallbacks
from jaxcache.warm.programs import WarmProgram
from jaxcache.warm.report.builder import ReportBuilder
from jaxcache.warm.report.causes import explain_hits, explain_misses
from jaxcache.warm.report.notes import advise, find_losses, find_overridden
from jaxcache.warm.report.report import require_observed
from jaxcache.warm.report.run_records import describe_runs
from jaxcache.warm.run import run_command, warm_program


def explain_script(
    program: WarmProgram, options: WarmOptions, *, command: Sequence[str] = ()
) -> tuple[Explanation, int]:
    """Run a script that reads the cache but does not fill it, and explain each miss.

    Args:
        command: any command line, which the program is.

    Returns:
        The explanation, with the cache on the left, and the exit code: that of SIGINT where the
        program was interrupted, and the explanation is of what it compiled until then.

    Raises:
        UsageError, NoJaxError: see :func:`jaxcache.warm.run.warm_program`.
        NoJaxError: ``unknown-jax`` where nobody here can listen to it.
        JaxcacheError: ``program-failed`` where it failed before that.
        NoCacheError: neither the cache nor the one that the program names is there.
    """
    cache = open_cached_facts(options.cache_dir)
    recorder = ReportBuilder(options.cache_dir)
    with scratch_directory("explain") as scratch:
        past_paths = json.dumps(cache.past_paths() if cache else ())
        run_options = options.replace(components=True, scratch=scratch, undo=past_paths)
        watch = RunCallbacks(on_event=recorder.add)
        if command:
            report = run_command(command, run_options, watch)
        else:
            report = warm_program(program, run_options, watch)
        if cache is None:  # JAX has made it
            with contextlib.suppress(OSError):
                os.rmdir(options.cache_dir)
        if report.interrupted and not report.modules:
            raise KeyboardInterrupt
        require_observed(report, "jax")
        new = CachedFacts(open_store(scratch))
        directory = report.cache_dir or options.cache_dir
        if cache is None or directory != options.cache_dir:  # the program may name another one
            cache = CachedFacts(open_store(directory))
        looks = _first_looks(recorder)
        hits = [done for done in looks.values() if done.outcome == "hit"]
        described = [*describe_runs(recorder, {}, directory=directory)]
        comparisons = []
        for used, missed in _misses_by_directory(looks, directory).items():
            facts = cache if used == directory else open_cached_facts(used)
            programs = described if used == directory else describe_runs(recorder, {})
            explained = explain_misses(
                recorder, programs, used, missed, facts, new=new, max_bytes=math.inf
            )
            comparisons += [comparison.in_cache(used) for comparison in explained]
        comparisons.sort(key=lambda c: c.right.is_helper)
        past = explain_hits(recorder, described, hits, cache)
        explanation = Explanation(
            directory,
            program.name,
            len(hits),
            tuple(comparisons),
            hits=len(hits),
            past=tuple(sorted(past, key=_rank)),
            advice=(
                *find_overridden(options),
                *find_losses(report),
                *(() if comparisons else advise(report)),
            ),
            verdict=tuple(sum_up(comparisons, len(looks), len(hits))),
        )
    return explanation, -signal.SIGINT if report.interrupted else report.script_exit_code


def _rank(comparison: Comparison) -> tuple[bool, bool, float]:
    """Sort the program's own functions first; among them those with a cause, then the slowest."""
    right = comparison.right
    seconds = right.record.compile_seconds if right.record else None
    return right.is_helper, not comparison.differences, -(seconds or 0.0)


def _misses_by_directory(
    looks: Mapping[str, CompileFinished], directory: str
) -> dict[str, dict[str, CompileFinished]]:
    """Return what missed by the directory that it was looked for in, which a program may change."""
    misses: defaultdict[str, dict[str, CompileFinished]] = defaultdict(dict)
    for name, done in looks.items():
        used = done.local_directory or directory
        is_other = "://" not in directory and os.path.realpath(used) != os.path.realpath(directory)
        if done.outcome != "hit":
            misses[used if is_other else directory][name] = done
    return misses


def _first_looks(recorder: ReportBuilder) -> dict[str, CompileFinished]:
    """Return one compile for each key: only the first look-up shows whether the cache had it."""
    looks: dict[str, CompileFinished] = {}
    for event in recorder.modules:
        name = event.key or f"{event.module} {len(looks)}"
        if name not in looks or event.outcome != "hit":
            looks[name] = event
    for event in looks.values():
        if event.undone_key in looks:  # what this run uses itself is another compile, and no cause
            event.undone = ()
            event.undone_key = None
    return looks
