"""Notes for the reader of a report, in addition to its rows, and advice on what a run measured.

The advice names the parts of a start that are worth shortening, from what a run has measured.
"""

import contextlib
import math
import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxcache.cache.doctor.inputs import (
    CAP,
    CONTENTS,
    Finding,
    larger_cap,
    make_finding,
    read_rules,
)
from jaxcache.cache.doctor.keys import METADATA, METADATA_COST
from jaxcache.cache.explain.sides import file_name, is_helper
from jaxcache.core.compile_event import CompileFinished
from jaxcache.core.configuration import JAX_DEFAULTS, read_setting
from jaxcache.core.machine import read_release
from jaxcache.core.system import available_cores
from jaxcache.entry.names import key_of
from jaxcache.options.run import RunOptions
from jaxcache.units import format_command, format_count, format_duration, format_size, join_some
from jaxcache.warm.programs import DIRECTORY, ENABLED, lifted_thresholds
from jaxcache.warm.report.events import GuardPassed
from jaxcache.warm.report.report import (
    FAULTS,
    CapShortage,
    Function,
    FunctionSeconds,
    Module,
    Process,
    Report,
)


def per_process_key_notes(modules: Iterable[CompileFinished]) -> Iterable[str]:
    """Say where the processes of one program cannot share entries: their keys differ.

    JAX 0.8.3, 0.10.2 and 0.12 do so on CPU, through ``accelerator_config``; with
    ``jax_share_binary_between_hosts`` such processes wait for each other in vain.
    """
    keys: defaultdict[str, defaultdict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for e in modules:
        if e.key:
            keys[e.module][e.process_id].add(e.key)
    divided: defaultdict[str, list[str]] = defaultdict(list)
    for module, keys_of_module in keys.items():
        first = keys_of_module.pop(0, set())
        others = [number for number, own in keys_of_module.items() if first and not own & first]
        if others:
            divided[", ".join(map(str, sorted(others)))].append(module)
    for numbers, names in divided.items():
        who = f"process{'es' if ',' in numbers else ''} {numbers} made another key than process 0"
        several = f"each of {len(names)} modules, such as " if len(names) > 1 else ""
        yield f"{who} for {several}{names[0]}"


def settings_notes(
    process: Process,
    cache_dir: str,
    wanted: Mapping[str, float],
    used: Mapping[str, int],
) -> Iterable[str]:
    """Say which settings the program changed, against what it was started with.

    Args:
        wanted: numeric settings that it was started with.
        used: cache directories that JAX had open, and for how many compiles.
    """
    settings = process.settings
    last = process.cache_dir
    moved_from = process.moved_from
    ignored = process.ignored_directory
    if len(used) > 1:
        counts = ", ".join(
            f"{path} ({format_count(count, 'compile')})" for path, count in used.items()
        )
        yield f"the program used several cache directories: {counts}"
    elif last and cache_dir and not (ignored or moved_from or _is_same(last, cache_dir)):
        if "://" in cache_dir and settings.get(DIRECTORY) == cache_dir:
            return  # the live layer opened a local directory for it; see bucket_notes()
        yield f"the program used {last}, not {cache_dir}; --force-cache-dir would win over it"
    if ignored:
        yield ignored_directory_note(process)
    if moved_from:
        setting = process.configured.opened_setting or settings.get(DIRECTORY)
        yield (
            f"the cache directory {setting} is relative, and the program changed "
            f"its working directory: JAX used {last} instead of {moved_from}. Each working "
            "directory has a cache of its own; an absolute path is one for all"
        )
    elif settings and not last and not cache_dir:
        yield (
            "JAX has no cache directory: export JAX_COMPILATION_CACHE_DIR=DIR, which plain Python "
            "needs, too, or name one with -C DIR before the program"
        )
    elif settings and not last:
        yield (
            "the program runs with no cache directory; jaxcache.enable() in it, or "
            "--force-cache-dir, would set one"
        )
    if settings.get(METADATA):
        yield f"{METADATA} is on: {METADATA_COST}"
    if settings.get(ENABLED) is False:
        outside = wanted.get(ENABLED) == 0
        by = "JAX_ENABLE_COMPILATION_CACHE in the environment" if outside else "the program"
        yield f"{by} turned the compilation cache off"
    for name, value in wanted.items():
        now = settings.get(name)
        if name != ENABLED and isinstance(now, int | float) and now != value:
            yield f"the program set {name} to {now}, which was {value:g}"


def ignored_directory_note(process: Process) -> str:
    """Say which directory JAX kept, and which later setting had no effect."""
    return (
        f"JAX keeps the cache directory that it opened first, {process.cache_dir}; the program set "
        f"{DIRECTORY} to {process.ignored_directory} after its first compile, which had no effect: "
        "set it before"
    )


def bucket_notes(
    url: str, modules: Iterable[CompileFinished], waiting: Mapping[str, int]
) -> Iterable[str]:
    """Say which local directory stood in for a bucket, and what is not in the bucket yet."""
    used = {done.local_directory for done in modules if done.local_directory}
    for directory in sorted(used):
        yield (
            f"the live layer keeps the entries of {url} in {directory} as well; plain Python uses "
            f"them with JAX_COMPILATION_CACHE_DIR={shlex.quote(url)} JAXCACHE_LIVE=1, if "
            "jaxcache is installed in the environment of jax"
        )
    for directory, count in waiting.items():
        yield (
            f"{format_count(count, 'entry')} not uploaded yet; to send them: "
            f"{format_command(f'push {shlex.quote(url)}', directory)}"
        )


def _is_same(path: str, other: str) -> bool:
    """Whether two paths or URLs are one directory, also through a link."""
    with contextlib.suppress(OSError):
        return Path(path).samefile(other)
    return path.rstrip("/") == other.rstrip("/")


def below_threshold_notes(modules: Iterable[CompileFinished]) -> Iterable[str]:
    """Say how to keep the compiles that JAX does not write because they were fast."""
    if count := sum(e.reason == "compile-time" for e in modules):
        yield (
            f"{format_count(count, 'module')} compiled faster than JAX's threshold and "
            f"{'was' if count == 1 else 'were'} not written; jaxcache warm, or "
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0, writes them"
        )


def varying_notes(
    modules: Iterable[Module], varying: Collection[str], cache_dir: str
) -> Iterable[str]:
    """Name the programs whose key changes in each process, so that they hit by chance at most."""
    changing = [m for m in modules if m.key in varying]
    if changing:
        names = join_some([*dict.fromkeys(m.module for m in changing)], _SHOWN_PLACES)
        key = shlex.quote(changing[0].key or "")
        explain = format_command(f"explain {key}", cache_dir)
        yield (
            f"{names}: written under another key by an equal run before, so that the next run "
            "may miss, too; something in the program changes in each process, such as a name, a "
            f"constant, an address or the order of a set: {explain}"
        )


def describe_shortage(shortage: CapShortage) -> str:
    """Say how far JAX's cap is below what a run needs, and what is missing after it."""
    absent = join_some([*dict.fromkeys(shortage.absent)], _SHOWN_PLACES)
    has = "has" if shortage.entries == 1 else "have"
    return (
        f"{CAP} is {shortage.cap_bytes} bytes, and the {format_count(shortage.entries, 'entry')} "
        f"of this run {has} {shortage.needed_bytes}"
        + (f"; without room after the run: {absent}" if absent else "")
    )


def cap_note(shortage: CapShortage) -> str:
    """Say what a cap costs the next run, and which one keeps all that a run needs."""
    return (
        f"{describe_shortage(shortage)}. The next run misses, too; a "
        f"larger cap keeps them all: {larger_cap(shortage.needed_bytes)}"
    )


#: Why nothing was made for a target, in words that take the event's detail.
_NOT_MADE = {
    "platform-asked": "{detail} asks which hardware it runs on while it is traced",
    "no-rule": "{detail}",
    "no-such-device": "{detail}",
    "lowering-failed": "{detail}",
    "profile-guided": "its key follows a profile that a run on the target makes",
    "untuned": "it could only be made untuned: {detail}",
    "unmeasured-convolution": "{detail}",
}


def target_notes(modules: Iterable[CompileFinished]) -> Iterable[str]:
    """Say why nothing was made for a target, and what was made of lesser quality."""
    untuned = for_target = 0
    for e in modules:
        for_target += bool(e.tuning)
        untuned += e.tuning == "untuned"
        if text := _NOT_MADE.get(e.reason):
            detail = text.format(detail=e.detail)
            yield f"{e.module} is not made for the target: {detail}"
    if untuned:
        yield (
            f"{untuned} of {for_target} entries are untuned: the target will use them as they are"
        )


#: A note names so many places at most.
_SHOWN_PLACES = 5


def guard_notes(
    passed: Iterable[GuardPassed],
    guarded: Mapping[int, float],
    began_at: float,
    modules: Iterable[CompileFinished],
) -> Iterable[str]:
    """Say when the guard of a run was up, and which steps it only warned of or counted.

    Args:
        guarded: when the guard was up, by process; seconds since the epoch, as ``began_at``.
    """
    if guarded:
        before = sum(
            e.outcome not in ("hit", "refused") and e.at < guarded.get(e.process, 0.0)
            for e in modules
        )
        compiles = format_count(before, "compile") if before else "no compile"
        after = format_duration(min(guarded.values()) - began_at)
        yield f"the guard was up from {after} after the start; {compiles} started before it"
    places: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for e in passed:
        place = f" ({file_name(e.file)}:{e.line})" if e.file else ""
        places[e.step][e.function + place] += 1
    for step, counts in places.items():
        most = counts.most_common(_SHOWN_PLACES)
        names = [name + (f" ×{count}" if count > 1 else "") for name, count in most]
        more = [f"{len(counts) - len(most)} other places"] if len(counts) > len(most) else []
        total = format_count(counts.total(), step)
        yield f"the guard let {total} pass: {', '.join([*names, *more])}"


#: A function that is compiled more often than this is worth a word.
_STORM = 8


def recompile_notes(functions: Iterable[Function]) -> Iterable[str]:
    """Name the functions that are compiled again and again, and what makes them be."""
    for f in functions:
        if f.compiles > _STORM and not is_helper(f.function, f.file):
            cause = "; ".join(f.varies) + " varies" if f.varies else _HIDDEN_CAUSE
            yield f"`{f.function}` has {f.compiles} programs: {cause}"


_HIDDEN_CAUSE = (
    "its arguments keep their shapes, so something else varies, such as a static argument or a "
    "constant that it closes over"
)


# What a second run would not hit ------------------------------------------------------------------
#
# JAX evicts the least recently used entries until an entry that it writes fits below
# ``jax_compilation_cache_max_size`` (jax/_src/lru_cache.py, 0.4.31 to 0.12). So a run whose entries
# together fit is served whole the next time, and one whose entries do not fit always misses some.


#: Settings of JAX by the number of the process.
_Settings = Mapping[int, Mapping[str, Any]]


def find_shortages(
    modules: Iterable[CompileFinished], settings: _Settings
) -> tuple[CapShortage, ...]:
    """Return the directories whose cap is too small for a run.

    Args:
        settings: those of each process.
    """
    made: defaultdict[tuple[str, int], dict[str, CompileFinished]] = defaultdict(dict)
    for e in modules:
        cap = settings[e.process].get(CAP)
        is_entry = e.outcome in ("hit", "written") or e.reason in ("over-cap", "written-meanwhile")
        if is_entry and e.key and e.local_directory and isinstance(cap, int) and cap != -1:
            made[e.local_directory, cap].setdefault(e.key, e)
    shortages = []
    for (directory, cap), entries in made.items():
        needed = sum(e.size_bytes or 0 for e in entries.values())
        if needed > cap:
            gone = [e.module for e in entries.values() if not _is_there(directory, str(e.key))]
            shortages.append(CapShortage(directory, cap, len(entries), needed, tuple(gone)))
    return tuple(shortages)


def _is_there(directory: str, key: str) -> bool:
    return any(os.path.lexists(os.path.join(directory, name)) for name in (f"{key}-cache", key))


def find_passing(
    modules: Iterable[CompileFinished], settings: _Settings, shortages: Sequence[CapShortage]
) -> frozenset[str]:
    """Return the keys that a second run does not hit, as far as settings tell."""
    short = {s.cache_dir for s in shortages}
    return frozenset(
        e.key
        for e in modules
        if e.key and (e.cache_dir in short or settings[e.process].get(CONTENTS))
    )


#: A part of the start that takes less is not worth a change of the program.
_LEAST_SECONDS = 1.0
_LEAST_SHARE = 0.1
#: JAX from this release on loads entries ahead (``core/seams/cache.py``).
_PRELOADS = (0, 8, 0)
_LOCAL = "a directory on a local disk loads faster than a network mount"
#: The parts that functions which are traced again, and unrolled loops, are in.
_REPEATED = ("slow-trace", "slow-compile")


#: The phases of each part of a start.
_PARTS = {
    "slow-trace": ("trace", "lower"),
    "slow-load": ("load",),
    "slow-key": ("key",),
    "slow-backend": ("backend",),
    "slow-compile": ("compile",),
}


def advise(report: Report) -> tuple[Finding, ...]:
    """Return advice on the start of a program, the part that costs the most seconds first.

    Only parts of a second and a tenth of the run or more are named.
    """
    least_seconds = max(_LEAST_SECONDS, _LEAST_SHARE * report.wall_seconds)
    causes = [*_retraced(report), *_unrolled(report)]
    causes = [pair for pair in causes if pair[0] >= least_seconds]
    causes.sort(key=lambda pair: -pair[0])
    phases = [pair for pair in _phases(report) if pair[0] >= least_seconds]
    # Repeated work is part of these phases, and comes before them, because it is more specific.
    whole = max((seconds for seconds, f in phases if f.trap in _REPEATED), default=0.0)
    pairs = [*((max(seconds, whole), finding) for seconds, finding in causes), *phases]
    pairs.sort(key=lambda pair: -pair[0])
    return tuple(finding for _, finding in pairs)


def judge_run(report: Report, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings about a cache and its settings, corrected by what a program did with it.

    What the program reads or writes under another path of the cache, it does in each run.
    """
    served = {e.key for e in report.modules if e.outcome in ("hit", "written")}
    kept = [
        replace(f, severity="problem") if f.trap == "no-cache-dir" else f
        for f in findings
        if f.trap != "cache-dir-in-key" or not served.issuperset(map(key_of, f.files))
    ]
    return *find_losses(report, kept), *kept, *advise(report)


def find_losses(report: Report, findings: Sequence[Finding] = ()) -> tuple[Finding, ...]:
    """Return the problems for which a second run of a program would not hit.

    Args:
        findings: of the cache and its settings; they explain why JAX fails, if it does.
    """
    problems = {f.trap for f in findings if f.severity == "problem"}
    losses = [
        _finding("cap-too-small", shortage=describe_shortage(s), setting=larger_cap(s.needed_bytes))
        for s in report.shortages
    ]
    reasons = Counter[str]()
    for m in report.modules:
        reasons[m.reason] += m.occurrences
    if report.modules and not any(m.outcome in ("hit", "written") for m in report.modules):
        losses += [_finding(rule) for reason, rule in _LOSSES.items() if reasons[reason]]
    losses = [loss for loss in losses if loss.trap not in problems]
    faults = [m for m in report.modules if m.reason in FAULTS]
    if faults and not (problems or losses):
        first = faults[0]
        compiles = format_count(sum(reasons[r] for r in FAULTS), "compile")
        detail = first.detail or ""
        losses.append(
            _finding("cache-errors", reason=first.reason, compiles=compiles, detail=detail)
        )
    return tuple(losses)


#: The problem of a program all of whose compiles end for such a reason.
_LOSSES = {"compile-time": "threshold", "size": "entry-size"}


def _phases(report: Report) -> Iterator[tuple[float, Finding]]:
    wall = format_duration(report.wall_seconds)
    for part, phases in _PARTS.items():
        seconds = sum(report.phase_seconds.get(phase, 0.0) for phase in phases)
        longest = ""
        if (top := _longest(report, phases)) and top.seconds >= _LEAST_SHARE * seconds:
            size = _size(report, top, part)
            place = _name(top.function, top.file, top.line)
            longest = f", {place}{size} alone {format_duration(top.seconds)}"
        is_first = part == "slow-compile" and _has_written_most(report)
        yield _advice(
            "slow-first-compile" if is_first else part,
            seconds,
            wall=wall,
            longest=longest,
            faster="; ".join(filter(None, (_load_faster(report), *_smaller(report)))) or _LOCAL,
        )


def _longest(report: Report, phases: Sequence[str]) -> FunctionSeconds | None:
    """Return the function that took most of some phases, with its seconds in all."""
    sums: defaultdict[tuple[str, str | None, int | None], float] = defaultdict(float)
    for top in (top for phase in phases for top in report.longest.get(phase, ())):
        sums[top.function, top.file, top.line] += top.seconds
    place = max(sums, key=sums.__getitem__, default=None)
    return place and FunctionSeconds(*place, sums[place])


def _has_written_most(report: Report) -> bool:
    """Whether most of the compile time went into entries that the next start finds."""
    seconds = math.fsum((m.compile_seconds or 0.0) * m.occurrences for m in report.lasting)
    return seconds * 2 > report.compile_seconds


def _load_faster(report: Report) -> str:
    """Return how to load entries ahead while the program traces, or what that takes; else ""."""
    versions = [p.jax for p in report.processes if p.jax]
    if report.hidden_seconds:
        return ""
    where = "on CPU"
    if any(read_release(version) < _PRELOADS for version in versions):
        where = "with JAX 0.8 or later"
    elif available_cores() < 2:
        where = "with two cores"
    return f"{where}, run and warm with --live load entries ahead of their requests"


def _smaller(report: Report) -> Iterator[str]:
    """Yield how to reduce what is traced and loaded, if the program repeats something."""
    if any(m.copies for m in report.modules):
        yield "write equal layers as jax.lax.scan"
    if any(f.varies and not is_helper(f.function, f.file) for f in report.functions):
        yield "call with fewer shapes"


def _size(report: Report, top: FunctionSeconds, trap: str) -> str:
    """Return the size that makes an entry slow to load, or a module slow to hash."""
    name = {"slow-load": "size_bytes", "slow-key": "constant_bytes"}.get(trap)
    place = (top.file, top.line)
    alike = (m for m in report.modules if (m.file, m.line) == place)
    named = (m for m in alike if top.function in (m.function, m.module))
    size = max((getattr(m, name) or 0 for m in named), default=0) if name else 0
    if not size:
        return ""
    return f" ({format_size(size)}{' of constants' if trap == 'slow-key' else ''})"


def _retraced(report: Report) -> Iterator[tuple[float, Finding]]:
    # Nobody can change those of JAX itself, such as `_normal`. Where one is differentiated outside
    # of jit, JAX compiles several programs, and reports no trace.
    own = (f for f in report.functions if not is_helper(f.function, f.file))
    for function in (f for f in own if f.traces > 1):
        place = _name(function.function, function.file, function.line)
        times = format_count(function.traces, "time")
        seconds = function.repeated_seconds
        if function.varies:
            signatures = format_count(function.signatures, "signature")
            varies = "; ".join(function.varies)
            yield _advice(
                "retraced-shapes",
                seconds,
                place=place,
                times=times,
                signatures=signatures,
                varies=varies,
            )
            continue
        reason = (
            "with arguments of the same shapes: the function object, a static argument or a "
            "setting of JAX changed each time"
        )
        if function.retrace_reasons:
            reason = f"JAX's reason: {function.retrace_reasons[0]}"
        yield _advice("retraced", seconds, place=place, times=times, reason=reason)


def _unrolled(report: Report) -> Iterator[tuple[float, Finding]]:
    advice: dict[tuple[str, str | None], tuple[float, Finding]] = {}
    for m in sorted(report.modules, key=lambda m: m.trace_seconds or 0.0):
        if (copies := m.copies) is None:
            continue
        compiled = 0.0 if m.outcome == "hit" else m.compile_seconds or 0.0
        once = (m.trace_seconds or 0.0) + (m.lower_seconds or 0.0) + compiled
        seconds = once * m.occurrences * copies.share * (1 - 1 / copies.count)
        where = f", such as {copies.file}:{copies.line}" if copies.file else ""
        advice[where, m.function] = _advice(
            "unrolled",
            seconds,
            place=_name(m.function or m.module, m.file, m.line),
            copies=copies,
            where=where,
            steps="tracing, lowering and compiling" if compiled else "tracing and lowering",
            took=format_duration(once * m.occurrences),
        )
    yield from advice.values()


def _name(function: str, file: "str | None", line: "int | None") -> str:
    return f"{function} ({file}:{line})" if file else function


def _advice(rule: str, seconds: float, **values: Any) -> tuple[float, Finding]:
    return seconds, _finding(rule, seconds=format_duration(seconds), **values)


def _finding(rule: str, **values: Any) -> Finding:
    return make_finding(read_rules(__file__), rule, **values)


def find_overridden(options: RunOptions) -> Iterator[Finding]:
    """Say what plain JAX does with the settings of this environment that a run overrides."""
    for variable, value in lifted_thresholds(options).items():
        text = os.environ.get(variable)
        if text is None:
            continue
        rule = "overridden"
        try:
            read = read_setting(text, JAX_DEFAULTS[variable.lower()])
        except ValueError:
            rule = "overridden-refused"
        else:
            if variable.lower() != ENABLED or read:
                continue
        yield _finding(rule, variable=variable, text=text, value=value)
