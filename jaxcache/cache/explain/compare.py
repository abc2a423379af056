"""Name the components in which two compiles differ, with what each means and what to do."""

import hashlib
from collections.abc import Iterator
from functools import cache

from jaxcache.cache.explain.matching import pair
from jaxcache.cache.explain.options import compare_options, flag_differences, flags_explain_options
from jaxcache.cache.explain.programs import compare_arguments, compare_programs
from jaxcache.cache.explain.sides import (
    COMPONENTS,
    Comparison,
    Compile,
    Difference,
    Explanation,
    Side,
)
from jaxcache.entry.contents import Contents
from jaxcache.entry.options import nearest_version, same_generation

#: "Cannot tell", as a difference of its own: nothing is known of one side beyond its key.
UNKNOWN = "unknown"
_SAME_KEY = "entry"
_CODECS = {"zstandard": "zstd", "zlib": "zlib"}


def explain(left: Side, right: Side) -> Explanation:
    """Compare each compile of the right side with the nearest of the left."""
    comparisons = []
    same = 0
    single = len(left.compiles) == len(right.compiles) == 1  # whatever their names
    pairs = zip(left.compiles, right.compiles, strict=True) if single else None
    for old, new in pairs or pair(left.compiles, right.compiles):
        differences = tuple(compare(old, new, left))
        if differences:
            comparisons.append(Comparison(old, new, differences))
        else:
            same += 1
    comparisons.sort(key=lambda c: c.right.is_helper)  # what people wrote comes first
    return Explanation(left.name, right.name, same, tuple(comparisons))


def compare(left: Compile | None, right: Compile, side: Side) -> Iterator[Difference]:
    """The differences of one compile; none if it is no trouble."""
    if left is None:
        yield Difference(
            "computation",
            None,
            right.module,
            f"{side.name} has no compile of that name",
            "was it called there under another name, or not at all?",
        )
        return
    if right.outcome == "uncacheable" and "callback" in (right.reason or ""):
        yield _callbacks(left, right)
        return
    if right.key is not None and right.key == left.key:
        yield from _same_key(left, right)
        return
    if left.module != right.module:
        yield compare_programs(left, right)
        return
    hashed = left.components and right.components
    known = list(_by_components(left, right) if hashed else _by_entry(left, right))
    if known:
        yield from known
        return
    if left.key is None or right.key is None:
        yield _unknown(left, right, "no key was made on one side: the cache was off there")
    else:
        yield _unknown(left, right, "another key, and nothing that is known of both sides differs")


def headword(component: str, meaning: str) -> str:
    """Return in a few words what differs; "another key" where that is unknown."""
    if component == UNKNOWN:
        return "another key"
    if component != "computation":
        return component
    return meaning.partition(":")[0].partition(" (at ")[0].removeprefix("the ")


def _unknown(left: Compile, right: Compile, why: str) -> Difference:
    return Difference(
        UNKNOWN,
        left.key,
        right.key,
        f"cannot tell: {why}",
        "log both runs with JAX_LOGGING_LEVEL=DEBUG, and explain the two logs",
    )


def _same_key(left: Compile, right: Compile) -> Iterator[Difference]:
    """One key, so whether it hits depends on the entry alone."""
    if right.outcome in (None, "hit"):
        return
    reason = left.reason or right.reason or ""
    if left.outcome not in ("skipped", "uncacheable"):
        if right.outcome == "error" or left.outcome in ("hit", "written"):
            yield Difference(
                _SAME_KEY,
                left.outcome,
                right.outcome,
                "the same key: the entry is gone, damaged, or in another directory",
                "jaxcache verify; and jaxcache where -- CMD tells the directory really used",
            )
        return
    if "callback" in reason:
        yield _callbacks(left, right)
    elif "took" in reason or "compile-time" in reason:
        yield Difference(
            "jax_persistent_cache_min_compile_time_secs",
            reason,
            right.reason,
            "the same key, but it compiled too fast to be written",
            "export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0",
        )
    elif "size" in reason or "smaller" in reason:
        yield Difference(
            "jax_persistent_cache_min_entry_size_bytes",
            reason,
            right.reason,
            "the same key, but the entry was too small to be written",
            "export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1",
        )
    else:
        yield Difference(
            _SAME_KEY,
            left.outcome,
            right.outcome,
            f"the same key, but it was not written: {reason}",
            None,
        )


def _callbacks(left: Compile, right: Compile) -> Difference:
    return Difference(
        "host callbacks",
        left.outcome,
        right.outcome,
        "the program calls back into Python, and JAX before 0.11 never caches such",
        "leave debug.print and pure_callback out of what is compiled, or use jax 0.11",
    )


def _by_components(left: Compile, right: Compile) -> Iterator[Difference]:
    """Both sides tell the hash of every component: what differs is certain."""
    lefts, rights = left.components or {}, right.components or {}
    order = [*COMPONENTS, *sorted(lefts.keys() - set(COMPONENTS))]
    names = [n for n in order if n in lefts and n in rights and lefts[n] != rights[n]]
    if "compile_options" in names and "XLA flags" in names and flags_explain_options(left, right):
        names.remove("compile_options")
    for name in names:
        if name == "computation":
            yield compare_programs(left, right)
        elif name == "XLA flags":
            yield flag_differences(left, right)
        elif name == "compile_options":
            yield compare_options(left, right)
        else:
            yield _by_hash(name, left, right)


def _by_hash(name: str, left: Compile, right: Compile) -> Difference:
    meaning, fix = _MEANINGS.get(name, ("a part of the key that is not known here", None))
    old, new = (_value(name, c) for c in (left, right))
    if name == "accelerator_config":
        ignored = [set(c.ignored_flags) for c in (left, right)]
        if ignored[0] != ignored[1]:
            old, new = (" ".join([v, *sorted(f)]) for v, f in zip((old, new), ignored, strict=True))
        elif old == new:  # what is known of the devices does not show it
            old, new = (f"{v} {c.hash_of(name)}" for v, c in ((old, left), (new, right)))
    return Difference(name, old, new, meaning, fix)


def _value(name: str, compile_: Compile) -> str:
    """Return the value that was hashed, if it can be found, else the start of the hash."""
    if name == "accelerator_config" and compile_.contents and compile_.contents.device.target:
        device = compile_.contents.device
        words = [device.platform, device.name or device.target or ""]
        if assignment := compile_.options.get("device_assignment"):
            words.append(assignment)
        return " ".join(words)
    digest = (compile_.components or {}).get(name, "")
    return _values_by_hash().get((name, digest)) or compile_.hash_of(name) or ""


@cache
def _values_by_hash() -> dict[tuple[str, str], str]:
    """Values that are found again by hashing them: codecs and versions."""
    releases = {f"0.{minor}.{patch}" for minor in range(3, 30) for patch in range(60)}
    releases |= {f"0.{m}.{p}.{q}" for m in range(4, 30) for p in range(10) for q in range(1, 5)}
    found = {("jax_lib version", _sha256(r)): r for r in releases}
    found |= {("compression", _sha256(c)): c for c in _CODECS}
    return found | {("custom_hook", _sha256("")): "no hook"}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _by_entry(left: Compile, right: Compile) -> Iterator[Difference]:
    """Compare two sides by their entries alone, in the order of the key's components."""
    old, new = left.contents, right.contents
    if left.codec and right.codec and left.codec != right.codec:
        meaning, fix = _MEANINGS["compression"]
        yield Difference("compression", left.codec, right.codec, meaning, fix)
    if old is None or new is None:
        if arguments := compare_arguments(left, right):
            yield arguments
        return
    if old.flags and new.flags and not same_generation(old.flags, new.flags):
        meaning, fix = _MEANINGS["jax_lib version"]
        before, after = (nearest_version(frozenset(f)) or "?" for f in (old.flags, new.flags))
        yield Difference("jax_lib version", before, after, meaning, fix)
        return  # everything else differs with it
    for found in (flag_differences(left, right), compare_options(left, right, flags_too=False)):
        if found.left and found.right and found.left != found.right:
            yield found
    if any(a and b and a != b for a, b in zip(*map(_device_facts, (old, new)), strict=True)):
        meaning, fix = _MEANINGS["accelerator_config"]
        yield Difference("accelerator_config", _device(left), _device(right), meaning, fix)
    outlines = left.outline and right.outline and left.outline != right.outline
    if old.program and new.program and (outlines or old.program != new.program):
        yield compare_programs(left, right)


def _device_facts(contents: Contents) -> tuple[object, ...]:
    """The facts of the device that its key depends on; unknown facts are empty."""
    device = contents.device
    platform = None if device.platform == "unknown" else device.platform
    return platform, device.target, sorted(device.cpu_features or ())


def _device(compile_: Compile) -> str | None:
    device = compile_.contents and compile_.contents.device
    return f"{device.platform} {device.target or 'unknown'}" if device else None


_MEANINGS: dict[str, tuple[str, str | None]] = {
    "jax_lib version": (
        "another jaxlib: nothing of one version is ever read by another",
        "use one jaxlib on both sides; after an upgrade, run once and prune the old entries",
    ),
    "backend version": (
        "another runtime: driver, CUDA, cuDNN or libtpu",
        "use the same drivers and plugin wheels on both sides",
    ),
    "accelerator_config": (
        "other devices: their kind, their number or topology, or the features of the CPU",
        "compile on the kind of machine that will run it; each kind has its own keys",
    ),
    "compression": (
        "the codec, whose name is part of the key",
        "install zstandard in both environments, or in neither",
    ),
    "custom_hook": (
        "jax's cache_key.custom_hook, set by some code, returned another text",
        "make it return the same text in both",
    ),
}
