"""Say why a run compiled what it wrote: the nearest entry known, and what differs from it."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from jaxcache.cache.explain.compare import UNKNOWN, explain, headword
from jaxcache.cache.explain.known import KnownCache
from jaxcache.cache.explain.sides import Compile, Difference, Side, is_helper
from jaxcache.store import open_store
from jaxcache.warm.events import Done

FIRST_TIME = "first time"
LOST = "its entry is no longer there"
#: Bounds of what a run spends on it: entries looked at per compile, their size, and the time.
_CANDIDATES = 4
_MAX_ENTRY_BYTES = 16 << 20
_BUDGET_SECONDS = 3.0
_SHOWN_CHARACTERS = 40


def as_compile(event: Done) -> Compile:
    """Return a compile of a run as ``explain`` compares it."""
    known = event.file is not None and event.line is not None
    types = (f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in event.arguments)
    return Compile(
        module=event.module,
        key=event.key,
        components=event.components,
        outcome=event.outcome,
        reason=event.detail or event.reason,
        arguments=", ".join(types),
        names=tuple(a.name for a in event.arguments),
        is_helper=is_helper(event.function, event.file),
        xla_flags=event.xla_flags,
        ignored_flags=event.ignored_flags,
        source=f"{event.file}:{event.line}" if known else None,
    )


def find_causes(modules: Iterable[Done], before: Collection[str]) -> dict[str, str]:
    """Say why each key that was written was not in the cache; unknown causes are left out.

    Errors are ignored, because a cause only helps the reader.

    Args:
        before: keys that the cache or its ledger knew when the run began.
    """
    written: defaultdict[str, dict[str, Done]] = defaultdict(dict)
    for done in modules:
        if done.outcome == "written" and done.key and done.directory:
            written[done.directory].setdefault(done.key, done)
    causes: dict[str, str] = {}
    deadline = time.monotonic() + _BUDGET_SECONDS
    for directory, found in written.items():
        if "://" not in directory:
            with contextlib.suppress(Exception):
                _find_in(KnownCache(open_store(directory)), found, causes, deadline)
    return causes | {key: LOST for found in written.values() for key in found if key in before}


def _find_in(
    known: KnownCache, written: dict[str, Done], causes: dict[str, str], deadline: float
) -> None:
    order = {key: number for number, key in enumerate(written)}
    for key, done in written.items():
        if time.monotonic() > deadline:
            return
        # Known when it was compiled: what an earlier run wrote, or this one before.
        others = [k for k in known.keys_of(done.module) if order.get(k, -1) < order[key]]
        if not others:
            causes[key] = FIRST_TIME
            continue
        candidates = [
            known.complete(Compile(done.module, k), max_bytes=_MAX_ENTRY_BYTES)
            for k in others[:_CANDIDATES]
        ]
        new = known.complete(as_compile(done), max_bytes=_MAX_ENTRY_BYTES)
        compared = explain(Side("", tuple(candidates), is_run=False), Side("", (new,))).comparisons
        if compared:
            causes[key] = describe_differences(compared[0].differences)


def describe_differences(differences: Sequence[Difference]) -> str:
    """Return one line: what differs first, and how many more parts of the key do."""
    first = differences[0]
    what = headword(first.component, first.meaning)
    if first.component == UNKNOWN:
        return f"{what}; see jaxcache explain"
    values = [v for v in (first.left, first.right) if v]
    if len(values) == 2 and all(len(v) <= _SHOWN_CHARACTERS for v in values):
        what = f"{what}: {values[0]} → {values[1]}"
    more = len(differences) - 1
    return f"{what}; {more} more" if more else what
