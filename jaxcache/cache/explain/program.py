"""Compare the computations of two compiles: names, settings, arguments, layers, lines.

What a sketch shows differs for certain; that it is the reason, a layer shows, or the edits of the
source since. A difference that follows from another one is left out.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from jaxcache.cache.explain import say
from jaxcache.cache.explain.past import LineChange, Past, changed_lines, differing_wirings
from jaxcache.cache.explain.sides import (
    Cause,
    Compile,
    Difference,
    Evidence,
    SourceLocation,
    differ,
    file_name,
    without_addresses,
)
from jaxcache.core.layers import ELIDED, LAYERS
from jaxcache.core.sketch import PassedArgument, Sketch, SketchedLine

_of = partial(differ, "computation")
#: dtypes as they are without and with ``jax_enable_x64``.
_X64 = (
    {"float32", "float64"},
    {"int32", "int64"},
    {"uint32", "uint64"},
    {"complex64", "complex128"},
)
#: By setting: a type of a program that the setting can change.
_TYPES_OF = {
    "jax_enable_x64": r"\b(?:(?:f|i|s|u|ui)64|c128|(?:float|u?int)64|complex128)\[",
    **dict.fromkeys(("jax_default_prng_impl", "jax_threefry_partitionable"), r"\bu(?:i|int)?32\["),
}
_PRODUCTS = ("dot_general", "convolution")
_RANDOM_KEYS = {"uint32[2]", "uint32[4]"}
_TYPE = re.compile(r"^([^\[]+)\[([^\]]*)\]$")
#: Settings under which a key contains the lines of the source.
_LINES_IN_KEY = "jax_compilation_cache_include_metadata_in_key"
#: Signatures of one call from which on padding is worth a word.
_MANY_SIGNATURES = 3


def fewest_layers(old: Sketch, new: Sketch) -> str | None:
    """Return the layers without which two programs are equal, of all that are known the fewest.

    Returns:
        None where no set of layers does, or one side has no digests.
    """
    if not (old.layers and new.layers):
        return None
    return next((n for n in LAYERS if old.layers.get(n, "-") == new.layers.get(n)), None)


def compare_computations(left: Compile, right: Compile, past: Past) -> list[Difference]:
    """Return how the computations of two compiles differ; one unknown difference where it is."""
    differences: list[Difference] = []
    if left.module != right.module:
        differences.append(_by_name(left, right))
    old = left.sketch
    new = right.sketch
    if old is None or new is None:
        meaning = say.NOT_KNOWN if old is None else say.NOTHING_DIFFERS
        return [*differences, *_without_sketches(left, right)] or [_unknown(meaning)]
    layers = fewest_layers(old, new)
    if differences and layers in ("", "names"):
        return differences
    settings = _compare_settings(old, new, layers, past)
    differences += settings
    apart = {name for d in settings for name in d.title.split(" and ")}
    differences += _compare_calls(old, new, apart, layers, past)
    if differences:
        has_more = False
        if past.edits and not right.is_helper:
            changes = changed_lines(old, new, past.edits)
            differences += _edited(
                changes, new, past, has_types=bool(len(differences) - len(settings))
            )
            has_more = any(c.operations != (c.removed, c.added) for c in changes)
        if len(differences) > 1 or has_more:  # undoing one of them brings no hit
            differences = [d.without_cure() for d in differences]
        return differences
    if layers is not None:
        return [*_of_layers(layers, old, new, right, past)]
    meanings = (say.NOTHING_DIFFERS, past.outside(is_reordered=True))
    return _of_lines(old, new, right, past) or [_unknown("; ".join(filter(None, meanings)))]


def _unknown(meaning: str) -> Difference:
    return Difference("computation", None, None, meaning, None, title="another program")


def _by_name(left: Compile, right: Compile) -> Difference:
    if without_addresses(left.module) == without_addresses(right.module):
        sides = left.module, right.module
        return _of(
            say.NAME_WITH_ADDRESS, Cause.NAME, sides, fix=say.FIXED_NAME, evidence=Evidence.UNSTABLE
        )
    old, new = left.sketch, right.sketch
    is_alone = old is not None and new is not None and fewest_layers(old, new) == "names"
    evidence = Evidence.LAYER if is_alone else Evidence.OBSERVED
    return _of(say.NAME, Cause.NAME, (left.module, right.module), evidence=evidence)


def _without_sketches(left: Compile, right: Compile) -> Iterator[Difference]:
    """Yield how the arguments differ that entries or recorded runs hold."""
    sides = [c.passed for c in (left, right)]
    if None in sides:  # entries have their arguments for each device
        sides = [c.parameters for c in (left, right)]
    old, new = sides
    if old is None or new is None or len(old) != len(new):
        return  # an entry has only the arguments that its program uses
    names = {a.name for a in old} & {a.name for a in new} - {""}
    if len(names) < len(new):
        old, new = (tuple(replace(a, name="") for a in side) for side in (old, new))
    differences = [*_by_arguments(old, new, {"jax_default_prng_impl"}, None, Past())]
    pairs = [(a.type, b.type) for a, b in zip(old, new, strict=True) if a.type != b.type]
    if pairs and all({_dtype(a), _dtype(b)} in _X64 and _dims(a) == _dims(b) for a, b in pairs):
        unknown = partial(replace, cause=Cause.UNKNOWN, evidence=Evidence.UNKNOWN)
        differences = [unknown(d, meaning=f"{d.meaning}: {say.BY_X64}") for d in differences]
    yield from differences


# Settings ----------------------------------------------------------------------------------------


def _compare_settings(old: Sketch, new: Sketch, layers: str | None, past: Past) -> list[Difference]:
    """Return the settings of JAX that differ, which act through the computation."""
    if not (old.config and new.config):
        return []  # some setting is always on, where they are known
    differences = []
    for name in sorted(old.config.keys() | new.config.keys()):
        values = old.config.get(name), new.config.get(name)
        if values[0] == values[1] or not _acts(name, old, new, layers):
            continue
        shown = tuple(f"{name}={_setting(v, other)}" for v, other in (values, values[::-1]))
        part = say.setting(name, past.origin_of(name))
        differences.append(_of(part, Cause.CONFIG, (shown[0], shown[1])))
    return differences


def _acts(name: str, old: Sketch, new: Sketch, layers: str | None) -> bool:
    """Return whether a setting can be why two programs differ, as far as these show it."""
    if name == "jax_default_matmul_precision" and layers:
        return layers == "precision"
    if layers:  # nothing but what these layers hold differs
        return False
    if name == "jax_default_matmul_precision":
        return _products(old) != _products(new)
    types = (text for side in (old, new) for text in _types(side))
    return any(re.search(_TYPES_OF.get(name, ""), text) for text in types)


def _products(sketch: Sketch) -> Counter[str]:
    """Return the operations that have a precision, with digests of their attributes."""
    counts: Counter[str] = Counter()
    for line in sketch.lines:
        counts.update({o: n for o, n in line.operations.items() if o.startswith(_PRODUCTS)})
    return counts


def _types(sketch: Sketch) -> Iterator[str]:
    """Yield texts that contain all types of a program."""
    yield from sketch.results
    yield from (argument.type for argument in sketch.arguments)
    yield from (operation for line in sketch.lines for operation in line.operations)


def _setting(value: object, other: object) -> str:
    if value is None:
        return "False" if other is True else "not set"
    return str(value)


# The call ----------------------------------------------------------------------------------------


def _compare_calls(
    old: Sketch, new: Sketch, settings: set[str], layers: str | None, past: Past
) -> Iterator[Difference]:
    """Yield what differs in the arguments, the static values and the options of the call."""
    has_structure = False
    if old.passed is not None and new.passed is not None:
        for difference in _by_arguments(old.passed, new.passed, settings, layers, past):
            has_structure |= difference.cause is Cause.ARGUMENT_STRUCTURE
            yield difference
    statics = old.static or {}
    apart = [
        n
        for n, value in (new.static or {}).items()
        # Equinox passes the structure of arguments as a static value, too.
        if statics.get(n, value) != value and not (has_structure and "PyTreeDef" in value)
    ]
    if apart:
        sides = tuple(
            ", ".join(f"{n}={(side or {}).get(n)}" for n in apart)
            for side in (old.static, new.static)
        )
        part = say.static(apart)
        yield _of(part, Cause.STATIC_ARGUMENT, (sides[0], sides[1]))
    shardings = {a.name: a.sharding for a in old.arguments}
    moved = [a for a in new.arguments if shardings.get(a.name, a.sharding) != a.sharding]
    if moved:
        sides = shardings[moved[0].name] or "none", moved[0].sharding or "none"
        evidence = Evidence.LAYER if layers == "sharding" else Evidence.OBSERVED
        part = say.sharding_of([a.name for a in moved])
        yield _of(part, Cause.ARGUMENT_SHARDING, sides, evidence=evidence)
    used = {a.name for a in old.arguments} & {a.name for a in new.arguments}
    donated = [sorted(a.name for a in s.arguments if a.donated) for s in (old, new)]
    if {*donated[0]} & used != {*donated[1]} & used:
        evidence = Evidence.LAYER if layers == "donation" else Evidence.OBSERVED
        names = say.list_names(donated[0]) or "none", say.list_names(donated[1]) or "none"
        yield _of(say.DONATION, Cause.DONATION, names, evidence=evidence)


def _by_arguments(
    old: Sequence[PassedArgument],
    new: Sequence[PassedArgument],
    settings: set[str],
    layers: str | None,
    past: Past,
) -> Iterator[Difference]:
    lefts = {say.name_argument(a.name, n): a for n, a in enumerate(old)}
    rights = {say.name_argument(a.name, n): a for n, a in enumerate(new)}
    gone = [n for n in lefts if n not in rights]
    come = [n for n in rights if n not in lefts]
    if gone or come:
        sides = say.list_names(gone) or "none", say.list_names(come) or "none"
        part = say.structure(gone, come)
        yield _of(part, Cause.ARGUMENT_STRUCTURE, sides)
    elif [*lefts] != [*rights]:
        evidence = Evidence.LAYER if layers and "arguments" in layers else Evidence.OBSERVED
        sides = say.list_names([*lefts]), say.list_names([*rights])
        yield _of(say.ARGUMENT_ORDER, Cause.ARGUMENT_STRUCTURE, sides, evidence=evidence)
    apart = [
        n for n, argument in rights.items() if n in lefts and _differs(lefts[n], argument, settings)
    ]
    if not apart:
        return
    kinds = [
        kind
        for kind, differs in (
            ("shape", any(_dims(lefts[n].type) != _dims(rights[n].type) for n in apart)),
            ("dtype", any(_dtype(lefts[n].type) != _dtype(rights[n].type) for n in apart)),
            ("weak type", all(lefts[n].type == rights[n].type for n in apart)),
        )
        if differs
    ]
    cause = Cause.ARGUMENT_SHAPE if kinds[0] == "shape" else Cause.ARGUMENT_DTYPE
    types = [", ".join(show_argument(side[n]) for n in apart) for side in (lefts, rights)]
    first = f"{apart[0]} {show_argument(lefts[apart[0]])} → {show_argument(rights[apart[0]])}"
    more = f", +{len(apart) - 1:,} more" if len(apart) > 1 else ""
    count = past.signatures
    is_padded = kinds == ["shape"] and count >= _MANY_SIGNATURES
    yield _of(
        say.arguments(" and ".join(kinds), apart),
        cause,
        (types[0], types[1]),
        brief=first + more,
        fix=say.pad(count) if is_padded else None,
    )


def _differs(old: PassedArgument, new: PassedArgument, settings: set[str]) -> bool:
    """Return whether two arguments differ, but for what a setting makes of them."""
    if (old.type, old.is_weak) == (new.type, new.is_weak):
        return False
    if "jax_enable_x64" in settings and _dims(old.type) == _dims(new.type):
        return {_dtype(old.type), _dtype(new.type)} not in _X64
    if "jax_default_prng_impl" not in settings:
        return True
    are_keys = old.type.startswith("key<") and new.type.startswith("key<")
    if are_keys and _dims(old.type) == _dims(new.type):
        return False
    return {show_argument(old), show_argument(new)} != _RANDOM_KEYS


def _dtype(text: str) -> str:
    """Return the dtype of a type as NumPy names it."""
    dtype = text.partition("[")[0]
    return _DTYPES.get(dtype, dtype)


def _dims(text: str) -> str:
    match = _TYPE.match(text)
    return match[2] if match else text


def show_argument(argument: PassedArgument) -> str:
    """Return the type of an argument as NumPy names it: ``float32[8]``, ``int32[] (weak)``."""
    weak = " (weak)" if argument.is_weak else ""
    is_array = _TYPE.match(argument.type)
    return f"{_dtype(argument.type)}[{_dims(argument.type)}]{weak}" if is_array else argument.type


_DTYPES = {
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{
        f"{letter}{bits}": f"{name}{bits}"
        for letter, name in (("i", "int"), ("s", "int"), ("u", "uint"))
        for bits in (4, 8, 16, 32, 64)
    },
    "c64": "complex64",
    "c128": "complex128",
    "bf16": "bfloat16",
    "b1": "bool",
}


# Layers ------------------------------------------------------------------------------------------


def _of_layers(
    layers: str, old: Sketch, new: Sketch, right: Compile, past: Past
) -> Iterator[Difference]:
    """Yield the differences of programs that are equal without some layers."""
    changes = [] if right.is_helper else changed_lines(old, new, past.edits)
    first = changes[0] if changes else None
    where = (first.place,) if first and not first.is_in_library else ()
    edited = _mention(first.line if first else None, past)
    if layers == "":
        yield _of_equal(old, new)
    elif layers == "sharding":
        yield _of(say.SHARDING, Cause.ARGUMENT_SHARDING, evidence=Evidence.LAYER)
    elif layers == "donation":
        yield _of(say.DONATION, Cause.DONATION, evidence=Evidence.LAYER)
    elif layers == "names":
        yield _of(say.RESULT_NAMES, Cause.NAME, evidence=Evidence.LAYER)
    elif layers == "precision":
        yield _of(say.PRECISION, Cause.CODE, evidence=Evidence.LAYER, where=where)
    is_reordered = not (changes or right.is_helper) and differing_wirings(old, new)
    if "constants" in layers and is_reordered:
        yield _of_order(old, new, past)
    elif "constants" in layers:
        pairs = [c for c in changes if c.constants]
        shown = pairs[0].constants if pairs else None
        places = tuple(c.place for c in pairs[:1] if not c.is_in_library)
        if shown and places:
            places = _origin_of(shown[1], places[0], new, past)
        part = say.constants(str(places[0]) if places else "", edited) if shown else say.ARRAY
        yield _of(
            part, Cause.CONSTANT, shown or (None, None), where=places, evidence=Evidence.LAYER
        )
    if "arguments" in layers:
        yield _of(say.ARGUMENT_ORDER, Cause.ARGUMENT_STRUCTURE, evidence=Evidence.LAYER)
    elif "order" in layers:
        yield _of_order(old, new, past)


def _origin_of(
    value: str, place: SourceLocation, new: Sketch, past: Past
) -> tuple[SourceLocation, ...]:
    """Return the edited line that holds a constant, before the line that uses it."""
    files = dict.fromkeys(x.file for x in new.lines)
    origin = past.edits.find_literal(value, files) if past.edits else None
    if origin is None or origin == (place.file, place.line):
        return (place,)
    return SourceLocation(*origin, ""), place


def _mention(line: SketchedLine | None, past: Past) -> str:
    if not past.edits or line is None or past.edits.touch(line.file, line.line):
        return ""
    return f"; {say.edited_since(past.since, [*map(str, past.edits.nearest(line))])}"


def _of_equal(old: Sketch, new: Sketch) -> Difference:
    """Describe programs with equal digests: what differs is not in them."""
    if old.config.get(_LINES_IN_KEY) and new.config.get(_LINES_IN_KEY):
        return _moved(old, new)
    if ELIDED in new.layers:
        return _of(say.ARRAY, Cause.CONSTANT, evidence=Evidence.LAYER)
    return _unknown(say.NOTHING_DIFFERS)


def _moved(old: Sketch, new: Sketch) -> Difference:
    pairs = zip(old.lines, new.lines, strict=False)
    places = [(f"{a.file}:{a.line}", f"{b.file}:{b.line}", b) for a, b in pairs]
    left, right, line = next((p for p in places if p[0] != p[1]), (None, None, None))
    where = (LineChange(None, line).place,) if line else ()
    part = say.moved_lines(_LINES_IN_KEY.upper())
    return _of(part, Cause.SOURCE_LINES, (left, right), where=where, evidence=Evidence.LAYER)


def _of_order(old: Sketch, new: Sketch, past: Past) -> Difference:
    where = differing_wirings(old, new)[:1]
    is_unedited = past.is_unedited(where[0].file if where else "")
    part = say.order(past.outside(is_reordered=True) if is_unedited else "")
    return _of(part, Cause.OPERATION_ORDER, evidence=Evidence.LAYER, where=where)


# Lines -------------------------------------------------------------------------------------------


def _of_lines(old: Sketch, new: Sketch, right: Compile, past: Past) -> list[Difference]:
    """Return the lines whose operations differ: the first, and others that were edited."""
    if right.is_helper:
        return _of_results(old, new)
    changes = changed_lines(old, new, past.edits)
    if not changes:
        where = differing_wirings(old, new)[:1]
        return [_of_line(LineChange(None, None), new, past, where[0])] if where else []
    first, *others = changes
    return [_of_line(first, new, past), *_edited(others, new, past, has_types=False)]


def _edited(
    changes: Sequence[LineChange], new: Sketch, past: Past, *, has_types: bool
) -> Iterator[Difference]:
    """Yield the changes of lines that were edited themselves.

    Args:
        has_types: the arguments differ, so that the types of operations follow from them.
    """
    for change in changes[:_MANY_SIGNATURES]:
        if not change.is_edited(past.edits):
            continue
        removed, added = change.operations
        if has_types and (removed, added) == (change.removed, change.added):
            continue
        yield _of_line(change, new, past)


def _of_line(
    change: LineChange, new: Sketch, past: Past, place: SourceLocation | None = None
) -> Difference:
    why = past.outside(is_reordered=place is not None)  # a place alone: of the same operations
    place = place or change.place
    edits = past.edits
    line = SketchedLine(place.file, place.line, place.function, {})
    is_edited = change.is_edited(edits)
    edited = edits.nearest(line) if edits and not is_edited else []
    named = past.name_library(place.file) if change.is_in_library else ""
    shown_place = f"{named} ({file_name(place.file)}:{place.line})" if named else str(place)
    is_unedited = past.is_unedited("" if change.is_in_library else place.file)
    part = say.operations(
        shown_place,
        since=past.since if edited or is_edited or is_unedited else "",
        edited=[*map(str, edited)],
        is_edited=is_edited,
        why=why,
    )
    if change.is_in_library and edited:  # an edit of the user's changed what the library does
        part = part._replace(title=f"code at {edited[0]}")
        brief = f"{edited[0]} was edited"
        return _of(part, Cause.CODE, change.shown, where=(edited[0],), brief=brief)
    if constants := change.constants:
        where = _origin_of(constants[1], place, new, past)
        return _of(part, Cause.CONSTANT, constants, where=where)
    brief = f"{change.brief} at {shown_place}" if change.brief else ""
    return _of(part, Cause.CODE, change.shown, where=(place,), brief=brief)


def _of_results(old: Sketch, new: Sketch) -> list[Difference]:
    """Describe an operation of JAX's own by its results: it has no line of the user's."""
    if old.results == new.results:
        return []
    sides = tuple(
        ", ".join(show_argument(PassedArgument("", t)) for t in side.results) or "none"
        for side in (old, new)
    )
    brief = f"result {' → '.join(sides)}" if len(old.results) == len(new.results) == 1 else ""
    return [
        _of(say.RESULT, Cause.UNKNOWN, (sides[0], sides[1]), brief=brief, evidence=Evidence.UNKNOWN)
    ]
