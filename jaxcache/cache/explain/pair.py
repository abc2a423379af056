"""Find, for each compile of the right side, the one of the left that it is best compared with."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from jaxcache.cache.explain.sides import Compile

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}|(?<=[_.])[0-9a-f]{12}(?=[_.]|$)")


def without_addresses(module: str) -> str:
    """A module's name with every address in it replaced by ``0x…``."""
    return _ADDRESS.sub("0x…", module)


def pair(
    left: Sequence[Compile], right: Sequence[Compile]
) -> Iterator[tuple[Compile | None, Compile]]:
    """Yield (left, right): the same key, else the nearest of the same module, else None.

    Nearest is the one of which most components, then the arguments, are the same; one that the
    right side has too comes last. Equals are taken in order.
    """
    by_key = {c.key: c for c in left if c.key}
    shared = {c.key for c in right if c.key in by_key}
    by_module: defaultdict[str, list[Compile]] = defaultdict(list)
    for compile_ in left:
        by_module[without_addresses(compile_.module)].append(compile_)
    taken: set[int] = set()
    for compile_ in right:
        if compile_.key in by_key:
            yield by_key[compile_.key], compile_
            continue
        candidates = by_module[without_addresses(compile_.module)]
        free = [c for c in candidates if c.key not in shared and id(c) not in taken]
        best = min(free or candidates, key=lambda c: _distance(c, compile_), default=None)
        if best is not None:
            taken.add(id(best))
        yield best, compile_


def _distance(left: Compile, right: Compile) -> tuple[int, bool, bool, int]:
    differing = 0
    if left.components and right.components:
        differing = sum(
            left.components.get(n) != right.components.get(n)
            for n in left.components.keys() | right.components.keys()
        )
    arguments = left.arguments != right.arguments
    return differing, left.module != right.module, arguments, _inner_distance(left, right)


def _inner_distance(left: Compile, right: Compile) -> int:
    """How many parts of the entries differ, where both are known."""
    old, new = left.contents, right.contents
    if old is None or new is None:
        return 0
    return (
        (old.flags != new.flags)
        + (old.compile_options != new.compile_options)
        + (old.program is None or new.program is None)
        + bool(old.program and new.program and old.program.parameters != new.program.parameters)
        + (left.outline != right.outline)
    )
