"""Notes for the reader of a report, in addition to its rows."""

import contextlib
import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxcache.cache.doctor.inputs import CAP, CONTENTS
from jaxcache.cache.doctor.keys import METADATA, METADATA_COST
from jaxcache.cache.explain.sides import file_name, is_helper
from jaxcache.core.compile_event import CompileFinished
from jaxcache.units import format_command, format_count, format_duration, join_some
from jaxcache.warm.programs import DIRECTORY, ENABLED
from jaxcache.warm.report.events import GuardPassed
from jaxcache.warm.report.report import CapShortage, Function, Module, Process


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
            "needs, too, or name one with -C DIR"
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
            f"{format_count(count, 'entry')} not uploaded yet; the next run does it, or: "
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
    """Name the programs whose key changes in each process, so that they never hit."""
    changing = [m for m in modules if m.key in varying]
    if changing:
        names = join_some([*dict.fromkeys(m.module for m in changing)], _SHOWN_PLACES)
        key = shlex.quote(changing[0].key or "")
        explain = format_command(f"explain {key}", cache_dir)
        yield (
            f"{names}: written under another key by an equal run before, so that the next run "
            "may miss, too; something in the program changes in each process, such as a name, a "
            f"constant or an address: {explain}"
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
        f"larger cap keeps them all: {fix_of(shortage)}"
    )


def fix_of(shortage: CapShortage) -> str:
    """Return the setting with which JAX keeps all that a run needs."""
    return f"export {CAP.upper()}={shortage.sufficient_bytes}"


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


def find_shortages(
    modules: Iterable[CompileFinished], settings: Mapping[int, Mapping[str, Any]]
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
    modules: Iterable[CompileFinished],
    settings: Mapping[int, Mapping[str, Any]],
    shortages: Sequence[CapShortage],
) -> frozenset[str]:
    """Return the keys that a second run does not hit, as far as settings tell."""
    short = {s.cache_dir for s in shortages}
    return frozenset(
        e.key
        for e in modules
        if e.key and (e.cache_dir in short or settings[e.process].get(CONTENTS))
    )
