"""Name the components in which two compiles differ, with what each means and what to do.

A version, a device, a flag, a setting, the codec or a hook explains a miss alone: where one of them
differs, nothing else is claimed. After them come the path of the cache, the arguments, static
values and donations, and the code. A fact that is known of one side only is not a cause.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from jaxcache.cache.explain.matching import match_compiles, match_recorded, user_lines
from jaxcache.cache.explain.options import (
    compare_device_counts,
    compare_flags,
    compare_options,
    compare_paths,
    compare_placements,
    device_facts,
    device_name,
)
from jaxcache.cache.explain.programs import compare_arguments, compare_programs
from jaxcache.cache.explain.sides import (
    COMPONENTS,
    JAXLIB,
    Cause,
    Comparison,
    Compile,
    Difference,
    Explanation,
    Side,
    WriteRule,
)
from jaxcache.cache.explain.sketches import find_moved_lines
from jaxcache.cache.explain.undone import proved_by_undoing
from jaxcache.entry.options import default_flags, nearest_version, same_generation

_SAME_KEY = "entry"
_OF_RECORDED = "; compared with the last recorded program, because the nearest is not recorded"
_REPAIR = "jaxcache verify --fix moves it to quarantine; the next run compiles it again"
_CALLBACKS_FIX = "remove debug.print and pure_callback from the compiled function, or use jax 0.11"


def explain(left: Side, right: Side) -> Explanation:
    """Compare each compile of the right side with what its call used last, else the nearest."""
    comparisons = []
    same = 0
    single = len(left.compiles) == len(right.compiles) == 1  # with any names
    pairs = zip(left.compiles, right.compiles, strict=True) if single else None
    by_key: dict[str | None, Compile | None] = {c.key: c for c in left.compiles if c.key}
    for old, new in pairs or match_compiles(left.compiles, right.compiles):
        old = by_key.get(new.undone_key, old)
        differences = tuple(compare(old, new, left))
        if differences:
            basis = None
            if old is not None and not left.is_run and not single:
                basis = "last-used" if old.used_ns and old.sketch else "nearest"
            comparisons.append(_prefer_recorded(Comparison(old, new, differences, basis), left))
        else:
            same += 1
    comparisons.sort(key=lambda c: c.right.is_helper)  # what people wrote comes first
    return Explanation(left.name, right.name, same, tuple(comparisons))


def _prefer_recorded(nearest: Comparison, side: Side) -> Comparison:
    """Compare with a program that is recorded, if that of the nearest entry is not."""
    old = nearest.left
    first = nearest.differences[0]
    is_whole_key = first.component == Cause.UNKNOWN
    is_named = first.cause is not Cause.UNKNOWN or (first.left is not None and not is_whole_key)
    if is_named or not nearest.compared_with or old is None or old.sketch or old.is_damaged:
        return nearest
    recorded = match_recorded(side.compiles, nearest.right)
    differences = [*compare(recorded, nearest.right, side)] if recorded else [first]
    if differences[0].cause is Cause.UNKNOWN:
        return nearest
    noted = tuple(replace(d, meaning=f"{d.meaning}{_OF_RECORDED}") for d in differences)
    return Comparison(recorded, nearest.right, noted, "last-recorded")


def compare(left: Compile | None, right: Compile, side: Side) -> Iterator[Difference]:
    """Yield the differences of one compile, the cause first; none if nothing is wrong with it."""
    if right.undone:
        yield from proved_by_undoing(right)
        return
    if right.outcome == "uncacheable" and right.rule == WriteRule.HOST_CALLBACKS:
        yield (_by_version(left, right) if left else None) or _callbacks(left, right)
        return
    if left is None:
        yield Difference(
            "computation",
            None,
            right.module,
            f"{side.name} has no compile of that name",
            None,
            Cause.NOT_CACHED_BEFORE,
            title="not cached before",
        )
        return
    if right.key is not None and right.key == left.key:
        yield from _same_key(left, right)
        return
    if left.module != right.module:
        yield from compare_programs(left, right)
        return
    for rule in _ALONE:
        if difference := rule(left, right):
            yield difference
            return
    differences = [*_together(left, right)]
    if differences:
        yield from differences
    elif right.sketch and (moved := find_moved_lines(user_lines(left), right.sketch)):
        yield moved
    elif left.is_damaged:
        yield _unknown(left, right, "the nearest entry of its module is damaged", _REPAIR)
    elif left.key is None or right.key is None:
        yield _unknown(left, right, "no key was made on one side: the cache was off there")
    else:
        yield _unknown(left, right, "the keys differ, and nothing else that is recorded does")


def _unknown(left: Compile, right: Compile, why: str, fix: str | None = None) -> Difference:
    meaning = f"cause unknown: {why}"
    return Difference(Cause.UNKNOWN, left.key, right.key, meaning, fix, title="another key")


def _same_key(left: Compile, right: Compile) -> Iterator[Difference]:
    """One key, so whether it hits depends on the entry alone."""
    if right.outcome in (None, "hit"):
        return
    if left.unreadable:
        yield Difference(
            _SAME_KEY,
            left.outcome,
            right.outcome,
            f"the same key: the entry cannot be read: {left.unreadable}",
            f"make it readable for the user of the program: {left.key}-cache",
            Cause.LOST,
            title="the entry cannot be read",
        )
        return
    if left.outcome not in ("skipped", "uncacheable"):
        place = "damaged" if left.is_damaged else "gone, damaged, or in another directory"
        search = "jaxcache verify; and jaxcache where -- CMD prints the directory in use"
        if left.is_damaged or right.outcome == "error" or left.outcome in ("hit", "written"):
            yield Difference(
                _SAME_KEY,
                left.outcome,
                right.outcome,
                f"the same key: the entry is {place}",
                _REPAIR if left.is_damaged else search,
                Cause.LOST,
                title=f"the entry is {'' if left.is_damaged else 'gone or '}damaged",
            )
        return
    unwritten = left if left.reason else right
    if unwritten.rule == WriteRule.HOST_CALLBACKS:
        yield _callbacks(left, right)
    elif unwritten.rule in _THRESHOLDS:
        setting, subject, title, value = _THRESHOLDS[unwritten.rule]
        yield Difference(
            setting,
            unwritten.reason,
            right.reason,
            f"the same key, but {subject} {title}",
            f"export {setting.upper()}={value}",
            Cause.BELOW_THRESHOLD,
            title=title,
        )
    else:
        yield Difference(
            _SAME_KEY,
            left.outcome,
            right.outcome,
            f"the same key, but it was not written: {unwritten.reason or ''}",
            None,
            Cause.LOST,
            title="not written",
        )


def _callbacks(left: Compile | None, right: Compile) -> Difference:
    return Difference(
        "host callbacks",
        left.outcome if left else None,
        right.outcome,
        "the program calls back into Python, and JAX before 0.11 never caches such",
        _CALLBACKS_FIX,
        Cause.CALLBACK,
        title="host callbacks",
    )


# What explains a miss alone ------------------------------------------------------------------


def differing_components(left: Compile, right: Compile) -> list[str] | None:
    """Return the components whose hashes differ; None where they are not known on both sides."""
    if not left.components or not right.components:
        return None
    lefts = left.components
    rights = right.components
    order = [*COMPONENTS, *sorted(lefts.keys() - set(COMPONENTS))]
    return [n for n in order if n in lefts and n in rights and lefts[n] != rights[n]]


def _by_version(left: Compile, right: Compile) -> Difference | None:
    names = differing_components(left, right)
    of_jax = left.jax_version, right.jax_version
    if all(of_jax) and of_jax[0] != of_jax[1] and names != []:
        component = JAXLIB if names is None or JAXLIB in names else "computation"
        return _of_version(component, of_jax, "jax", Cause.JAX_VERSION)
    of_jaxlib = left.jaxlib_version, right.jaxlib_version
    if names is not None:
        if JAXLIB not in names:
            return None
        if not all(of_jaxlib) or of_jaxlib[0] == of_jaxlib[1]:
            of_jaxlib = _value(JAXLIB, left), _value(JAXLIB, right)
    elif not all(of_jaxlib):
        flags = _flags(left), _flags(right)
        if not all(flags) or same_generation(*flags):
            return None
        of_jaxlib = (
            of_jaxlib[0] or nearest_version(flags[0]),
            of_jaxlib[1] or nearest_version(flags[1]),
        )
    elif of_jaxlib[0] == of_jaxlib[1]:
        return None
    return _of_version(JAXLIB, of_jaxlib, "jaxlib", Cause.JAXLIB_VERSION)


def _of_version(
    component: str, sides: tuple[str | None, str | None], what: str, cause: Cause
) -> Difference:
    return Difference(
        component,
        sides[0] or "?",
        sides[1] or "?",
        f"another {what}: nothing of one version is ever read by another",
        f"use one {what} on both sides; after an upgrade, run once and prune the old entries",
        cause,
        title=f"{what} version",
    )


def _flags(compile_: Compile) -> frozenset[str]:
    """Return the XLA flags of an entry, else those that its jaxlib writes; none if unknown."""
    contents = compile_.contents
    return frozenset(contents.flags or () if contents else default_flags(compile_.jaxlib_version))


def _by_device(left: Compile, right: Compile) -> Difference | None:
    names = differing_components(left, right)
    if names is not None and "backend version" in names and "accelerator_config" not in names:
        return _by_hash("backend version", left, right)
    old = left.contents
    new = right.contents
    if names is not None:
        if "accelerator_config" not in names:
            return compare_placements(left, right) if "compile_options" in names else None
        counted = compare_device_counts(left, right, are_others=True)
        return counted or _by_hash("accelerator_config", left, right)
    if old is None or new is None:
        return None
    if any(a and b and a != b for a, b in zip(*map(device_facts, (old, new)), strict=True)):
        return _of_meaning("accelerator_config", device_name(left), device_name(right))
    counted = compare_device_counts(left, right, are_others=False)
    return counted or compare_placements(left, right)


def _by_flags(left: Compile, right: Compile) -> Difference | None:
    names = differing_components(left, right)
    if names is not None and "XLA flags" in names:
        return compare_flags(left, right)
    if names is None or "compile_options" in names:
        return compare_options(left, right)
    return None


def _by_config(left: Compile, right: Compile) -> Difference | None:
    names = differing_components(left, right)
    if names is not None and not {"computation", "compile_options"} & set(names):
        return None
    if left.sketch is None or right.sketch is None or left.sketch.version != right.sketch.version:
        return None
    old = left.sketch.config
    new = right.sketch.config
    if not (old and new):  # some setting is always on, where they are known
        return None
    apart = sorted(n for n in {*old, *new} if old.get(n) != new.get(n))
    if not apart:
        return None
    shown = [", ".join(f"{n}={values.get(n, 'off')}" for n in apart) for values in (old, new)]
    settings = " and ".join(apart)
    return Difference(
        "computation",
        shown[0],
        shown[1],
        f"the setting{'s' if len(apart) > 1 else ''} {settings} of JAX",
        f"set {' and '.join(n.upper() for n in apart)} alike on both sides",
        Cause.CONFIG,
        title=settings,
    )


def _by_codec(left: Compile, right: Compile) -> Difference | None:
    names = differing_components(left, right)
    if names is not None:
        return _by_hash("compression", left, right) if "compression" in names else None
    if left.codec and right.codec and left.codec != right.codec:
        return _of_meaning("compression", left.codec, right.codec)
    return None


def _by_hook(left: Compile, right: Compile) -> Difference | None:
    names = differing_components(left, right) or ()
    return _by_hash("custom_hook", left, right) if "custom_hook" in names else None


_Rule = Callable[[Compile, Compile], Difference | None]
_ALONE: tuple[_Rule, ...] = (_by_version, _by_device, _by_flags, _by_config, _by_codec, _by_hook)


# What may come together ----------------------------------------------------------------------


def _together(left: Compile, right: Compile) -> Iterator[Difference]:
    names = differing_components(left, right)
    if (names is None or "compile_options" in names) and (path := compare_paths(left, right)):
        yield path
    if names is not None:
        if "computation" in names:
            yield from compare_programs(left, right)
        yield from (_by_hash(n, left, right) for n in names if n not in COMPONENTS)
    elif left.sketch and right.sketch:
        differences = compare_programs(left, right)
        yield from (d for d in differences if d.cause is not Cause.UNKNOWN)
    elif left.contents is None or right.contents is None:
        if difference := compare_arguments(left, right):
            yield difference
    elif left.contents.program and right.contents.program:
        outlines = left.outline and right.outline and left.outline != right.outline
        if outlines or left.contents.program != right.contents.program:
            yield from compare_programs(left, right)


def _by_hash(name: str, left: Compile, right: Compile) -> Difference:
    old, new = (_value(name, c) for c in (left, right))
    if name == "accelerator_config" and old == new:  # what is known of the devices does not show it
        old, new = (f"{v} {c.hash_of(name)}" for v, c in ((old, left), (new, right)))
    return _of_meaning(name, old, new)


def _of_meaning(name: str, left: str | None, right: str | None) -> Difference:
    meaning, fix, cause, title = _MEANINGS.get(
        name, (f"{name}, a part of the key that is not known here", None, Cause.UNKNOWN, name)
    )
    return Difference(name, left, right, meaning, fix, cause, title=title)


def _value(name: str, compile_: Compile) -> str:
    """Return the value that was hashed, if it can be found, else the start of the hash."""
    if name == "accelerator_config" and compile_.contents and compile_.contents.device.target:
        device = compile_.contents.device
        return f"{device.platform} {device.name or device.target or ''}"
    return compile_.value_of(name) or compile_.hash_of(name) or ""


_MIN = "jax_persistent_cache_min_"
_THRESHOLDS: dict[str | None, tuple[str, str, str, str]] = {
    WriteRule.COMPILE_TIME: (
        f"{_MIN}compile_time_secs",
        "it",
        "compiled too fast to be written",
        "0",
    ),
    WriteRule.SIZE: (f"{_MIN}entry_size_bytes", "the entry was", "too small to be written", "-1"),
}
"""By rule: its setting, the subject, what happened to it, and a value that ends the rule."""
_MEANINGS: dict[str, tuple[str, str | None, Cause, str]] = {
    "backend version": (
        "another runtime: driver, CUDA, cuDNN or libtpu",
        "use the same drivers and plugin wheels on both sides",
        Cause.DEVICE,
        "runtime of the device",
    ),
    "accelerator_config": (
        "other devices: their kind, their number or topology, or the features of the CPU",
        "compile on the kind of machine that will run it (and with its --xla_cpu_max_isa, if any)",
        Cause.DEVICE,
        "devices",
    ),
    "compression": (
        "the codec, whose name is part of the key",
        "install zstandard in both environments, or in neither",
        Cause.CODEC,
        "codec",
    ),
    "custom_hook": (
        "jax's cache_key.custom_hook, set by some code, returned another text",
        "make it return the same text in both",
        Cause.HOOK,
        "custom hook",
    ),
}
