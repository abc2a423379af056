"""Answer why a compile missed: choose the earlier one, compare, and sum a whole run up."""

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from jaxcache.cache.explain import say
from jaxcache.cache.explain.choose import (
    Chosen,
    choose,
    is_same_function,
    is_same_place,
    is_unstable,
)
from jaxcache.cache.explain.parts import compare, compare_entry, differing_components, first_time
from jaxcache.cache.explain.past import Past, show_time
from jaxcache.cache.explain.program import show_argument
from jaxcache.cache.explain.sides import (
    COMPONENTS,
    CachedFacts,
    Cause,
    Comparison,
    Compile,
    Difference,
    Evidence,
    file_name,
    is_cell,
)
from jaxcache.core.compile_event import UndonePart
from jaxcache.core.machine import XLA_CACHES
from jaxcache.core.runs import CompileRow, Run

#: Parts of a key whose values only entries show.
_OF_ENTRIES = frozenset({"compile_options", "accelerator_config"})


def compare_with_nearest(olds: Iterable[Compile], new: Compile) -> Comparison:
    """Compare a compile with the one of this process that differs in the fewest ways."""
    old = min(olds, key=lambda c: (c.passed != new.passed, len(compare(c, new))))
    return Comparison(old, new, compare(old, new))


class Answers:
    """Why the compiles of one run missed.

    Args:
        cache: what the keys of the cache are known by.
        run: the run itself; None where nothing describes it.
        history: the earlier runs of its program.
        new: what the run has compiled, if that is elsewhere.
        max_bytes: larger entries are not opened.
    """

    def __init__(
        self,
        cache: CachedFacts | None,
        compiles: Sequence[Compile],
        run: Run | None,
        history: Sequence[Run],
        *,
        new: CachedFacts | None = None,
        max_bytes: float = math.inf,
    ) -> None:
        self._cache = cache
        self._run = run
        self._history = history
        self._new = new or cache
        self._max_bytes = max_bytes
        self._compiles = {c.key: c for c in compiles if c.key}
        self._used = frozenset(self._compiles)
        self._rows = {row.key: row for row in run.rows if row.key} if run else {}
        self._chosen: dict[CompileRow, Chosen] = {}

    def explain(self, missed: Sequence[Compile]) -> list[Comparison]:
        """Return the comparison of each compile that missed, the user's own first."""
        rows = [row for c in missed if (row := self._rows.get(c.key or ""))]
        if self._run:
            self._chosen = choose(rows, self._run, self._history, self._facts)
        comparisons = [self._compare(c) for c in missed]
        return sorted(comparisons, key=lambda c: c.right.is_helper)

    def _facts(self, row: CompileRow) -> Compile:
        """Return what the ledger and the entries know of a row's key."""
        if row.key not in self._compiles:
            self._compiles[row.key] = self._recorded(row.module, row.key)
        return self._compiles[row.key]

    def _compare(self, new: Compile) -> Comparison:
        row = self._rows.get(new.key or "")
        if new.outcome == "uncacheable":
            return Comparison(None, new, compare(None, new))
        if self._cache and new.key and self._new is not self._cache and self._cache.knows(new.key):
            return self._unkept(new, *((row and self._same_key(row)) or (None, None)))
        if row and (earlier := self._same_key(row)):
            return self._unkept(new, *earlier)
        if new.undone and (self._history or not self._is_recorded(new)):
            old = self._recorded(new.module, new.undone_key or "")
            return Comparison(old, new, tuple(proved_by_undoing(new)))
        if row is None or row not in self._chosen:
            if before := self._defined_before(new):
                return Comparison(before, new, compare(before, new))
            return Comparison(None, new, (self._first_time(new, row),))
        chosen = self._chosen[row]
        old = self._facts(chosen.row)
        names = differing_components(old, new)
        if names is None or _OF_ENTRIES.intersection(names):
            old = self._complete(chosen.row)
            new = self._new.complete(new, max_bytes=self._max_bytes) if self._new else new
        differences = compare(old, new, past=chosen.past)
        is_other_program = names == [COMPONENTS[0]]
        if is_other_program and self._run and is_unstable(row, self._run, self._history):
            differences = tuple(map(_as_unstable, differences))
        # A cure promises a hit, so the entry must be there.
        if not (self._cache and self._cache.has(chosen.row.key)):
            differences = tuple(
                d if d.evidence is Evidence.UNSTABLE else replace(d, fix=None) for d in differences
            )
        return Comparison(old, new, differences, chosen.past.name)

    def _defined_before(self, new: Compile) -> Compile | None:
        """Return the last compile of this run of a function that another cell has defined since."""
        if not is_cell(new.source):
            return None
        earlier = takewhile(lambda c: c.key != new.key, self._compiles.values())
        alike = [
            c
            for c in earlier
            if c.module == new.module and c.passed == new.passed and is_cell(c.source)
        ]
        others = [c for c in alike if _file(c) != _file(new)]
        if others and self._cache:  # an earlier block of this process has its sketch
            return self._cache.complete(others[-1], max_bytes=0)
        return others[-1] if others else None

    def _complete(self, row: CompileRow) -> Compile:
        facts = Compile(row.module, row.key or None)
        cache = self._cache
        return cache.complete(facts, max_bytes=self._max_bytes) if cache and row.key else facts

    def _same_key(self, row: CompileRow) -> tuple[Run, CompileRow] | None:
        """Return the newest run that had this key already."""
        for run in self._history:
            for old in run.rows:
                if old.key == row.key:
                    return run, old
        return None

    def _unkept(self, new: Compile, run: Run | None, row: CompileRow | None) -> Comparison:
        """Describe a key that was compiled before: its entry was never written, or is gone."""
        old = self._complete(CompileRow(new.module, new.key or ""))
        if row:
            is_unwritten = not row.written and row.outcome != "hit"
            outcome = "skipped" if is_unwritten else row.outcome or None
            old = replace(old, outcome=outcome, reason=row.reason, rule=row.reason)  # type: ignore[arg-type]
        # A run that fills the cache has written the entry by now.
        is_fresh = self._new is self._cache
        is_there = not is_fresh and self._cache is not None and self._cache.has(new.key or "")
        since = show_time(row.written) if row and row.written else ""
        difference = compare_entry(old, new, since=since, is_there=is_there)
        return Comparison(old, new, (difference,), Past(run).name)

    def _first_time(self, new: Compile, row: CompileRow | None) -> Difference:
        """Say that nothing earlier is known, and of what."""
        facts = [self._recorded(new.module, key) for key in self._keys_of(new.module)]
        if any(c.components is None for c in facts):  # by plain JAX
            return Difference("computation", None, None, say.NOT_KNOWN, None, title=say.NOT_KNOWN)
        if row is None or self._run is None:
            return first_time(new, say.first_time("", ()))
        if not self._history:
            scripts = sorted({file_name(c.script) for c in facts if c.script})
            return first_time(new, say.first_time(self._run.program, scripts))
        last = self._history[0]
        since = show_time(last.at)
        alike = [r for r in self._run.rows if r.key != row.key and is_same_function(r, row)]
        hits = [r for r in alike if r.outcome == "hit"]
        if not hits and not any(is_same_place(old, row) for old in last.rows):
            return first_time(new, say.new_function(since))
        place = file_name(f"{row.call_file}:{row.call_line}") if row.call_file else row.module
        now = _signature(self._facts(row))
        for hit in hits:
            earlier = _signature(self._facts(hit))
            apart = [
                n for n, types in enumerate(zip(now, earlier, strict=False)) if len({*types}) > 1
            ]
            if apart and len(now) == len(earlier):
                shown = [", ".join(side[n] for n in apart) for side in (now, earlier)]
                return first_time(new, say.new_signature(since, place, *shown))
        return first_time(new, say.one_more(since, place, len(hits)))

    def _keys_of(self, module: str) -> list[str]:
        """Return the keys of a module in the cache that this run does not use."""
        keys = self._cache.keys_of(module) if self._cache else []
        return [key for key in keys if key not in self._used]

    def _is_recorded(self, new: Compile) -> bool:
        """Return whether a run under jaxcache, so one of another program, made the undone key."""
        return self._recorded(new.module, new.undone_key or "").components is not None

    def _recorded(self, module: str, key: str) -> Compile:
        """Return what the ledger knows of a key; it knows no parts of what plain JAX compiled."""
        facts = Compile(module, key)
        return self._cache.complete(facts, max_bytes=0) if self._cache else facts


def _file(compile_: Compile) -> str:
    return (compile_.source or "").rpartition(":")[0]


def _as_unstable(difference: Difference) -> Difference:
    meaning = f"{difference.meaning}; {say.NEVER_HITS}"
    return replace(difference, evidence=Evidence.UNSTABLE, meaning=meaning, fix=None)


def _signature(compile_: Compile) -> list[str]:
    passed = compile_.sketch.passed if compile_.sketch else None
    return [*map(show_argument, passed or compile_.passed or ())]


# One verdict -------------------------------------------------------------------------------------


def sum_up(comparisons: Sequence[Comparison], total: int, hits: int) -> Iterator[str]:
    """Yield one sentence a cause of a run: how many compiles it costs, how long, what undoes it."""
    groups: defaultdict[tuple[str, str, Cause], list[Comparison]] = defaultdict(list)
    for comparison in comparisons:
        first = comparison.differences[0]
        cure = (first.fix or "") if first.evidence is Evidence.PROVED else ""
        title = first.title if first.cause is not Cause.NOT_CACHED_BEFORE else say.FIRST_TIME
        groups[title, cure, first.cause].append(comparison)
    ordered = sorted(groups.items(), key=lambda item: -_seconds(item[1]))
    for (title, cure, _), members in ordered:
        yield say.verdict(title, len(members), _seconds(members), hits + len(members), total, cure)


def _seconds(comparisons: Iterable[Comparison]) -> float:
    return math.fsum(c.right.compile_seconds or 0.0 for c in comparisons)


# Undone parts -------------------------------------------------------------------------------------

_PORTABLE = XLA_CACHES.upper()
#: By the kind of a part: the component of the key, the cause, and what it is.
_KINDS: dict[str, tuple[str, Cause, str]] = {
    "flag": ("XLA flags", Cause.FLAG, "XLA flags"),
    "option": ("compile_options", Cause.FLAG, "compiler_options of the jit"),
    "setting": ("compile_options", Cause.CONFIG, ""),
    "devices": ("accelerator_config", Cause.DEVICE, "number of devices"),
    "codec": ("compression", Cause.CODEC, "codec"),
    "path": ("compile_options", Cause.PATH, "cache path"),
}


def proved_by_undoing(compile_: Compile) -> Iterator[Difference]:
    """Yield what must be undone so that a compile hits; several differences only do so together."""
    for part in compile_.undone:
        component, cause, title = _KINDS[part.kind]
        title = title or part.name.lower()
        undone, value = (_shown(part, text) for text in (part.undone, part.value))
        undoing = f"with {undone}" if part.undone else f"without {value}"
        if len(compile_.undone) > 1:
            undoing = f"{undoing}, and all of these differences undone,"
        where = f" in {part.name}" if part.kind == "flag" else ""
        meaning = f"{title}{where}: {undoing} this is the key of an entry of the cache"
        is_alone = len(compile_.undone) == 1
        yield Difference(
            component,
            undone,
            value,
            meaning,
            _fix(part) if is_alone else None,
            cause,
            title=title,
            evidence=Evidence.PROVED if is_alone else Evidence.IN_PART,
        )


def _shown(part: UndonePart, text: str) -> str:
    if part.kind == "path":
        return text or f"no path in the key ({XLA_CACHES}=none)"
    return f"device_count={text}" if part.kind == "devices" else text or "without"


def _fix(part: UndonePart) -> str | None:
    """The command that undoes a part; words where no command does."""
    if part.kind == "codec":
        return say.install_codec(part.undone)
    if part.kind == "path":
        if not part.undone:
            return say.set_variable(_PORTABLE, "none")
        if not part.value:
            return f"unset {_PORTABLE}" if _PORTABLE in os.environ else "leave out --portable"
        return say.use_path(part.undone, part.value)
    if part.restored is not None:
        return say.set_variable(part.name, part.restored)
    if part.kind == "devices":
        return f"let the program have {part.undone} of them"
    return f"leave {part.value} out of {'the arguments' if part.name == 'argv' else part.name}"
