"""What a second run of a program would not hit, and why: the facts behind promises and problems.

JAX evicts the least recently used entries until an entry that it writes fits below
``jax_compilation_cache_max_size`` (jax/_src/lru_cache.py, 0.4.31 to 0.12). So a run whose entries
together fit is served whole the next time, and one whose entries do not fit always misses some.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxcache.cache.doctor.inputs import CAP, CONTENTS
from jaxcache.core.compile_event import CompileFinished
from jaxcache.core.runs import CompileRow, Run, is_repeated

_UNCAPPED = -1


class CapShortage(NamedTuple):
    """A directory whose cap is below what one run needs."""

    cache_dir: str
    cap_bytes: int
    entries: int
    """Entries that the run read, wrote, or made and could not write."""
    needed_bytes: int
    """Their size."""
    absent: tuple[str, ...] = ()
    """Modules whose entries were not there when the run had ended: JAX evicted them, or did not
    write them."""

    @property
    def sufficient_bytes(self) -> int:
        """A cap that keeps them all: XLA's code for CPU has another size in each compile."""
        return -(-self.needed_bytes * 5 // 4000) * 1000


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
        if is_entry and e.key and e.local_directory and isinstance(cap, int) and cap != _UNCAPPED:
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


def find_varying(runs: Sequence[Run]) -> frozenset[str]:
    """Return the keys that the newest run wrote, and that nothing recorded explains.

    An earlier run had the same sources, command line, versions, machine and settings, and wrote
    the same call under another key: what the key is made of changes in each process.
    """
    run = next(iter(runs), None)
    if run is None:
        return frozenset()
    alike = [other for other in runs[1:] if is_repeated(run, other)]
    keys = {row.key for other in alike for row in other.rows}
    calls = {_call_of(row) for other in alike for row in other.rows if row.outcome == "written"}
    written = (row for row in run.rows if row.outcome == "written" and row.key not in keys)
    return frozenset(row.key for row in written if _call_of(row) in calls)


def _call_of(row: CompileRow) -> tuple[object, ...]:
    """Return where and with what a function was called; its name may be new in each process."""
    place = (row.file, row.line, row.kind, row.call_file, row.call_line)
    return *place, row.signature, row.process
