"""Say why a run compiled what it wrote: what it is compared with, and what differs."""

import contextlib
import os
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from jaxcache.cache.bundle.format import read_origin
from jaxcache.cache.explain.answer import Answers
from jaxcache.cache.explain.say import FIRST_TIME, HITS_BY_CHANCE
from jaxcache.cache.explain.sides import (
    CachedFacts,
    Cause,
    Comparison,
    Compile,
    Difference,
    Evidence,
    is_helper,
)
from jaxcache.cache.verify.repair import list_quarantine
from jaxcache.core.compile_event import CompileFinished
from jaxcache.core.machine import hashes_path
from jaxcache.core.names import CACHE_SUFFIX
from jaxcache.core.runs import find_writer, read_records
from jaxcache.core.sketch import PassedArgument, read_sketch
from jaxcache.entry.names import key_of
from jaxcache.errors import NoCacheError
from jaxcache.store import open_store
from jaxcache.warm.report.builder import COMPILED_AHEAD, ReportBuilder
from jaxcache.warm.report.events import ProcessStarted
from jaxcache.warm.report.report import LOST
from jaxcache.warm.report.run_records import DescribedRun, describe_runs, hashed_path

#: What a difference in the path of the cache begins with.
CACHE_PATH = "cache path: "
#: Larger entries are not opened at the end of a run.
_MAX_ENTRY_BYTES = 16 << 20
_SHOWN_CHARACTERS = 40


def path_note(modules: Iterable[CompileFinished], jax_version: str | None) -> Iterator[str]:
    """Say where the entries that were written hit, if their keys contain that path.

    A run that hits what an earlier one wrote began no cache: that run said it.
    """
    modules = [*modules]
    own_keys = {d.key for d in modules if d.outcome == "written"}
    if any(d.outcome == "hit" and d.key not in own_keys for d in modules):
        return
    written = (d for d in modules if d.outcome == "written" and d.key and d.size_bytes)
    done = min(written, key=lambda d: d.size_bytes or 0, default=None)
    if done and done.local_directory:
        with contextlib.suppress(NoCacheError):
            origin = read_origin(open_store(done.local_directory), f"{done.key}{CACHE_SUFFIX}")
            hashed = jax_version and hashes_path(jax_version, kernel_cache=origin.kernel_cache)
            if hashed and (path := origin.written_in_cache_dir):
                release = ".".join((jax_version or "").split(".")[:2])
                yield (
                    f"with jax {release} this cache hits only as "
                    f"JAX_COMPILATION_CACHE_DIR={shlex.quote(path)}; to move it, fill it with "
                    "--portable"
                )


def as_compile(event: CompileFinished, recorder: ReportBuilder) -> Compile:
    """Return a compile of a run as ``explain`` compares it."""
    process = recorder.processes[event.process]
    flags = process.loaded.xla_flags
    is_placed = event.file is not None and event.line is not None
    return Compile(
        module=event.module,
        key=event.key,
        components=event.components,
        outcome=event.outcome,
        reason=event.detail or event.reason,
        rule=event.reason,
        passed=tuple(
            PassedArgument(a.name, f"{a.dtype}[{','.join(map(str, a.shape))}]")
            for a in event.arguments
        ),
        is_helper=is_helper(event.function, event.file),
        xla_flags=None if flags is None else tuple(flags.split()),
        source=f"{event.file}:{event.line}" if is_placed else None,
        jax_version=process.jax,
        jaxlib_version=process.jaxlib,
        device_count=recorder.origin(event.process, event.backend)["device_count"],
        sketch=read_sketch(recorder.sketch_of(event)),
        script=process.script,
        compile_seconds=event.seconds_of("compile"),
        cache_path=hashed_path(process) or None,
        undone=event.undone,
        undone_key=event.undone_key,
    )


def is_new(outcome: str, reason: str) -> bool:
    """Whether a compile made an entry that the cache did not have, written or not."""
    if reason in ("not-in-cache", "no-write"):
        return True
    return outcome == "written" and reason not in ("replaced", COMPILED_AHEAD)


def find_causes(
    recorder: ReportBuilder,
    before: Collection[str],
    *,
    before_in: str = "",
    cache_dir: str | None = None,
    earlier: Mapping[str | None, Compile] | None = None,
    own: ProcessStarted | None = None,
) -> dict[str, str]:
    """Say why each key that was written was not in the cache, or that this is unknown.

    Errors end nothing, because a cause only helps the reader.

    Args:
        before: keys that a cache or its ledger knew when the run began.
        before_in: that cache.
        cache_dir: where all of the entries go, if JAX wrote them elsewhere.
        earlier: compiles by key that the ledger may not have yet.
        own: this process, if it is the one that compiles.
    """
    written: defaultdict[str, dict[str, CompileFinished]] = defaultdict(dict)
    for done in recorder.modules:
        if is_new(done.outcome, done.reason) and done.key:
            written[cache_dir or done.cache_dir or ""].setdefault(done.key, done)
    causes: dict[str, str] = {}
    described = [*describe_runs(recorder, {}, own, directory=cache_dir)] if written else []
    for directory, compiles in written.items():
        if not directory or "://" in directory:
            causes |= dict.fromkeys(compiles, "not known: only a directory's entries are compared")
            continue
        try:
            store = open_store(directory)
            lost = {entry.key for entry in list_quarantine(store, key_of)}
            if before_in == directory:
                lost.update(before)
            cache = CachedFacts(store, earlier)
            for comparison in explain_misses(recorder, described, directory, compiles, cache):
                key = comparison.right.key or ""
                causes[key] = LOST if key in lost else describe_comparison(comparison)
        except Exception as error:
            causes |= {k: f"unknown ({error})" for k in compiles if k not in causes}
    return causes


def explain_misses(
    recorder: ReportBuilder,
    described: Iterable[DescribedRun],
    directory: str,
    missed: Mapping[str, CompileFinished],
    cache: CachedFacts | None,
    *,
    new: CachedFacts | None = None,
    max_bytes: float = _MAX_ENTRY_BYTES,
) -> list[Comparison]:
    """Compare the misses of each program of a run with its earlier runs.

    Args:
        described: the programs and their histories.
        missed: by key; those without a key by any other text.
        cache: what is in the directory.
        new: what this run has compiled, if that is elsewhere.
        max_bytes: larger entries are not opened.
    """
    left = dict(missed)
    comparisons: list[Comparison] = []
    programs = [d for d in described if d.directory == directory]
    for program in [*programs, None]:
        events = program.compiles if program else tuple(recorder.modules)
        ids = {id(done) for done in events}
        own = {k: done for k, done in left.items() if program is None or id(done) in ids}
        if not own:
            continue
        left = {k: done for k, done in left.items() if k not in own}
        compiles = {id(done): as_compile(done, recorder) for done in (*events, *own.values())}
        answers = Answers(
            cache,
            list(compiles.values()),
            program.run if program else None,
            program.history if program else (),
            new=new,
            max_bytes=max_bytes,
        )
        comparisons += answers.explain([compiles[id(done)] for done in own.values()])
    return comparisons


def explain_hits(
    recorder: ReportBuilder,
    described: Iterable[DescribedRun],
    hits: Iterable[CompileFinished],
    cache: CachedFacts,
) -> Iterator[Comparison]:
    """Yield why each entry that is hit was compiled when it was written, as far as recorded."""
    records = [r for directory in {d.directory for d in described} for r in read_records(directory)]
    for done in hits:
        new = cache.complete(as_compile(done, recorder), max_bytes=_MAX_ENTRY_BYTES)
        writer = find_writer(records, done.key or "")
        if writer is None or not writer[1]:
            yield Comparison(None, new, ())
            continue
        yield from Answers(cache, [new], *writer, max_bytes=_MAX_ENTRY_BYTES).explain([new])


def describe_comparison(comparison: Comparison) -> str:
    """Return one line: the first difference itself, and the other parts of the key that differ."""
    if not comparison.differences:
        return FIRST_TIME
    first, *others = comparison.differences
    if first.cause in (Cause.NOT_CACHED_BEFORE, Cause.LOST):
        return first.meaning
    if first.cause is Cause.UNKNOWN and not first.brief:
        return first.meaning
    what = first.title
    values = [v for v in (first.left, first.right) if v]
    if first.cause is Cause.PATH:
        what = _of_path(first)
    elif first.brief:
        what = first.brief
    elif len(values) == 2 and all(_is_shown(v) for v in values):
        what = f"{what}: {values[0]} → {values[1]}"
    if first.evidence is Evidence.UNSTABLE:
        what = f"{what}; {HITS_BY_CHANCE}"
    more = [_of_path(d) if d.cause is Cause.PATH else d.title for d in others[:1]]
    if len(others) > 1:
        more.append(f"{len(others) - 1} more")
    return f"{what}; also {', '.join(more)}" if others else what


def _of_path(difference: Difference) -> str:
    """Return the paths from the last directory on that they share."""
    values = [v for v in (difference.left, difference.right) if v]
    shared = 0
    if all(v.startswith("/") for v in values):
        common = os.path.commonpath(values)
        shared = len(os.path.dirname(common) if common in values else common) + 1
    return f"{CACHE_PATH}{' → '.join(v[shared:] for v in values)}"


def _is_shown(value: str) -> bool:
    """Whether a value fits the line, and is not the hash of one."""
    return len(value) <= _SHOWN_CHARACTERS and not value.startswith("sha256 ")
