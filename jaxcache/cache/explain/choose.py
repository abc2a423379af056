"""Choose what a compile is compared with: an earlier compile of the same place in the program.

Keys that the run itself used are other compiles of it. A place is a function of a file, by the
text of its first line, and a call, by the text of its line; names and the order only break ties. Of
several runs the one with the fewest differing parts is taken, then the newest.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from jaxcache.cache.explain.parts import differing_components
from jaxcache.cache.explain.past import Past, find_edits
from jaxcache.cache.explain.program import fewest_layers
from jaxcache.cache.explain.sides import COMPONENTS, Compile, file_name, without_addresses
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
