"""Answer why a compile missed: choose the earlier one, compare, and sum a whole run up.

A compile is compared with an earlier compile of the same place in the program. Keys that the run
itself used are other compiles of it. A place is a function of a file, by the text of its first
line, and a call, by the text of its line; names and the order only break ties. Of several runs the
one with the fewest differing parts is taken, then the newest.
"""

import math
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product, takewhile
from typing import NamedTuple

from jaxcache.cache.explain import say
from jaxcache.cache.explain.parts import compare, compare_entry, differing_components, first_time
from jaxcache.cache.explain.past import Past, find_edits, show_time
from jaxcache.cache.explain.program import fewest_layers, show_argument
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
    without_addresses,
)
from jaxcache.core.compile_event import UndonePart
from jaxcache.core.names import XLA_CACHES
from jaxcache.core.runs import CompileRow, Run, is_repeated

_UNSTABLE_RUNS = 2

CompileOf = Callable[[CompileRow], Compile]
Cost = tuple[bool | int, ...]


class Chosen(NamedTuple):
    """An earlier compile, and the run that did it."""

    row: CompileRow
    past: Past


def choose(
    wanted: Sequence[CompileRow], run: Run, history: Sequence[Run], facts: CompileOf
) -> dict[CompileRow, Chosen]:
    """Return the earlier compile of each of some rows of a run; none for what is new.

    Args:
        facts: what is known of the key of a row.
    """
    used = {row.key for row in run.rows}
    compiled = {row.key for old in history for row in old.rows}
    wanted = [row for row in wanted if row.key not in compiled]
    chosen: dict[CompileRow, Chosen] = {}
    ranks: dict[CompileRow, tuple[object, ...]] = {}
    for age, old in enumerate(history, 1):
        free = [row for row in old.rows if row.key not in used]
        keys = {row.key for row in old.rows}
        for own in run.rows:  # one compile of this run is not an earlier form of another one
            if own not in wanted and own.key not in keys:
                same = (r for r in free if is_same_place(r, own) and r.signature == own.signature)
                if row := next(same, None):
                    free.remove(row)
        edits = find_edits(old.sources, run.sources)
        settings = len({*map(str, old.settings.items())} ^ {*map(str, run.settings.items())})
        settings += len({*old.xla_flags} ^ {*run.xla_flags})
        for new, row in _pair(wanted, free, run.sources, facts).items():
            if row.signature != new.signature and _has_alike(new, run.rows, compiled):
                continue
            parts = differing_components(facts(row), facts(new))
            rank = (
                math.inf if parts is None else len(parts),
                row.signature != new.signature,
                settings,
                old.argv != run.argv,
                len(edits),
                age,
            )
            if new not in ranks or rank < ranks[new]:
                ranks[new] = rank
                count = _count_signatures(new, run, history)
                chosen[new] = Chosen(row, Past(old, run, row, age, count))
    return chosen


def _pair(
    wanted: Sequence[CompileRow],
    free: Sequence[CompileRow],
    sources: Collection[str],
    facts: CompileOf,
) -> dict[CompileRow, CompileRow]:
    """Pair rows of two runs, the most alike first; each has one partner at most."""
    orders = {id(row): n for rows in (wanted, free) for row, n in _ordinals(rows)}
    costs = []
    for (i, new), (j, old) in product(enumerate(wanted), enumerate(free)):
        cost = _cost(old, new, sources)
        if cost is not None:
            is_same = _computation(facts(old)) == _computation(facts(new)) is not None
            costs.append((not is_same, cost, abs(orders[id(old)] - orders[id(new)]), i, j))
    pairs: dict[CompileRow, CompileRow] = {}
    taken: set[int] = set()
    for _, _, _, i, j in sorted(costs):
        if wanted[i] not in pairs and j not in taken:
            pairs[wanted[i]] = free[j]
            taken.add(j)
    # A function that has only another name: its program shows it.
    for new in wanted:
        sketch = None if new in pairs else facts(new).sketch
        for j, old in enumerate(free) if sketch else ():
            other = None if j in taken or old.kind != new.kind else facts(old).sketch
            if sketch and other and fewest_layers(other, sketch) in ("", "names"):
                pairs[new] = old
                taken.add(j)
                break
    return pairs


def _has_alike(new: CompileRow, rows: Iterable[CompileRow], compiled: Collection[str]) -> bool:
    """Return whether the call took the same in an earlier compile: no other shape is its cause."""
    alike = (row for row in rows if row.key in compiled and row.signature == new.signature)
    return any(is_same_function(row, new) for row in alike)


def _computation(compile_: Compile) -> str | None:
    return (compile_.components or {}).get(COMPONENTS[0])


def _ordinals(rows: Sequence[CompileRow]) -> Iterator[tuple[CompileRow, int]]:
    counts: defaultdict[tuple[str, str, int], int] = defaultdict(int)
    for row in rows:
        place = row.file, row.function, row.process
        yield row, counts[place]
        counts[place] += 1


def _cost(old: CompileRow, new: CompileRow, sources: Collection[str]) -> Cost | None:
    """Return how unlike two rows of two runs are; None where they are of different places."""
    is_call = bool(new.call) and (old.call_file, old.call) == (new.call_file, new.call)
    is_named = without_addresses(old.module) == without_addresses(new.module)
    if old.kind and new.kind and old.kind != new.kind:
        return None
    if new.kind == "eager" or not new.file:
        if not is_named or old.file != new.file:
            return None
        return (False, old.signature != new.signature, not is_call, False, False, False)
    is_definition = bool(new.definition) and old.definition == new.definition
    if old.file != new.file:
        # It moved: its old file has another text, or is gone; two files may each have one.
        if not (is_named and (is_definition or file_name(old.file) == file_name(new.file))):
            return None
        if old.file in sources and not is_definition:
            return None
    elif not (is_named or is_definition):
        return None
    return (
        old.file != new.file,
        old.signature != new.signature,
        not is_call,
        not is_definition,
        not is_named,
        old.process != new.process,
    )


def is_same_place(old: CompileRow, new: CompileRow) -> bool:
    """Return whether two rows are of one function and kind, whatever was passed."""
    if old.kind != new.kind or old.file != new.file:
        return False
    is_definition = bool(new.definition) and old.definition == new.definition
    return is_definition or without_addresses(old.module) == without_addresses(new.module)


def is_same_function(old: CompileRow, new: CompileRow) -> bool:
    """Return whether one line defines both: other lambdas of a file have the same name."""
    return is_same_place(old, new) and old.definition == new.definition


def _count_signatures(new: CompileRow, run: Run, history: Sequence[Run]) -> int:
    rows = [row for each in (run, *history) for row in each.rows]
    return len({row.signature for row in rows if row.signature and is_same_function(row, new)})


def is_unstable(new: CompileRow, run: Run, history: Sequence[Run]) -> bool:
    """Return whether a place had another key in each of several runs that were alike else."""
    keys = {new.key}
    if new.file not in run.sources:
        return False
    for old in history:
        if not is_repeated(run, old):
            continue
        alike = [r for r in old.rows if is_same_function(r, new) and r.signature == new.signature]
        own = [r for r in run.rows if is_same_function(r, new) and r.signature == new.signature]
        if len(alike) != 1 or len(own) != 1:
            return False
        if alike[0].outcome == "hit" or alike[0].key in keys:
            return False
        keys.add(alike[0].key)
    return len(keys) > _UNSTABLE_RUNS


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
        undone = self._recorded(new.module, new.undone_key or "")
        # A recorded key without a history here was made by another program.
        if new.undone and (self._history or undone.components is None):
            return Comparison(undone, new, tuple(proved_by_undoing(new)))
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
        if names is None and (run := chosen.past.old):  # which may have written nothing
            jax, jaxlib = map(run.versions.get, ("jax", "jaxlib"))
            old = replace(old, cache_path=run.cache_path, jax_version=jax, jaxlib_version=jaxlib)
        differences = compare(old, new, past=chosen.past)
        is_other_program = names == [COMPONENTS[0]]
        if is_other_program and self._run and is_unstable(row, self._run, self._history):
            differences = tuple(map(_as_unstable, differences))
        # A cure promises a hit, so the entry must be there.
        if not (self._cache and self._cache.has(chosen.row.key)):
            differences = tuple(d.without_cure() for d in differences)
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
        is_unwritten = row is not None and not row.written and row.outcome != "hit"
        if row:
            outcome = "skipped" if is_unwritten else row.outcome or None
            old = replace(old, outcome=outcome, reason=row.reason, rule=row.reason)  # type: ignore[arg-type]
        # A run that fills the cache has written the entry by now.
        is_fresh = self._new is self._cache
        is_there = not is_fresh and self._cache is not None and self._cache.has(new.key or "")
        written = show_time(row.written) if row and row.written else ""
        since = Past(run).since if is_unwritten else written
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

    def _recorded(self, module: str, key: str) -> Compile:
        """Return what the ledger knows of a key; it knows no parts of what plain JAX compiled."""
        facts = Compile(module, key)
        return self._cache.complete(facts, max_bytes=0) if self._cache else facts


def _file(compile_: Compile) -> str:
    return (compile_.source or "").rpartition(":")[0]


def _as_unstable(difference: Difference) -> Difference:
    meaning = f"{difference.meaning}; {say.HITS_BY_CHANCE}"
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
