"""Find, for each compile of the right side, the one of the left that it is best compared with."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from jaxcache.cache.explain.options import device_facts
from jaxcache.cache.explain.sides import JAXLIB, Compile
from jaxcache.cache.explain.sketches import count_differing_lines as unlike_lines
from jaxcache.entry.contents import ArrayType

#: The machine; shapes, static values, callers and the script's name that differ; the script's
#: directory; age of the last use, in uses; lines of the sketches; components; name; parts of the
#: entry; ratio of sizes.
Distance = tuple[bool, int, bool, int, int, int, bool, int, float]
#: The components of a key that one machine with one jaxlib has alike in all its keys.
_OF_MACHINE = (JAXLIB, "backend version", "accelerator_config")
_ARGUMENT = re.compile(r"([^\s,\[]+)\[([^\]]*)\]")

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}|(?<=[_.])[0-9a-f]{12}(?=[_.]|$)")


def without_addresses(module: str) -> str:
    """A module's name with every address in it replaced by ``0x…``."""
    return _ADDRESS.sub("0x…", module)


def user_lines(compile_: Compile) -> list[str]:
    """Return ``file:line`` of the Python that the instructions of an entry came from."""
    sources = compile_.contents.source if compile_.contents else ()
    return [f"{s.file}:{s.line}" for s in sources if "/jaxcache/injected/" not in s.file]


def argument_types(compile_: Compile, other: Compile) -> tuple[ArrayType, ...] | None:
    """Return the types of arguments: global ones if both sides have them, else per shard.

    Beside a side without an entry, those of an entry that is not divided are global.
    """
    programs = [c.contents.program if c.contents else None for c in (compile_, other)]
    if compile_.arguments is not None and (other.arguments is not None or not all(programs)):
        return tuple(
            ArrayType(dtype, tuple(_dimension(d) for d in dims.split(",") if d.strip()))
            for dtype, dims in _ARGUMENT.findall(compile_.arguments)
        )
    options = compile_.contents.compile_options if compile_.contents else None
    is_comparable = all(programs) or bool(options and options.num_partitions == 1)
    return programs[0].parameters if programs[0] and is_comparable else None


def _dimension(text: str) -> int:
    digits = text.partition("@")[0].strip()
    return int(digits) if digits.isdigit() else -1


def match_compiles(
    left: Sequence[Compile], right: Sequence[Compile]
) -> Iterator[tuple[Compile | None, Compile]]:
    """Yield (left, right): the same key, else the nearest of the same module, else None.

    Nearest is the one of the same jaxlib and devices, with the same shapes and the same caller.
    Where the ledger recorded uses, the one that was used last comes first; else that of which most
    components are the same. Each left one is the partner of one right one, as long as there are
    enough; one that the right side has, too, comes last.
    """
    by_key = {c.key: c for c in left if c.key}
    shared = {c.key for c in right if c.key in by_key}
    modules: defaultdict[str, tuple[list[Compile], list[int]]] = defaultdict(lambda: ([], []))
    for compile_ in left:
        modules[without_addresses(compile_.module)][0].append(compile_)
    for index, compile_ in enumerate(right):
        if compile_.key not in by_key:
            modules[without_addresses(compile_.module)][1].append(index)
    partner: dict[int, Compile] = {}
    for candidates, wanting in modules.values():
        free = [c for c in candidates if c.key not in shared]
        ages = _ages(candidates)
        pairs = (
            (_distance(c, right[i], ages), at, i) for i in wanting for at, c in enumerate(free)
        )
        taken: set[int] = set()
        for _, at, index in sorted(pairs):  # the nearest first
            if at not in taken and index not in partner:
                taken.add(at)
                partner[index] = free[at]
        for index in wanting:
            if index not in partner and candidates:
                some = free or candidates
                partner[index] = min(some, key=lambda c: _distance(c, right[index], ages))
    for index, compile_ in enumerate(right):
        same_key = by_key.get(compile_.key) if compile_.key else None
        yield same_key or partner.get(index), compile_


def match_recorded(left: Sequence[Compile], new: Compile) -> Compile | None:
    """Return the nearest compile of the same arguments and machine whose program is recorded."""
    passed = new.sketch.passed if new.sketch else None
    alike = (c for c in left if c.module == new.module and not is_of_other_machine(c, new))
    recorded = [c for c in alike if c.sketch and new.sketch and c.sketch.passed == passed]
    return next(match_compiles(recorded, [new]))[0]


def _ages(candidates: Sequence[Compile]) -> dict[str | None, int]:
    """Return how many runs have used other entries since each was used last."""
    last: dict[str | None, int] = {}
    for c in candidates:
        run = c.record.run if c.record else None
        last[run] = max(last.get(run, 0), c.used_ns)
    order = {run: age for age, run in enumerate(sorted(last, key=lambda r: -last[r]))}
    return {c.key: order[c.record.run if c.record else None] for c in candidates}


def _distance(left: Compile, right: Compile, ages: Mapping[str | None, int]) -> Distance:
    apart, count_differing_lines = _types_apart(left, right)
    differing = int(left.key != right.key)  # if the components are not known
    if left.components and right.components:
        differing = sum(
            left.components.get(n) != right.components.get(n)
            for n in left.components.keys() | right.components.keys()
        )
    callers = _callers(left), _callers(right)
    moved = all(callers) and callers[0].isdisjoint(callers[1])
    renamed = left.module != right.module
    static = bool(left.sketch and right.sketch and left.sketch.static != right.sketch.static)
    elsewhere = bool(left.script and right.script and left.script != right.script)
    other_script = elsewhere and _file_name(left.script) != _file_name(right.script)
    return (
        is_of_other_machine(left, right),
        count_differing_lines + moved + static + other_script,
        elsewhere,
        ages.get(left.key, 0),
        unlike_lines(left.sketch, right.sketch),
        differing,
        renamed,
        _inner_distance(left, right),
        apart,
    )


def is_of_other_machine(left: Compile, right: Compile) -> bool:
    """Whether an entry is known to be of another jaxlib or of other devices."""
    if left.components and right.components:
        return any(left.components.get(n) != right.components.get(n) for n in _OF_MACHINE)
    if left.contents is None or right.contents is None:
        return False
    pairs = zip(device_facts(left.contents), device_facts(right.contents), strict=True)
    return any(old and new and old != new for old, new in pairs)


def _callers(compile_: Compile) -> set[str]:
    """Return ``file:line``, the file without its directory: a checkout elsewhere is the same."""
    return {_file_name(line) for line in (*user_lines(compile_), compile_.source) if line}


def _file_name(path: str | None) -> str:
    return (path or "").rpartition("/")[2]


def _types_apart(left: Compile, right: Compile) -> tuple[float, bool]:
    """Return how far apart the sizes of arguments and results are, and whether any differs."""
    pairs = [(argument_types(left, right), argument_types(right, left))]
    passed = [c.sketch.passed if c.sketch else None for c in (left, right)]
    if passed[0] is not None and passed[0] == passed[1]:
        return 0.0, False
    programs = [c.contents and c.contents.program for c in (left, right)]
    if programs[0] and programs[1]:
        pairs.append((programs[0].results, programs[1].results))
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    apart = sum(
        abs(math.log(max(1, math.prod(a.shape)) / max(1, math.prod(b.shape))))
        + (a.dtype != b.dtype)
        for lefts, rights in both
        for a, b in zip(lefts, rights, strict=False)
    )
    return apart, any(a != b for a, b in both)


def _inner_distance(left: Compile, right: Compile) -> int:
    """Count the parts of the entries that differ, where both are known."""
    old = left.contents
    new = right.contents
    if old is None or new is None:
        return 0
    return (
        (old.flags != new.flags)
        + (old.compile_options != new.compile_options)
        + (old.program is None or new.program is None)
        + (left.outline != right.outline)
    )
