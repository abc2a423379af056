"""Name the parts of the key in which two compiles differ, each with its values and its evidence.

A key is a function of its parts: if exactly one differs, it alone is the cause. Where several do,
none of them alone brings a hit. What is known of one side only is no difference.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from jaxcache.cache.explain import say
from jaxcache.cache.explain.past import Past
from jaxcache.cache.explain.program import compare_computations
from jaxcache.cache.explain.sides import (
    COMPONENTS,
    JAXLIB,
    Cause,
    Compile,
    Difference,
    Evidence,
    WriteRule,
    differ,
)
from jaxcache.core.machine import hashes_path
from jaxcache.entry.contents import Contents
from jaxcache.entry.options import default_flags, nearest_version, same_generation
from jaxcache.units import join_some

_COMPUTATION = "computation"
_OPTIONS = "compile_options"
_FLAGS = "XLA flags"
#: Options that follow from the mesh of a program.
_PLACES = re.compile(r"((device_assignment|num_partitions|num_replicas)=[\d(), ]+)+")
#: Flags that give the process other devices.
_OF_DEVICES = ("xla_cpu_max_isa", "xla_force_host_platform_device_count")
_DEVICES = "accelerator_config"
#: Options that hold a path inside the cache directory (jax/_src/compiler.py, 0.4.36 and later).
_PATHS = frozenset({"xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_kernel_cache_file"})
#: The option that sets how many devices a CPU shows, which JAX keeps out of the flags of a key.
_DEVICE_COUNT = "xla_force_host_platform_device_count"
#: The option that JAX sets for programs of more than ten operations (``use_detailed_logging`` of
#: jax/_src/compiler.py, 0.10.2): where programs differ, it follows from them.
_BY_PROGRAM = "xla_detailed_logging"
_PLACEMENT = ("num_replicas", "num_partitions", "device_assignment", "profile_guided")
_WITHOUT_PATH = "none (--portable)"
_SHOWN = 8
_CAUSES = {"backend version": Cause.DEVICE, "custom_hook": Cause.HOOK}
_COUNT_VARIABLE = "JAX_NUM_CPU_DEVICES"
_FLAG_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")

Values = Mapping[str, object]
_NONE = Past()


def compare(left: Compile | None, right: Compile, *, past: Past = _NONE) -> tuple[Difference, ...]:
    """Return the differences of one compile, the cause first; none if nothing is wrong with it.

    Args:
        left: the earlier one.
        past: what the records say of both runs.
    """
    if right.outcome == "uncacheable" and right.rule == WriteRule.HOST_CALLBACKS:
        return ((_by_version(left, right) if left else None) or _callbacks(left, right),)
    if left is None:
        return (first_time(right, say.first_time("", ())),)
    if right.key is not None and right.key == left.key:
        has_missed = right.outcome not in (None, "hit")
        return (compare_entry(left, right, is_there=True),) if has_missed else ()
    names = differing_components(left, right)
    differences = (
        _without_parts(left, right) if names is None else _by_parts(left, right, names, past)
    )
    if not differences and left.is_damaged:
        return (_unknown(left, right, say.DAMAGED_NEAREST, say.REPAIR),)
    if not differences and (left.key is None or right.key is None):
        return (_unknown(left, right, say.NO_KEY),)
    if not differences:
        meaning = say.NOT_KNOWN if left.sketch is None else say.NOTHING_DIFFERS
        return (_unknown(left, right, meaning),)
    return tuple(differences)


def first_time(right: Compile, meaning: str) -> Difference:
    """Return that nothing earlier is known of a compile."""
    return Difference(
        _COMPUTATION, None, right.module, meaning, None, Cause.NOT_CACHED_BEFORE, title=meaning
    )


def differing_components(left: Compile, right: Compile) -> list[str] | None:
    """Return the parts whose hashes differ; None where they are not known on both sides."""
    if not left.components or not right.components:
        return None
    lefts = left.components
    rights = right.components
    order = [*COMPONENTS, *sorted(lefts.keys() - set(COMPONENTS))]
    return [n for n in order if n in lefts and n in rights and lefts[n] != rights[n]]


def _unknown(left: Compile, right: Compile, meaning: str, fix: str | None = None) -> Difference:
    return Difference(Cause.UNKNOWN, left.key, right.key, meaning, fix, title="another key")


# The parts ---------------------------------------------------------------------------------------


def _by_parts(left: Compile, right: Compile, names: list[str], past: Past) -> list[Difference]:
    """Return the differences of all parts that differ, in the order of the key."""
    if version := _by_version(left, right):
        return [version]  # JAX's other parts follow from it
    differences: list[Difference] = []
    for name in names:
        if name == _COMPUTATION:
            continue
        differences += _by_part(name, left, right, past, names)
    flags = next((d for d in differences if d.component == _FLAGS), None)
    following = [d for d in differences if flags and _follows(d, flags)]
    differences = [d for d in differences if d not in following]
    if _COMPUTATION in names and [d.component for d in differences] == [_OPTIONS]:
        programs = compare_computations(left, right, past)
        if all(d.cause is Cause.ARGUMENT_SHARDING for d in programs) and _PLACES.fullmatch(
            f"{differences[0].left} {differences[0].right}"
        ):
            return [replace(d, fix=None) for d in differences]  # one mesh makes both parts
    is_alone = len(differences) == 1 and _COMPUTATION not in names
    if _COMPUTATION in names and len(differences) == 0:
        return compare_computations(left, right, past)
    if is_alone and any(d.cause in (Cause.UNKNOWN, Cause.DEVICE) for d in following):
        return [replace(differences[0], fix=None)]
    if is_alone:
        return [replace(differences[0], evidence=Evidence.PROVED)]
    differences = [
        replace(d, evidence=Evidence.IN_PART, fix=None, meaning=f"{d.meaning}; {say.ALONE_NO_HIT}")
        for d in differences
    ]
    if _COMPUTATION in names:
        programs = [d.without_cure() for d in compare_computations(left, right, past)]
        differences += [d for d in programs if d.cause is not Cause.UNKNOWN] or programs
    return differences


def _follows(option: Difference, flags: Difference) -> bool:
    """Return whether all that differs in a part is set by flags that differ, or may be."""
    set_by_flags = f"{flags.left} {flags.right}"
    if option.component == _DEVICES:
        return any(name in set_by_flags for name in _OF_DEVICES)
    if option.component != _OPTIONS:
        return False
    if option.cause is Cause.UNKNOWN:
        return True
    names = re.findall(r"(\w+)=", f"{option.left} {option.right}")
    return option.cause is Cause.FLAG and all(f"{name}=" in set_by_flags for name in names)


def _by_part(
    name: str, left: Compile, right: Compile, past: Past, names: Sequence[str]
) -> Iterator[Difference]:
    if name == _FLAGS:
        yield _by_flags(left, right)
    elif name == _OPTIONS:
        yield from _by_options(left, right, names)
    elif name == _DEVICES:
        yield _by_devices(left, right, past)
    elif name == "compression":
        old, new = (_value(name, c) for c in (left, right))
        yield differ(name, say.PARTS[name], Cause.CODEC, (old, new), fix=say.install_codec(old))
    else:
        cause = _CAUSES.get(name, Cause.UNKNOWN)
        part = say.PARTS.get(name) or say.unknown_part(name)
        yield differ(name, part, cause, (_value(name, left), _value(name, right)))


def _value(name: str, compile_: Compile) -> str:
    """Return the value that was hashed, if it can be found, else the start of the hash."""
    return compile_.value_of(name) or compile_.hash_of(name) or ""


def _by_version(left: Compile, right: Compile) -> Difference | None:
    names = differing_components(left, right)
    of_jax = left.jax_version, right.jax_version
    if all(of_jax) and of_jax[0] != of_jax[1] and names != []:
        component = JAXLIB if names is None or JAXLIB in names else _COMPUTATION
        return differ(component, say.version("jax"), Cause.JAX_VERSION, of_jax)
    of_jaxlib = left.jaxlib_version, right.jaxlib_version
    if names is not None:
        if JAXLIB not in names:
            return None
        if not all(of_jaxlib) or of_jaxlib[0] == of_jaxlib[1]:
            of_jaxlib = _value(JAXLIB, left), _value(JAXLIB, right)
    elif not all(of_jaxlib):
        flags = _flags_of_entry(left), _flags_of_entry(right)
        if not all(flags) or same_generation(*flags):
            return None
        of_jaxlib = (
            of_jaxlib[0] or nearest_version(flags[0]) or "?",
            of_jaxlib[1] or nearest_version(flags[1]) or "?",
        )
    elif of_jaxlib[0] == of_jaxlib[1]:
        return None
    return differ(JAXLIB, say.version("jaxlib"), Cause.JAXLIB_VERSION, of_jaxlib)


def _flags_of_entry(compile_: Compile) -> frozenset[str]:
    """Return the XLA flags of an entry, else those that its jaxlib writes; none if unknown."""
    contents = compile_.contents
    return frozenset(contents.flags or () if contents else default_flags(compile_.jaxlib_version))


# Flags and options -------------------------------------------------------------------------------


def _by_flags(left: Compile, right: Compile) -> Difference:
    """Name the flags that went into the key, where their hashes differ."""
    if left.xla_flags is None or right.xla_flags is None:
        hashes = left.hash_of(_FLAGS), right.hash_of(_FLAGS)
        return differ(_FLAGS, say.PARTS[_FLAGS], Cause.FLAG, hashes)
    old = [f for f in left.xla_flags if f not in right.xla_flags]
    new = [f for f in right.xla_flags if f not in left.xla_flags]
    names = list(dict.fromkeys(f.partition("=")[0] for f in (*old, *new)))
    place, restored = _place_of_flags(old, new)
    fix = None if restored is None else say.set_variable(place, restored)
    sides = " ".join(old) or "without", " ".join(new) or "without"
    return differ(_FLAGS, say.flags(names, place), Cause.FLAG, sides, fix=fix)


def _place_of_flags(old: Sequence[str], new: Sequence[str]) -> tuple[str, str | None]:
    """Return the variable that sets flags, and its earlier value; None where that is unknown."""
    for name in _FLAG_VARIABLES:
        flags = os.environ.get(name, "").split()
        if new and all(flag in flags for flag in new):
            return name, " ".join([*(f for f in flags if f not in new), *old])
    if not new:  # a flag is gone
        return _FLAG_VARIABLES[0], " ".join([*os.environ.get(_FLAG_VARIABLES[0], "").split(), *old])
    return "", None


def _by_options(left: Compile, right: Compile, names: Sequence[str]) -> Iterator[Difference]:
    """Yield what differs in the options of the compile: the path, flags of one jit, the devices."""
    differences = [d for d in (_by_path(left, right), _by_entry_flags(left, right)) if d]
    differences += _by_placements(left, right)
    if differences or _COMPUTATION in names:  # what is left follows from the program
        yield from differences
        return
    hashes = left.hash_of(_OPTIONS), right.hash_of(_OPTIONS)
    yield differ(_OPTIONS, say.PARTS[_OPTIONS], Cause.UNKNOWN, hashes)


def _by_entry_flags(left: Compile, right: Compile) -> Difference | None:
    """Compare the options of XLA that both entries hold."""
    lefts = left.contents.flags if left.contents else None
    rights = right.contents.flags if right.contents else None
    if lefts is None or rights is None:
        return None
    ignored = {*_PATHS, _DEVICE_COUNT}
    programs = {(side.components or {}).get(_COMPUTATION) for side in (left, right)}
    if None in programs or len(programs) > 1:
        ignored.add(_BY_PROGRAM)
    names = [n for n in _differing(lefts, rights) if n not in ignored]
    if not names:
        return None
    flags = " ".join((*(left.xla_flags or ()), *(right.xla_flags or ())))
    is_set_by_flag = any(n in flags for n in names)
    place = "" if is_set_by_flag else "compiler_options of the jit"
    sides = _assigned(names, lefts), _assigned(names, rights)
    return differ(_OPTIONS, say.flags(names, place), Cause.FLAG, sides)


def _by_placements(left: Compile, right: Compile) -> Iterator[Difference]:
    """Yield how many devices a program runs on, and which; or that only one has a profile."""
    old, new = _placements(left, right)
    names = _differing(old, new)
    if names == ["profile_guided"]:
        words = {True: "compiled with a profile (PGLE)", False: "without"}
        sides = words[bool(old[names[0]])], words[bool(new[names[0]])]
        yield differ(_OPTIONS, say.PARTS["pgle"], Cause.CONFIG, sides)
    elif names:
        sides = _assigned(names, old), _assigned(names, new)
        yield differ(_OPTIONS, say.PARTS["placement"], Cause.DEVICE, sides)


def _placements(left: Compile, right: Compile) -> tuple[Values, Values]:
    values: list[Values] = []
    for compile_ in (left, right):
        options = compile_.contents.compile_options if compile_.contents else None
        if options is not None and options.num_replicas is not None:
            values.append({name: getattr(options, name) for name in _PLACEMENT})
    old, new = values if len(values) == 2 else ({}, {})
    names = [n for n in old if old[n] is not None and new.get(n) is not None]
    return {n: old[n] for n in names}, {n: new[n] for n in names}


def _by_path(left: Compile, right: Compile) -> Difference | None:
    """Compare the paths of the cache, where JAX hashes them."""
    if not (_hashes_path(left) and _hashes_path(right)):
        return None
    paths = left.cache_path or _written_in(left), right.cache_path or _written_in(right)
    if paths[0] == paths[1]:
        return None
    if paths[0] and paths[1]:
        fix = say.use_path(paths[0], paths[1])
        return differ(_OPTIONS, say.cache_path(is_portable=False), Cause.PATH, paths, fix=fix)
    for side in (left, right):
        if side.cache_path is None and not (side.contents and side.contents.flags is not None):
            return None
    sides = paths[0] or _WITHOUT_PATH, paths[1] or _WITHOUT_PATH
    return differ(_OPTIONS, say.cache_path(is_portable=True), Cause.PATH, sides)


def _written_in(compile_: Compile) -> str | None:
    return compile_.contents.written_in_cache_dir if compile_.contents else None


def _hashes_path(compile_: Compile) -> bool:
    """Whether its JAX hashes the path of the cache directory; so does one that is not known."""
    contents = compile_.contents
    version = compile_.jax_version or (contents.like_jaxlib if contents else None)
    return hashes_path(version, kernel_cache=contents is not None and contents.kernel_cache)


def _differing(left: Values, right: Values) -> list[str]:
    missing = object()
    names = left.keys() | right.keys()
    return sorted(n for n in names if left.get(n, missing) != right.get(n, missing))


def _assigned(names: list[str], values: Values) -> str:
    return join_some([f"{n}={values.get(n, 'unset')}" for n in names], _SHOWN, " ")


# Devices -----------------------------------------------------------------------------------------


def _by_devices(left: Compile, right: Compile, past: Past) -> Difference:
    """Name the devices: their number where it differs, else what the entries say of them."""
    counts = _device_count(left), _device_count(right)
    if counts[0] != counts[1]:
        sides = tuple(f"device_count={count or 'unknown'}" for count in counts)
        fix = _restore_count(past)
        part = say.PARTS["device count"]
        return differ(_DEVICES, part, Cause.DEVICE, (sides[0], sides[1]), fix=fix)
    names = _device_name(left.contents), _device_name(right.contents)
    if names[0] == names[1]:  # what is known of the devices does not show it
        names = left.hash_of(_DEVICES), right.hash_of(_DEVICES)
    return differ(_DEVICES, say.PARTS[_DEVICES], Cause.DEVICE, names)


def _restore_count(past: Past) -> str | None:
    """Return the command that gives a CPU as many devices as before; None where code sets it."""
    before, now = (run.machine.get("device_count") if run else None for run in (past.old, past.new))
    if not (isinstance(before, int) and isinstance(now, int)):
        return None
    if os.environ.get(_COUNT_VARIABLE) == str(now):
        return say.set_variable(_COUNT_VARIABLE, str(before) if before > 1 else "")
    flags = os.environ.get("XLA_FLAGS", "").split()
    kept = [f for f in flags if _DEVICE_COUNT not in f]
    if now == 1 or len(kept) < len(flags):
        value = [f"--{_DEVICE_COUNT}={before}"] if before > 1 else []
        return say.set_variable("XLA_FLAGS", " ".join([*kept, *value]))
    return None


def _device_count(side: Compile) -> int | None:
    """Return what was recorded; an entry records only what the XLA flag sets, which is 1 else."""
    flagged = ((side.contents.flags if side.contents else None) or {}).get(_DEVICE_COUNT)
    return side.device_count or (flagged if isinstance(flagged, int) and flagged > 1 else None)


def _device_name(contents: Contents | None) -> str | None:
    device = contents and contents.device
    return f"{device.platform} {device.name or device.target or 'unknown'}" if device else None


# What entries alone show -------------------------------------------------------------------------


def _without_parts(left: Compile, right: Compile) -> list[Difference]:
    """Return what differs between two entries, where the parts of a key are not recorded."""
    if version := _by_version(left, right):
        return [version]
    differences: list[Difference] = []
    old = left.contents
    new = right.contents
    if old and new:
        names = _device_name(old), _device_name(new)
        if "unknown" not in f"{names[0]} {names[1]}" and names[0] != names[1]:
            differences.append(differ(_DEVICES, say.PARTS[_DEVICES], Cause.DEVICE, names))
    differences += [*_by_options(left, right, (_COMPUTATION,))]
    if left.codec and right.codec and left.codec != right.codec:
        sides = left.codec, right.codec
        differences.append(differ("compression", say.PARTS["compression"], Cause.CODEC, sides))
    programs = compare_computations(left, right, _NONE)
    is_other = bool(old and new and old.program != new.program)
    return differences + [d for d in programs if d.left or (is_other and not differences)]


# The same key ------------------------------------------------------------------------------------


def compare_entry(
    old: Compile, new: Compile, *, since: str = "", is_there: bool = False
) -> Difference:
    """Return why one key missed that was compiled before: it depends on its entry alone.

    Args:
        since: when the entry was written, or not written, as far as that is recorded.
        is_there: the cache has the entry now.
    """
    if old.unreadable:
        meaning = say.unreadable(old.unreadable)
        part = say.Part("the entry cannot be read", meaning)
        return _of_entry(part, old, new, fix=say.make_readable(old.key or ""))
    if old.is_damaged:
        return _of_entry(say.DAMAGED, old, new, fix=say.REPAIR)
    if old.outcome in ("skipped", "uncacheable"):
        return _never_written(old, new, since)
    if is_there:
        return _of_entry(say.UNUSED, old, new)
    lost = _of_entry(say.lost(since), old, new)
    written = say.written_at(since) if since else None
    return replace(lost, left=written, brief=lost.meaning, evidence=Evidence.PROVED)


def _never_written(old: Compile, new: Compile, since: str) -> Difference:
    unwritten = old if old.reason else new
    if unwritten.rule == WriteRule.HOST_CALLBACKS:
        return _callbacks(old, new)
    if unwritten.rule not in _THRESHOLDS:
        part = say.Part("not written", say.not_written_because(unwritten.reason or ""))
        return _of_entry(part, old, new)
    setting, title, value = _THRESHOLDS[unwritten.rule]
    before, now = (c.reason if c.rule == unwritten.rule else None for c in (old, new))
    detail = next((f": {text}" for text in (before, now) if text not in (None, unwritten.rule)), "")
    difference = differ(
        setting,
        say.below_threshold(title, since),
        Cause.BELOW_THRESHOLD,
        (before, now),
        brief=(f"at {since} it was {title}" if since else title) + detail,
    )
    fix = say.set_variable(setting.upper(), value)
    return replace(difference, fix=fix, evidence=Evidence.PROVED)


def _of_entry(part: say.Part, old: Compile, new: Compile, *, fix: str | None = None) -> Difference:
    sides = old.outcome, new.outcome
    return differ("entry", part, Cause.LOST, sides, fix=fix, evidence=Evidence.UNKNOWN)


def _callbacks(left: Compile | None, right: Compile) -> Difference:
    sides = left.outcome if left else None, right.outcome
    difference = differ("host callbacks", say.NEVER_CACHED, Cause.CALLBACK, sides)
    return replace(difference, fix=say.NEVER_CACHED_CURE, evidence=Evidence.PROVED)


_MIN = "jax_persistent_cache_min_"
_THRESHOLDS: dict[str | None, tuple[str, str, str]] = {
    WriteRule.COMPILE_TIME: (f"{_MIN}compile_time_secs", "compiled too fast to be written", "0"),
    WriteRule.SIZE: (f"{_MIN}entry_size_bytes", "too small to be written", "-1"),
}
"""By rule: its setting, what happened to the entry, and a value that ends the rule."""
