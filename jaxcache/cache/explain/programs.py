"""The reason why computations differ: the name, the arguments, a static value, or the code."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from jaxcache.cache.explain.matching import argument_types, user_lines, without_addresses
from jaxcache.cache.explain.sides import Cause, Compile, Difference, file_name
from jaxcache.cache.explain.sketches import compare_code, compare_places
from jaxcache.core.machine import MOSAIC_PATHS
from jaxcache.core.sketch import Sketch
from jaxcache.entry.contents import ArrayType, dtype_names
from jaxcache.entry.options import nearest_version
from jaxcache.units import join_some

_of_program = partial(Difference, "computation")
_SHOWN_NAMES = 4
#: The custom call that holds a Pallas kernel for a TPU (jax/_src/tpu_custom_call.py).
_KERNEL = "tpu_custom_call"
_HEADERS = ("aliases", "donors", "parameter shardings", "result sharding")
_SKETCHED_TYPE = re.compile(r"^(?P<dtype>[^\[]+)\[(?P<dims>[^\]]*)\]")
#: dtypes as they are without and with ``jax_enable_x64``.
_X64 = {
    ("float32", "float64"),
    ("int32", "int64"),
    ("uint32", "uint64"),
    ("complex64", "complex128"),
}
_UNTOLD = "another program; what changed is unknown"
_NOT_SKETCHED = (
    "another program; what changed is unknown, because only runs under jaxcache are recorded"
)
_ALIKE = (
    "the operations and scalars of every line are the same; arrays that the function closes over "
    "are not recorded: one of them may have changed"
)
_SAME_OPTIMIZED = "another program, which was compiled to the same one"


def compare_programs(left: Compile, right: Compile) -> list[Difference]:
    """Return why the computations of two compiles differ; one unknown difference where it is."""
    if difference := _by_name(left, right) or compare_arguments(left, right):
        return [_of_other_file(left, right) or difference]
    if left.sketch is None or right.sketch is None:
        difference = _by_kernel(left, right) or _by_aliases(left, right)
        return [difference or _unknown(left, right)]
    difference = _by_static(left.sketch, right.sketch) or _by_donation(left.sketch, right.sketch)
    if difference:
        return [difference]
    changes = [] if right.is_helper else compare_code(left.sketch, right.sketch)
    if not changes and (moved := compare_places(left.sketch, right.sketch)):
        return [moved]
    return changes or [_unknown(left, right)]


def _of_other_file(left: Compile, right: Compile) -> Difference | None:
    """Describe functions that share only a name: their files and arguments differ.

    In a notebook the same function can come from another cell.
    """
    old, new = (
        {file_name(line.file) for line in (c.sketch.lines if c.sketch else ())}
        for c in (left, right)
    )
    if old & new or not (old and new) or not all(name.endswith(".py") for name in old | new):
        return None
    meaning = "another function of the same name, in another file"
    left_files, right_files = (", ".join(sorted(names)) for names in (old, new))
    return _of_program(left_files, right_files, meaning, None, title="another function")


def _unknown(left: Compile, right: Compile) -> Difference:
    meaning = _UNTOLD if left.sketch and right.sketch else _NOT_SKETCHED
    fix = None
    brief = ""
    if left.outline is not None and left.outline == right.outline:
        meaning = _SAME_OPTIMIZED
        brief = "another program, compiled to the same one"
    elif (old := _results(left)) and (new := _results(right)) and old != new:
        sides = _show_all(old), _show_all(new)
        meaning = "the shape or dtype of the result; the line that sets it is not recorded"
        brief = f"result {' → '.join(sides)}" if len(old) == len(new) == 1 else ""
        return _of_program(*sides, meaning, None, title="result", brief=brief)
    elif left.sketch and right.sketch and not right.is_helper:
        meaning = _ALIKE
        brief = "another program; its operations and scalars are the same"
    elif left.sketch and left.script:
        fix = f"jaxcache explain {shlex.quote(left.script)} compares what the program compiles now"
    return _of_program(None, None, meaning, fix, title="another program", brief=brief)


def _results(compile_: Compile) -> tuple[ArrayType, ...]:
    """Return the types of the results, from the sketch or the entry; empty where unknown."""
    if compile_.sketch:
        return tuple(map(_array, compile_.sketch.results))
    program = compile_.contents and compile_.contents.program
    return program.results if program else ()


# The name ------------------------------------------------------------------------------------


def _by_name(left: Compile, right: Compile) -> Difference | None:
    if left.module == right.module:
        return None
    meaning = "another name, which is part of the program"
    fix = "call the function by the same name"
    title = "name"
    if without_addresses(left.module) == without_addresses(right.module):
        meaning = "the name holds an address, which is another one in every process: never a hit"
        fix = "give the function a fixed __name__ before jit"
        title = "name with an address"
    return _of_program(left.module, right.module, meaning, fix, Cause.NAME, title=title)


# The arguments -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arguments of both sides, as far as both are known in the same way."""

    lefts: tuple[ArrayType, ...]
    rights: tuple[ArrayType, ...]
    left_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    is_complete: bool = False
    """They are what the calls passed, whether the programs use them or not."""


def _arguments(left: Compile, right: Compile) -> _Arguments | None:
    old = left.sketch.passed if left.sketch else None
    new = right.sketch.passed if right.sketch else None
    if old is not None and new is not None:
        return _Arguments(
            tuple(_array(a.type) for a in old),
            tuple(_array(a.type) for a in new),
            tuple(a.name for a in old),
            tuple(a.name for a in new),
            is_complete=True,
        )
    lefts = argument_types(left, right)
    rights = argument_types(right, left)
    if lefts is None or rights is None:
        return None
    names = right.names if len(right.names) == len(rights) else ()
    is_complete = left.arguments is not None and right.arguments is not None
    return _Arguments(lefts, rights, left.names, names, is_complete=is_complete)


def _array(text: str) -> ArrayType:
    """Read a type as sketches hold it: ``f32[8,16]``, where a sharded axis is ``16@x``."""
    match = _SKETCHED_TYPE.match(text)
    if match is None:
        return ArrayType(text, ())
    dims = [d.partition("@")[0] for d in match["dims"].split(",") if d]
    dtype = dtype_names().get(match["dtype"], match["dtype"])
    return ArrayType(dtype, tuple(int(d) if d.isdigit() else -1 for d in dims))


def compare_arguments(left: Compile, right: Compile) -> Difference | None:
    """Return how the arguments of two compiles differ; None if they do not, or are not known."""
    arguments = _arguments(left, right)
    if arguments is None:
        return None
    if len(arguments.lefts) != len(arguments.rights):
        # An entry alone drops arguments that its program does not use: an edit changes their count.
        return _by_structure(arguments) if arguments.is_complete else None
    if arguments.lefts != arguments.rights:
        is_config_known = left.sketch is not None and right.sketch is not None
        if not is_config_known and _are_random_keys(arguments):
            return None
        difference = _by_types(arguments, is_config_known=is_config_known)
        if left.arguments is None and not left.sketch and _is_divided(left, right):
            text = "the shapes on each device: of arguments, or of their shardings"
            difference = replace(difference, meaning=text)
        return difference
    if left.sketch and right.sketch:
        return _by_sharding(left.sketch, right.sketch)
    return _by_layout(left, right)


def _are_random_keys(arguments: _Arguments) -> bool:
    """Whether all that differs is ``uint32[2]`` and ``uint32[4]``: keys of threefry and of rbg.

    ``jax_default_prng_impl`` decides between them (jax/_src/prng.py), not the caller.
    """
    pairs = zip(arguments.lefts, arguments.rights, strict=True)
    apart = [(a, b) for a, b in pairs if a != b]
    keys = {ArrayType("uint32", (2,)), ArrayType("uint32", (4,))}
    return all({a, b} == keys for a, b in apart)


def _by_structure(arguments: _Arguments) -> Difference:
    gone = [n for n in arguments.left_names if n not in arguments.names]
    come = [n for n in arguments.names if n not in arguments.left_names]
    if not (gone or come):
        text = f"{len(arguments.rights)} arguments and not {len(arguments.lefts)}"
        sides = _show_all(arguments.lefts), _show_all(arguments.rights)
    else:
        parts = [
            f"{_listed(names)} {'is' if len(names) == 1 else 'are'} {word}"
            for names, word in ((come, "new"), (gone, "gone"))
            if names
        ]
        text = f"other arguments: {', '.join(parts)}"
        sides = _listed(gone) or "none", _listed(come) or "none"
    return _of_program(
        *sides, text, "pass the same structure", Cause.ARGUMENT_STRUCTURE, title="other arguments"
    )


def _by_types(arguments: _Arguments, *, is_config_known: bool) -> Difference:
    """Name what differs between two lists of types of equal length; named ones one by one.

    Args:
        is_config_known: the settings of both sides were compared, and are the same.
    """
    lefts: Sequence[ArrayType] = arguments.lefts
    rights: Sequence[ArrayType] = arguments.rights
    what = "arguments"
    many = "s"
    if len(arguments.names) == len(rights):
        apart = [i for i, (a, b) in enumerate(zip(lefts, rights, strict=True)) if a != b]
        lefts, rights = ([types[i] for i in apart] for types in (lefts, rights))
        what = f"arguments {_listed([arguments.names[i] for i in apart])}"
        if len(apart) == 1:
            what = f"argument {arguments.names[apart[0]]}"
            many = ""
    dtypes = {(a.dtype, b.dtype) for a, b in zip(lefts, rights, strict=True) if a.dtype != b.dtype}
    shapes = any(a.shape != b.shape for a, b in zip(lefts, rights, strict=True))
    extra = ""
    fix: str | None = "cast to one dtype before the call"
    cause = Cause.ARGUMENT_DTYPE
    kind = f"dtype{many}"
    if shapes:
        cause = Cause.ARGUMENT_SHAPE
        kind = f"shape{many} and dtype{many}" if dtypes else f"shape{many}"
        fix = "pad to a few fixed shapes: each shape is a program of its own"
    elif not is_config_known and {tuple(sorted(pair, key=_bits)) for pair in dtypes} <= _X64:
        cause = Cause.UNKNOWN
        extra = ": by jax_enable_x64, or by the caller; the entries do not record which"
        fix = None
    sides = _show_all(lefts), _show_all(rights)
    title = f"{kind} of {what}"
    return _of_program(*sides, f"the {title}{extra}", fix, cause, title=title)


def first_change(left: Compile, right: Compile) -> str | None:
    """Return the first argument of another type: ``x float32[8] → [16], +1 more``."""
    arguments = _arguments(left, right)
    if arguments is None or len(arguments.lefts) != len(arguments.rights):
        return None
    pairs = zip(arguments.lefts, arguments.rights, strict=True)
    apart = [i for i, (a, b) in enumerate(pairs) if a != b]
    if not apart:
        return None
    first = apart[0]
    more = len(apart) - 1
    old = arguments.lefts[first]
    new = arguments.rights[first]
    named = len(arguments.names) == len(arguments.rights)
    number = f" {first}" if len(arguments.lefts) > 1 else ""
    name = arguments.names[first] if named else f"argument{number}"
    shown = _show(new).removeprefix(old.dtype if old.dtype == new.dtype else "")
    return f"{name} {_show(old)} → {shown}" + (f", +{more:,} more" if more else "")


def _listed(names: Sequence[str]) -> str:
    *first, last = names or [""]
    if not first or len(names) > _SHOWN_NAMES:
        return join_some(names, _SHOWN_NAMES)
    return f"{', '.join(first)} and {last}"


def _bits(dtype: str) -> int:
    digits = re.sub(r"\D", "", dtype)
    return int(digits) if digits else 0


def _is_divided(left: Compile, right: Compile) -> bool:
    options = [c.contents.compile_options for c in (left, right) if c.contents]
    return any((o.num_partitions or 1) > 1 for o in options)


def _by_sharding(old: Sketch, new: Sketch) -> Difference | None:
    shardings = {a.name: a.sharding for a in old.arguments}
    apart = [a for a in new.arguments if shardings.get(a.name, a.sharding) != a.sharding]
    if not apart:
        return None
    names = _listed([a.name for a in apart])
    sides = shardings[apart[0].name] or "none", apart[0].sharding or "none"
    return _of_shardings(*sides, f"shardings of arguments: {names}", f"sharding of {names}")


def _of_shardings(left: str, right: str, meaning: str, title: str) -> Difference:
    fix = "place the arguments in the same way"
    return _of_program(left, right, meaning, fix, Cause.ARGUMENT_SHARDING, title=title)


def _by_layout(left: Compile, right: Compile) -> Difference | None:
    """Compare the pieces on each device, where the arguments as a whole are the same."""
    programs = [c.contents and c.contents.program for c in (left, right)]
    if left.arguments is None or left.arguments != right.arguments or not all(programs):
        return None
    shards = [", ".join(map(_show, p.parameters)) for p in programs if p]
    if shards[0] == shards[1]:
        return None
    meaning = "shardings of arguments"
    return _of_shardings(f"{shards[0]} on each device", shards[1], meaning, meaning)


def _by_static(old: Sketch, new: Sketch) -> Difference | None:
    lefts = old.static or {}
    rights = new.static or {}
    apart = [n for n in rights if n in lefts and lefts[n] != rights[n]]
    if not apart:
        return None
    return _of_program(
        ", ".join(f"{n}={lefts[n]}" for n in apart[:_SHOWN_NAMES]),
        ", ".join(f"{n}={rights[n]}" for n in apart[:_SHOWN_NAMES]),
        f"the static argument{'s' if len(apart) > 1 else ''} {_listed(apart)}",
        "each static value is a program of its own: use a few, or pass an array",
        Cause.STATIC_ARGUMENT,
        title=f"static {_listed(apart)}",
    )


def _by_donation(old: Sketch, new: Sketch) -> Difference | None:
    donated = [{a.name for a in sketch.arguments if a.donated} for sketch in (old, new)]
    used = {a.name for a in old.arguments} & {a.name for a in new.arguments}
    if donated[0] & used == donated[1] & used:
        return None
    return _of_donations(*(_listed(sorted(names)) or "none" for names in donated))


def _of_donations(left: str | None, right: str | None) -> Difference:
    return _of_program(
        left,
        right,
        "the donated arguments",
        "donate the same arguments in both",
        Cause.DONATION,
        title="donated arguments",
    )


def _show_all(types: Iterable[ArrayType]) -> str:
    return ", ".join(map(_show, types)) or "none"


def _show(array: ArrayType) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


# What entries alone can prove ----------------------------------------------------------------


def _by_aliases(left: Compile, right: Compile) -> Difference | None:
    """Compare donations, where all instructions of the optimized programs are the same."""
    if left.outline is None or right.outline is None:
        return None
    old = set(left.outline)
    new = set(right.outline)
    apart = {line.partition(" #")[0] for line in old ^ new}
    if not apart or not apart <= set(_HEADERS[:2]):
        return None
    if [x for x in left.outline if x in new] != [x for x in right.outline if x in old]:
        return None
    sizes = [c.contents and c.contents.memory.alias_bytes for c in (left, right)]
    return _of_donations(*(None if size is None else f"{size} bytes" for size in sizes))


def _by_kernel(left: Compile, right: Compile) -> Difference | None:
    """Compare Pallas kernels for a TPU: text inside of a custom call, which the outline omits."""
    programs = [c.contents and c.contents.program for c in (left, right)]
    if not all(p and _KERNEL in p.custom_calls for p in programs):
        return None
    old, new = (", ".join(user_lines(c)[:_SHOWN_NAMES]) or None for c in (left, right))
    flags = (right.contents.flags if right.contents else None) or {}
    if old == new or MOSAIC_PATHS.holds(nearest_version(frozenset(flags)) or "") is False:
        return None
    if _places(left) != _places(right):
        return None
    return _of_program(
        old,
        new,
        "the path of a Pallas kernel's file: JAX before 0.11.0 puts file and lines into the key",
        "keep the checkout at one path on every machine, or use JAX 0.11",
        Cause.SOURCE_LINES,
        title="path of a Pallas kernel",
    )


def _places(compile_: Compile) -> list[str]:
    """Return the user's lines without their directories."""
    return [line.rpartition("/")[2] for line in user_lines(compile_)]
