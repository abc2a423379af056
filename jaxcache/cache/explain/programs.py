"""Why the computation differs: the name, the arguments, a constant, or the code."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace

from jaxcache.cache.explain.pair import without_addresses
from jaxcache.cache.explain.sides import Compile, Difference
from jaxcache.entry.contents import ArrayType

COMPUTATION = "computation"
_ARGUMENT = re.compile(r"([^\s,\[]+)\[([^\]]*)\]")
_HASH = re.compile(r" #[0-9a-f]{8}\b")
_VALUE = re.compile(r"^(\s*constant [^=]*=) .*")
_PRECISION = re.compile(r" precision=\S+( \d+)?")
_SHOWN_LINES = 8
#: More lines than this are not compared line by line, which takes their square.
_MAX_DIFFED = 4_000
#: dtypes as they are without and with ``jax_enable_x64``.
_X64 = {
    ("float32", "float64"), ("int32", "int64"), ("uint32", "uint64"), ("complex64", "complex128"),
}  # fmt: skip
_HEADERS = {
    "aliases": ("donated arguments", "donate the same arguments in both"),
    "donors": ("donated arguments", "donate the same arguments in both"),
    "parameter shardings": ("shardings of arguments", "place the arguments in the same way"),
    "result sharding": ("shardings of results", "ask for the same output shardings"),
}


def compare_programs(left: Compile, right: Compile) -> Difference:
    """Say why the computations of two compiles differ, as far as what is known tells."""
    return (
        _by_name(left, right)
        or _by_arguments(left, right)
        or _by_layout(left, right)
        or _by_outline(left, right)
        or Difference(
            COMPUTATION, None, None,
            "another program; which part cannot be told: "
            f"{_missing(left, right)}",
            "keep both entries in one cache, and explain again with --cache-dir",
        )
    )  # fmt: skip


def _missing(left: Compile, right: Compile) -> str:
    sides = [n for n, c in (("left", left), ("right", right)) if c.outline is None]
    if not sides:
        return "the two compiled programs are the same; the difference went away in optimization"
    return f"the cache has no entry of the {' and the '.join(sides)} side"


def _by_name(left: Compile, right: Compile) -> Difference | None:
    if left.module == right.module:
        return None
    if without_addresses(left.module) == without_addresses(right.module):
        return Difference(
            COMPUTATION, left.module, right.module,
            "the name holds an address, which is another one in every process: never a hit",
            "give the function a fixed __name__ before jit",
        )  # fmt: skip
    return Difference(
        COMPUTATION, left.module, right.module, "another name, which is part of the program",
        "call the function by the same name",
    )  # fmt: skip


def _by_arguments(left: Compile, right: Compile) -> Difference | None:
    lefts, rights = _types(left, right), _types(right, left)
    if lefts is None or rights is None or lefts == rights:
        return None
    shown = ", ".join(map(_show, lefts)), ", ".join(map(_show, rights))
    if len(lefts) != len(rights):
        meaning, fix = (
            f"{len(rights)} arguments and not {len(lefts)}",
            "pass the same arguments; those that are not used are dropped",
        )
        return Difference(COMPUTATION, *shown, meaning, fix)
    dtypes = {(a.dtype, b.dtype) for a, b in zip(lefts, rights, strict=True) if a.dtype != b.dtype}
    shapes = sum(a.shape != b.shape for a, b in zip(lefts, rights, strict=True))
    both = {tuple(sorted(pair, key=_bits)) for pair in dtypes}
    if dtypes and both <= _X64 and not shapes:
        return Difference(
            COMPUTATION, *shown,
            "the dtypes of arguments: twice the bits, as jax_enable_x64 makes them",
            "set JAX_ENABLE_X64 alike on both sides, or pass explicit dtypes",
        )  # fmt: skip
    if dtypes and not shapes:
        return Difference(
            COMPUTATION, *shown, "the dtypes of arguments", "cast to one dtype before the call"
        )
    what = "the shapes of arguments" if not dtypes else "the shapes and dtypes of arguments"
    if left.arguments is None and (_partitions(left) > 1 or _partitions(right) > 1):
        what = "the shapes on each device: of arguments, or of their shardings"
    return Difference(
        COMPUTATION, *shown, what,
        "pad to a few fixed shapes: each shape is a program of its own",
    )  # fmt: skip


def _partitions(compile_: Compile) -> int:
    return (compile_.contents and compile_.contents.compile_options.num_partitions) or 1


def _by_layout(left: Compile, right: Compile) -> Difference | None:
    """The same arguments, in other pieces on each device."""
    known = [c.contents and c.contents.program for c in (left, right)]
    if left.arguments is None or left.arguments != right.arguments or not all(known):
        return None
    shards = [", ".join(map(_show, p.parameters)) for p in known if p]
    if shards[0] == shards[1]:
        return None
    meaning, fix = _HEADERS["parameter shardings"]
    return Difference(COMPUTATION, f"{shards[0]} on each device", shards[1], meaning, fix)


def _bits(dtype: str) -> int:
    digits = re.sub(r"\D", "", dtype)
    return int(digits) if digits else 0


def _types(compile_: Compile, other: Compile) -> tuple[ArrayType, ...] | None:
    """Arguments of a compile: global ones if both sides tell them, else per shard, of entries."""
    if compile_.arguments is not None and other.arguments is not None:
        return tuple(
            ArrayType(dtype, tuple(_dimension(d) for d in dims.split(",") if d.strip()))
            for dtype, dims in _ARGUMENT.findall(compile_.arguments)
        )
    known = compile_.contents and compile_.contents.program
    return known.parameters if known else None


def _dimension(text: str) -> int:
    digits = text.partition("@")[0].strip()
    return int(digits) if digits.isdigit() else -1


def _show(array: ArrayType) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _by_outline(left: Compile, right: Compile) -> Difference | None:
    """Compare what was compiled, line by line."""
    if left.outline is None or right.outline is None or left.outline == right.outline:
        return None
    old, new = list(left.outline), list(right.outline)
    if header := _by_header(old, new):
        return _with_bytes(header, left, right)
    if _without(_PRECISION, old) == _without(_PRECISION, new):
        lines = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        return Difference(
            COMPUTATION, _HASH.sub("", lines[0][0]).strip(), _HASH.sub("", lines[0][1]).strip(),
            "the precision of matrix products",
            "set jax_default_matmul_precision alike on both sides",
        )  # fmt: skip
    if [_VALUE.sub(r"\1", x) for x in old] == [_VALUE.sub(r"\1", x) for x in new]:
        lines = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        return Difference(
            COMPUTATION,
            _HASH.sub("", lines[0][0]).strip() if "= #" not in lines[0][0] else lines[0][0].strip(),
            _HASH.sub("", lines[0][1]).strip() if "= #" not in lines[0][1] else lines[0][1].strip(),
            f"{'a constant' if len(lines) == 1 else f'{len(lines)} constants'} in the program"
            + _where(right),
            "pass it as an argument: a value that is closed over becomes part of the program",
        )  # fmt: skip
    return _by_code(left, right, old, new)


def _without(pattern: re.Pattern[str], lines: Sequence[str]) -> list[str]:
    return [pattern.sub("", line) for line in lines]


def _by_header(old: list[str], new: list[str]) -> Difference | None:
    """What the module says of its arguments, where the instructions are the same."""
    if _body(old) != _body(new):
        return None
    olds, news = set(old) - set(_body(old)), set(new) - set(_body(new))
    for line in sorted(olds ^ news):
        name = line.partition(" #")[0]
        if name in _HEADERS:
            meaning, fix = _HEADERS[name]
            before = next((x for x in olds if x.startswith(name)), "none")
            after = next((x for x in news if x.startswith(name)), "none")
            return Difference(COMPUTATION, before, after, meaning, fix)
    return None


def _with_bytes(found: Difference, left: Compile, right: Compile) -> Difference:
    """Donations in bytes, which the message itself does not show."""
    if found.meaning != _HEADERS["aliases"][0]:
        return found
    sizes = [c.contents and c.contents.memory.alias_bytes for c in (left, right)]
    return replace(found, left=f"{sizes[0] or 0} bytes", right=f"{sizes[1] or 0} bytes")


def _body(lines: list[str]) -> list[str]:
    return [x for x in lines if x.partition(" #")[0] not in _HEADERS]


def _by_code(left: Compile, right: Compile, old: list[str], new: list[str]) -> Difference:
    removed, added = _diff(old, new)
    return Difference(
        COMPUTATION,
        _shorten(removed),
        _shorten(added),
        "the code: other operations" + _where(right, left),
        "an edit of the function, or of what it calls, is a new program; "
        "compile once and the new one is cached too",
    )


def _diff(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Lines that only one of the two has."""
    if max(len(old), len(new)) > _MAX_DIFFED:
        return sorted(set(old) - set(new)), sorted(set(new) - set(old))
    removed: list[str] = []
    added: list[str] = []
    # Not difflib.ndiff, which compares the letters of every line with those of every other.
    for same, start, end, new_start, new_end in difflib.SequenceMatcher(a=old, b=new).get_opcodes():
        if same != "equal":
            removed += (line.strip() for line in old[start:end])
            added += (line.strip() for line in new[new_start:new_end])
    return removed, added


def _shorten(lines: Sequence[str]) -> str:
    lines = [x for x in lines if x != "computation:"]
    shown = [_HASH.sub("", x) for x in lines[:_SHOWN_LINES]]
    more = len(lines) - len(shown)
    return "; ".join(shown) + (f"; and {more:,} more" if more > 0 else "") or "nothing"


def _where(right: Compile, left: Compile | None = None) -> str:
    """The user's lines: those that only one side has, else the first."""
    lines = _sources(right)
    if left is not None:
        lines = [x for x in lines if x not in _sources(left)] or lines
    if lines:
        return f" (at {', '.join(lines[:3])})"
    return f" (of {right.source})" if right.source else ""


def _sources(compile_: Compile) -> list[str]:
    found = compile_.contents.source if compile_.contents else ()
    return [f"{s.file}:{s.line}" for s in found]
