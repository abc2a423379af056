"""The reason why computations differ: the name, the arguments, a constant, or the code."""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from jaxcache.cache.explain.matching import known_types, user_lines, without_addresses
from jaxcache.cache.explain.sides import Compile, Difference
from jaxcache.entry.contents import ArrayType
from jaxcache.entry.options import nearest_version
from jaxcache.entry.releases import MOSAIC_PATHS
from jaxcache.entry.shapes import dtype_names

_of_program = partial(Difference, "computation")
_HASH = re.compile(r" #[0-9a-f]{8}\b")
_VALUE = re.compile(r"^(\s*constant [^=]*=) .*")
_PRECISION = re.compile(r" precision=\S+( \d+)?")
#: A type in an outline: ``f32[8,16]``.
_TYPE = re.compile(r"\b([a-z]+\d+[a-z0-9]*|pred)\[([\d,]*)\]")
_SHOWN_TYPES = 4
#: The custom call that holds a Pallas kernel for a TPU (jax/_src/tpu_custom_call.py).
_KERNEL = "tpu_custom_call"
#: Two programs of which less than this share of the lines are unlike do the same in other shapes.
_UNLIKE = 0.2
_SHOWN_LINES = 8
#: More lines than this are not compared line by line, which takes their square.
_MAX_DIFFED = 4_000
#: dtypes as they are without and with ``jax_enable_x64``.
_X64 = {
    ("float32", "float64"),
    ("int32", "int64"),
    ("uint32", "uint64"),
    ("complex64", "complex128"),
}
_HEADERS = {
    "aliases": ("donated arguments", "donate the same arguments in both"),
    "donors": ("donated arguments", "donate the same arguments in both"),
    "parameter shardings": ("shardings of arguments", "place the arguments in the same way"),
    "result sharding": ("shardings of results", "ask for the same output shardings"),
}


def compare_programs(left: Compile, right: Compile) -> Difference:
    """Say why the computations of two compiles differ, as far as is known."""
    return (
        _by_name(left, right)
        or compare_arguments(left, right)
        or _by_layout(left, right)
        or _by_results(left, right)
        or _by_outline(left, right)
        or _by_kernel(left, right)
        or _unknown(left, right)
    )


def _unknown(left: Compile, right: Compile) -> Difference:
    sides = [n for n, c in (("left", left), ("right", right)) if c.contents is None]
    if sides:
        why = f"the cache has no entry of the {' and the '.join(sides)} side"
        fix = "keep the entries of both in one cache, and explain again with --cache-dir"
    elif left.outline is not None and left.outline == right.outline:
        why = "the compiled programs are the same, because optimization removed the difference"
        fix = "compare what jax.jit(f).lower(...).as_text() returns on both sides"
    else:
        why, fix = "an entry of theirs cannot be decoded", "jaxcache verify shows what is wrong"
    meaning = f"another program; which part cannot be told: {why}"
    return _of_program(None, None, meaning, fix)


def _by_kernel(left: Compile, right: Compile) -> Difference | None:
    """Compare Pallas kernels for a TPU: text inside of a custom call, which the outline omits."""
    programs = [c.contents and c.contents.program for c in (left, right)]
    if not all(p and _KERNEL in p.custom_calls for p in programs):
        return None
    old, new = (", ".join(user_lines(c)[:_SHOWN_LINES]) or None for c in (left, right))
    flags = (right.contents.flags if right.contents else None) or {}
    if not MOSAIC_PATHS.holds(nearest_version(frozenset(flags)) or ""):
        fix = "an edit of a kernel is a new program"
        return _of_program(old, new, "the code of a Pallas kernel", fix)
    moved = old != new and _places(left) == _places(right)
    return _of_program(
        old,
        new,
        f"the path of {'' if moved else 'or the lines in '}a Pallas kernel's file"
        + ("" if moved else ", or its code")
        + ": JAX before 0.11.0 puts file and lines into the key",
        "keep the checkout at one path on every machine, or use JAX 0.11",
    )


def _places(compile_: Compile) -> list[str]:
    """The user's lines without their folders."""
    return [line.rpartition("/")[2] for line in user_lines(compile_)]


def _by_name(left: Compile, right: Compile) -> Difference | None:
    if left.module == right.module:
        return None
    if without_addresses(left.module) == without_addresses(right.module):
        return _of_program(
            left.module,
            right.module,
            "the name holds an address, which is another one in every process: never a hit",
            "give the function a fixed __name__ before jit",
        )
    return _of_program(
        left.module,
        right.module,
        "another name, which is part of the program",
        "call the function by the same name",
    )


def compare_arguments(left: Compile, right: Compile) -> Difference | None:
    """Return how the arguments of two compiles differ; None if they do not, or are not known."""
    lefts, rights = known_types(left, right), known_types(right, left)
    if lefts is None or rights is None or lefts == rights:
        return None
    if len(lefts) != len(rights):
        return _of_program(
            _show_all(lefts),
            _show_all(rights),
            f"{len(rights)} arguments and not {len(lefts)}",
            "pass the same arguments; those that are not used are dropped",
        )
    found = _by_types("arguments", lefts, rights, right.names)
    if left.arguments is None and (_partitions(left) > 1 or _partitions(right) > 1):
        found = replace(
            found, meaning="the shapes on each device: of arguments, or of their shardings"
        )
    return found


def first_change(left: Compile, right: Compile) -> str | None:
    """Return the first argument, else result, of another type: ``x float32[8] → [16], +1 more``."""
    programs = [c.contents and c.contents.program for c in (left, right)]
    results = [p.results if p else None for p in programs]
    arguments = [known_types(left, right), known_types(right, left)]
    for what, (lefts, rights) in (("argument", arguments), ("result", results)):
        if lefts is None or rights is None or len(lefts) != len(rights):
            return None
        apart = [i for i, (a, b) in enumerate(zip(lefts, rights, strict=True)) if a != b]
        if apart:
            first, more = apart[0], len(apart) - 1
            old, new = lefts[first], rights[first]
            named = what == "argument" and len(right.names) == len(rights)
            name = right.names[first] if named else what + (f" {first}" if len(lefts) > 1 else "")
            shown = _show(new).removeprefix(old.dtype if old.dtype == new.dtype else "")
            return f"{name} {_show(old)} → {shown}" + (f", +{more:,} more" if more else "")
    return None


def _by_results(left: Compile, right: Compile) -> Difference | None:
    """Compare the types of the results, where those of the arguments are the same."""
    old, new = (c.contents and c.contents.program for c in (left, right))
    if not old or not new or old.results == new.results:
        return None
    if len(old.results) == len(new.results):
        found = _by_types("results", old.results, new.results)
        return replace(found, meaning=found.meaning + _where(right))
    return _of_program(
        _show_all(old.results),
        _show_all(new.results),
        f"{len(new.results)} results and not {len(old.results)}" + _where(right, left),
        "return the same values on both sides",
    )


_STATIC = "a static argument or another value of Python"


def _by_types(
    what: str, lefts: Sequence[ArrayType], rights: Sequence[ArrayType], names: Sequence[str] = ()
) -> Difference:
    """Name what differs between two lists of types of equal length; named ones one by one."""
    inside, many = what != "arguments", "s"
    if len(names) == len(rights):
        apart = [i for i, (a, b) in enumerate(zip(lefts, rights, strict=True)) if a != b]
        lefts, rights = ([types[i] for i in apart] for types in (lefts, rights))
        what = f"arguments {_listed([names[i] for i in apart])}"
        if len(apart) == 1:
            what, many = f"argument {names[apart[0]]}", ""
    dtypes = {(a.dtype, b.dtype) for a, b in zip(lefts, rights, strict=True) if a.dtype != b.dtype}
    shapes = any(a.shape != b.shape for a, b in zip(lefts, rights, strict=True))
    if dtypes and not shapes and _is_x64(dtypes):
        meaning = f"the dtype{many} of {what}: twice the bits, as jax_enable_x64 makes them"
        fix = "set JAX_ENABLE_X64 alike on both sides, or pass explicit dtypes"
    elif dtypes and not shapes:
        meaning = f"the dtype{many} of {what}"
        fix = "ask for one dtype on both sides" if inside else "cast to one dtype before the call"
    else:
        meaning = f"the shape{many} and dtype{many} of" if dtypes else f"the shape{many} of"
        meaning += f" {what}"
        fix = "pad to a few fixed shapes: each shape is a program of its own"
        if inside:
            meaning += f": {_STATIC} gives them"
            fix = "use a few fixed sizes: each is a program of its own"
    return _of_program(_show_all(lefts), _show_all(rights), meaning, fix)


def _listed(names: Sequence[str]) -> str:
    if (more := len(names) - _SHOWN_TYPES) > 0:
        return f"{', '.join(names[:_SHOWN_TYPES])} and {more:,} more"
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _is_x64(dtypes: Iterable[tuple[str, str]]) -> bool:
    return {tuple(sorted(pair, key=_bits)) for pair in dtypes} <= _X64


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
    return _of_program(f"{shards[0]} on each device", shards[1], meaning, fix)


def _bits(dtype: str) -> int:
    digits = re.sub(r"\D", "", dtype)
    return int(digits) if digits else 0


def _show_all(types: Iterable[ArrayType]) -> str:
    return ", ".join(map(_show, types)) or "none"


def _show(array: ArrayType) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _by_outline(left: Compile, right: Compile) -> Difference | None:
    """Compare what was compiled, line by line."""
    if left.outline is None or right.outline is None or left.outline == right.outline:
        return None
    old, new = list(left.outline), list(right.outline)
    if header := _by_header(old, new):
        return _with_bytes(header, left, right)
    changed = [(a, b) for a, b in zip(old, new, strict=False) if a != b]
    if _without(_PRECISION, old) == _without(_PRECISION, new):
        before, after = (_HASH.sub("", line).strip() for line in changed[0])
        meaning = "the precision of matrix products"
        fix = "set jax_default_matmul_precision alike on both sides"
        return _of_program(before, after, meaning, fix)
    if [_VALUE.sub(r"\1", x) for x in old] == [_VALUE.sub(r"\1", x) for x in new]:
        shown = (x if "= #" in x else _HASH.sub("", x) for x in changed[0])
        before, after = (line.strip() for line in shown)
        count = "a constant" if len(changed) == 1 else f"{len(changed)} constants"
        return _of_program(
            before,
            after,
            f"{count} in the program: {_STATIC}{_where(right)}",
            "pass it as an array: a static or closed-over value becomes part of the program",
        )
    return _by_inner_types(right, old, new) or _by_code(left, right, old, new)


def _by_inner_types(right: Compile, old: Sequence[str], new: Sequence[str]) -> Difference | None:
    """Tell other shapes or dtypes inside from other operations: most of those are the same."""
    lefts, rights = (Counter(_TYPE.findall(" ".join(lines))) for lines in (old, new))
    gone, come = lefts - rights, rights - lefts
    operations = [
        Counter(_TYPE.sub("", _HASH.sub("", x)) for x in x_lines) for x_lines in (old, new)
    ]
    unlike = (operations[0] - operations[1]) + (operations[1] - operations[0])
    if not gone or not come or unlike.total() > _UNLIKE * (len(old) + len(new)):
        return None
    before, after = ([t for t, _ in found.most_common(_SHOWN_TYPES)] for found in (gone, come))
    dtypes = {(a[0], b[0]) for a, b in product(gone, come) if a[1] == b[1] and a[0] != b[0]}
    dims = {a[1] for a in gone} != {b[1] for b in come}
    names = dtype_names()
    named = {(names.get(a, a), names.get(b, b)) for a, b in dtypes}
    if dtypes and not dims and _is_x64(named):
        meaning = "dtypes inside the program: twice the bits, as jax_enable_x64 makes them"
        fix = "set JAX_ENABLE_X64 alike on both sides, or pass explicit dtypes"
    elif not dims:
        meaning, fix = "dtypes inside the program", "ask for one dtype on both sides"
    else:
        meaning = f"shapes inside the program, such as a layer's width: {_STATIC} gives them"
        fix = "use a few fixed sizes: each is a program of its own"
    shown = [", ".join(f"{t}[{d}]" for t, d in found) for found in (before, after)]
    return _of_program(shown[0], shown[1], meaning + _where(right), fix)


def _without(pattern: re.Pattern[str], lines: Sequence[str]) -> list[str]:
    return [pattern.sub("", line) for line in lines]


def _by_header(old: list[str], new: list[str]) -> Difference | None:
    """Compare donations and shardings, where the instructions are the same."""
    if _body(old) != _body(new):
        return None
    olds, news = set(old) - set(_body(old)), set(new) - set(_body(new))
    for line in sorted(olds ^ news):
        name = line.partition(" #")[0]
        if name in _HEADERS:
            meaning, fix = _HEADERS[name]
            before = next((x for x in olds if x.startswith(name)), "none")
            after = next((x for x in news if x.startswith(name)), "none")
            return _of_program(before, after, meaning, fix)
    return None


def _with_bytes(found: Difference, left: Compile, right: Compile) -> Difference:
    """Donations in bytes, which the message itself does not show."""
    if found.meaning != _HEADERS["aliases"][0]:
        return found
    sizes = [c.contents and c.contents.memory.alias_bytes for c in (left, right)]
    if None in sizes:
        return found
    return replace(found, left=f"{sizes[0]} bytes", right=f"{sizes[1]} bytes")


def _body(lines: list[str]) -> list[str]:
    return [x for x in lines if x.partition(" #")[0] not in _HEADERS]


def _by_code(left: Compile, right: Compile, old: list[str], new: list[str]) -> Difference:
    removed, added = _diff(old, new)
    lines = [x for x in user_lines(right) if x not in user_lines(left)]
    meaning = "the code: other operations" + _where(right, left)
    fix = (
        "an edit of the function, or of what it calls, is a new program; "
        "compile once and the new one is cached too"
    )
    if user_lines(right) and not lines:
        meaning = (
            f"other operations from the same lines{_where(right)}: {_STATIC} "
            "on which they depend, or an edit of them"
        )
        fix = "pass such a value as an array, or keep it the same; an edit is a new program"
    return _of_program(_shorten(removed), _shorten(added), meaning, fix)


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
    lines = user_lines(right)
    if left is not None:
        lines = [x for x in lines if x not in user_lines(left)] or lines
    if lines:
        return f" (at {', '.join(lines[:3])})"
    return f" (of {right.source})" if right.source else ""
