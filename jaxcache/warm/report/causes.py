"""Say why a run compiled what it wrote: the nearest entry known, and what differs from it."""

import contextlib
import math
import shlex
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from jaxcache.cache.bundle.manifest import make_origin
from jaxcache.cache.explain.cached_facts import CachedFacts
from jaxcache.cache.explain.compare import differing_components, explain
from jaxcache.cache.explain.matching import is_of_other_machine
from jaxcache.cache.explain.programs import first_change
from jaxcache.cache.explain.sides import Cause, Comparison, Compile, Difference, Side, is_helper
from jaxcache.cache.verify.repair import list_quarantine
from jaxcache.core.compile_event import CompileFinished
from jaxcache.core.machine import XLA_CACHES, hashes_path
from jaxcache.core.names import CACHE_SUFFIX
from jaxcache.core.sketch import read_sketch
from jaxcache.entry.codec import CodecError
from jaxcache.entry.decode import decode_origin
from jaxcache.entry.names import key_of
from jaxcache.entry.read import read_payload
from jaxcache.errors import NoCacheError
from jaxcache.store import open_store
from jaxcache.store.base import StoreError
from jaxcache.warm.report.builder import COMPILED_AHEAD, ReportBuilder
from jaxcache.warm.report.report import FIRST_TIME, LOST, UNKNOWN_CHANGE, Process

NOT_COMPARED = "not compared, to save time; see jaxcache explain KEY"
#: What a difference in the path of the cache begins with.
CACHE_PATH = "cache path: "
#: Bounds of what a run spends on it: entries looked at per compile, their size, and the time.
MOST_CANDIDATES = 4
#: The ledger is queried for this many, to prefer those of this machine in a shared cache.
_MOST_RANKED = 20
_MAX_ENTRY_BYTES = 16 << 20
_BUDGET_SECONDS = 3.0
_SHOWN_CHARACTERS = 40
_SHOWN_PATH = 24
_OF_TYPES = frozenset({Cause.ARGUMENT_SHAPE, Cause.ARGUMENT_DTYPE})


def path_note(modules: Iterable[CompileFinished], jax_version: str | None) -> Iterator[str]:
    """Say where the entries that were written hit, if their keys contain that path."""
    written = (d for d in modules if d.outcome == "written" and d.key and d.size_bytes)
    done = min(written, key=lambda d: d.size_bytes or 0, default=None)
    if done and done.local_directory:
        with contextlib.suppress(CodecError, StoreError, NoCacheError):
            store = open_store(done.local_directory)
            name = f"{done.key}{CACHE_SUFFIX}"
            with store.open(name) as opened:  # it may be sealed meanwhile, so read its size again
                payload = read_payload(opened, store.info(name).size_bytes)
            origin = make_origin(decode_origin(payload))
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
    types = (f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in event.arguments)
    return Compile(
        module=event.module,
        key=event.key,
        components=event.components,
        outcome=event.outcome,
        reason=event.detail or event.reason,
        rule=event.reason,
        arguments=", ".join(types),
        names=tuple(a.name for a in event.arguments),
        is_helper=is_helper(event.function, event.file),
        xla_flags=None if flags is None else tuple(flags.split()),
        source=f"{event.file}:{event.line}" if is_placed else None,
        jax_version=process.jax,
        jaxlib_version=process.jaxlib,
        device_count=recorder.origin(event.process, event.backend)["device_count"],
        sketch=read_sketch(recorder.sketch_of(event)),
        script=process.script,
        cache_path=_hashed_path(process),
        undone=event.undone,
        undone_key=event.undone_key,
    )


def _hashed_path(process: Process) -> str | None:
    """Return the path that the keys of a process contain, as it is set; None where they do not."""
    settings = process.settings
    caches = settings.get(XLA_CACHES) or ""
    if process.jax and hashes_path(process.jax, caches):
        return str(settings["jax_compilation_cache_dir"])
    return None


def is_new(outcome: str, reason: str) -> bool:
    """Whether a compile made an entry that the cache did not have, written or not."""
    if reason in ("not-in-cache", "no-write"):
        return True
    return outcome == "written" and reason not in ("replaced", COMPILED_AHEAD)


def find_causes(
    recorder: ReportBuilder,
    before: Collection[str],
    *,
    cache_dir: str | None = None,
    earlier: Mapping[str | None, Compile] | None = None,
) -> dict[str, str]:
    """Say why each key that was written was not in the cache, or that this is unknown.

    Errors end nothing, because a cause only helps the reader.

    Args:
        before: keys that the cache or its ledger knew when the run began.
        cache_dir: where all of the entries go, if JAX wrote them elsewhere.
        earlier: compiles by key that the ledger may not have yet.
    """
    written: defaultdict[str, dict[str, CompileFinished]] = defaultdict(dict)
    for done in recorder.modules:
        if is_new(done.outcome, done.reason) and done.key:
            written[cache_dir or done.cache_dir or ""].setdefault(done.key, done)
    causes: dict[str, str] = {}
    quarantined: set[str | None] = set()
    deadline = time.monotonic() + _BUDGET_SECONDS
    for directory, compiles in written.items():
        if not directory or "://" in directory:
            causes |= dict.fromkeys(compiles, "unknown (only a directory's entries are compared)")
            continue
        try:
            store = open_store(directory)
            quarantined |= {entry.key for entry in list_quarantine(store, key_of)}
            _find_in(CachedFacts(store, earlier), compiles, causes, deadline, recorder)
        except Exception as error:
            causes |= {k: f"unknown ({error})" for k in compiles if k not in causes}
    return causes | {
        key: LOST
        for compiles in written.values()
        for key in compiles
        if key in before or key in quarantined
    }


def _find_in(
    cache: CachedFacts,
    written: dict[str, CompileFinished],
    causes: dict[str, str],
    deadline: float,
    recorder: ReportBuilder,
) -> None:
    order = {key: number for number, key in enumerate(written)}
    hits = {d.key for d in recorder.modules if d.outcome == "hit"}

    def rank(item: tuple[str, CompileFinished]) -> tuple[bool, float]:
        """The program's own functions first, of these what took longest to compile."""
        done = item[1]
        return is_helper(done.function, done.file), -(done.seconds_of("compile") or 0.0)

    for key, done in sorted(written.items(), key=rank):
        # Known when it was compiled: what an earlier run wrote, or this one before.
        others = [k for k in cache.keys_by_use(done.module) if order.get(k, -1) < order[key]]
        others = [k for k in others if k not in hits] or others
        if not others:
            causes[key] = FIRST_TIME
            continue
        new = as_compile(done, recorder)
        compared = compare_with(cache, others, new, max_bytes=0)
        # The listener has reported the arguments of everything that this run compiled.
        if not _is_told_by_sketches(compared, any_shapes=all(k in written for k in others)):
            if time.monotonic() > deadline:
                causes[key] = NOT_COMPARED
                continue
            compared = compare_with(cache, others, new, max_bytes=_MAX_ENTRY_BYTES)
        causes[key] = describe_comparison(compared)


def _is_told_by_sketches(comparison: Comparison, *, any_shapes: bool) -> bool:
    """Whether what the ledger knows suffices, so that no entry need be decoded."""
    left = comparison.left
    right = comparison.right
    if not (left and left.sketch and right.sketch):
        return False
    if not (any_shapes or left.sketch.passed == right.sketch.passed):
        return False
    is_known = comparison.differences[0].cause is not Cause.UNKNOWN
    return is_known and differing_components(left, right) == ["computation"]


def compare_with(
    cache: CachedFacts, keys: Sequence[str], new: Compile, *, max_bytes: float = math.inf
) -> Comparison:
    """Compare a compile with the first few of the entries that its module has.

    Args:
        max_bytes: larger entries are not opened.
    """
    recorded = [cache.complete(Compile(new.module, k), max_bytes=0) for k in keys[:_MOST_RANKED]]
    recorded.sort(key=lambda candidate: is_of_other_machine(candidate, new))
    candidates = (Compile(new.module, c.key) for c in recorded[:MOST_CANDIDATES])
    left = tuple(cache.complete(c, max_bytes=max_bytes) for c in candidates)
    right = (cache.complete(new, max_bytes=max_bytes),)
    return explain(Side("", left, is_run=False), Side("", right)).comparisons[0]


def describe_comparison(comparison: Comparison) -> str:
    """Return one line: the first difference itself, and the other parts of the key that differ."""
    first, *others = comparison.differences
    others = [d for d in others if d.where or d.cause is not Cause.CODE]  # follow from the first
    left = comparison.left
    right = comparison.right
    if first.cause is Cause.NOT_CACHED_BEFORE:
        return FIRST_TIME
    if first.cause is Cause.UNKNOWN and not first.brief and left and left.key and right.key:
        return UNKNOWN_CHANGE
    what = first.title
    values = [v for v in (first.left, first.right) if v]
    if first.cause in _OF_TYPES and left and (change := first_change(left, right)):
        what = change
    elif first.cause is Cause.PATH:
        what = _of_path(first)
    elif first.brief:
        what = first.brief
    elif len(values) == 2 and all(_is_shown(v) for v in values):
        what = f"{what}: {values[0]} → {values[1]}"
    more = [_of_path(d) if d.cause is Cause.PATH else d.title for d in others[:1]]
    if len(others) > 1:
        more.append(f"{len(others) - 1} more")
    since = "since the last recorded one: " if comparison.compared_with == "last-recorded" else ""
    return f"{since}{what}; also {', '.join(more)}" if others else f"{since}{what}"


def _of_path(difference: Difference) -> str:
    """Return the paths from the first directory that differs; one that is long is cut."""
    values = [v for v in (difference.left, difference.right) if v]
    parts = [v.split("/") for v in values]
    shared = 0
    if len(parts) > 1 and all(v.startswith("/") for v in values):
        # Keep the last directory: a path inside the other shows as ``jax → jax/new``.
        most = min(map(len, parts)) - 1
        shared = next((n for n in range(most) if len({p[n] for p in parts}) > 1), most)
    paths = (_cut("/".join(p[shared:])) for p in parts)
    return f"{CACHE_PATH}{' → '.join(paths)}"


def _cut(path: str) -> str:
    if len(path) <= _SHOWN_PATH:
        return path
    start = "" if path.startswith("/") else path[: _SHOWN_PATH // 2 - 1]
    return f"{start}…{path[len(start) + 1 - _SHOWN_PATH :]}"


def _is_shown(value: str) -> bool:
    """Whether a value fits the line, and is not the hash of one."""
    return len(value) <= _SHOWN_CHARACTERS and not value.startswith("sha256 ")
