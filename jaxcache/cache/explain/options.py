"""Differences in XLA flags and compile options."""

from collections.abc import Mapping
from functools import partial

from jaxcache.cache.explain.sides import Compile, Difference
from jaxcache.entry.releases import CACHE_PATH

#: Options that hold a path inside the cache directory (jax/_src/compiler.py, 0.4.36 and later).
_PATHS = frozenset({"xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_kernel_cache_file"})
#: How the meaning of a difference in the path begins.
OF_PATH = "the path of the cache directory"
_WITHOUT = "none (--portable)"
_SHOWN = 8

Values = Mapping[str, object]
_of_flags, _of_options = partial(Difference, "XLA flags"), partial(Difference, "compile_options")


def flag_differences(left: Compile, right: Compile) -> Difference:
    """Compare the flags: as they were given, else as the entries hold them."""
    fix = "set the same XLA_FLAGS, LIBTPU_INIT_ARGS and --xla… arguments on both sides"
    if left.xla_flags is not None and right.xla_flags is not None:
        old = [f for f in left.xla_flags if f not in right.xla_flags]
        new = [f for f in right.xla_flags if f not in left.xla_flags]
        meaning = "the XLA flags, from XLA_FLAGS, LIBTPU_INIT_ARGS and the command line"
        return _of_flags(_given(old), _given(new), meaning, fix)
    lefts, rights = _entry_flags(left), _entry_flags(right)
    if lefts is None or rights is None:
        return _of_flags(
            left.hash_of("XLA flags"),
            right.hash_of("XLA flags"),
            "the XLA flags; which of them cannot be told: no entry of one side",
            fix,
        )
    names = [n for n in _differing(lefts, rights) if n not in _PATHS]
    if not names and left.hash_of("XLA flags") and right.hash_of("XLA flags"):
        return _of_flags(
            left.hash_of("XLA flags"),
            right.hash_of("XLA flags"),
            "flags that XLA did not read, such as --xla… arguments of the script itself: "
            "JAX hashes them all the same",
            "pass the same --xla… arguments, or rename options of the script that begin so",
        )
    return _of_flags(
        _assigned(names, lefts),
        _assigned(names, rights),
        "XLA flags as the compiled programs have them, from XLA_FLAGS or compiler_options",
        fix,
    )


def flags_explain_options(left: Compile, right: Compile) -> bool:
    """Whether the compile options differ by nothing but what the XLA flags set in them."""
    lefts, rights = _entry_flags(left), _entry_flags(right)
    if lefts is None or rights is None or len(set(map(str, _placements(left, right)))) > 1:
        return False
    if any(n in _PATHS for n in _differing(lefts, rights)):
        return False
    flags = (f for c in (left, right) for f in c.xla_flags or ())
    given = {flag.lstrip("-").partition("=")[0] for flag in flags}
    names = set(_differing(lefts, rights))
    return not given or names <= given


def compare_options(left: Compile, right: Compile, *, flags_too: bool = True) -> Difference:
    """Compare the compile options; a side of which nothing is known is None.

    Args:
        flags_too: XLA flags among the options count; False where they are told by themselves.
    """
    old, new = _placements(left, right)
    names = _differing(old, new)
    if names == ["profile_guided"]:
        with_one, without = "compiled with a profile (PGLE)", "without"
        return _of_options(
            with_one if old["profile_guided"] else without,
            with_one if new["profile_guided"] else without,
            "JAX compiles a function again once it has a profile of its runs, under another key",
            "JAX_COMPILATION_CACHE_EXPECT_PGLE=1 has JAX look for the one with a profile first",
        )
    if names:
        return _of_options(
            _assigned(names, old),
            _assigned(names, new),
            "how many devices the program runs on, and which",
            "use the same mesh and number of devices; JAX_… and XLA_FLAGS may set them",
        )
    lefts, rights = _entry_flags(left), _entry_flags(right)
    paths = left.cache_path or _written_in(left), right.cache_path or _written_in(right)
    if all(paths) and paths[0] != paths[1]:
        return _of_options(
            *paths,
            f"{OF_PATH}, which JAX 0.4.36 to 0.10 hash (xla_gpu_per_fusion_autotune_cache_dir)",
            "use the cache under one path, or set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none "
            "on both sides, or use jax 0.11",
        )
    known = lefts is not None and rights is not None
    if known and paths[0] != paths[1] and _hashes_path(left) and _hashes_path(right):
        return _of_options(
            paths[0] or _WITHOUT,
            paths[1] or _WITHOUT,
            f"{OF_PATH}, which JAX 0.4.36 to 0.10 hash: one side was compiled with "
            "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none (--portable sets it), which leaves it out",
            "run with --portable on both sides, or on neither",
        )
    if lefts is not None and rights is not None:
        flags = [n for n in _differing(lefts, rights) if n not in _PATHS]
        if flags and flags_too:
            return _of_options(
                _assigned(flags, lefts),
                _assigned(flags, rights),
                "options that XLA was given",
                "pass the same compiler_options to jit, and the same XLA_FLAGS",
            )
    return _of_options(
        left.hash_of("compile_options"),
        right.hash_of("compile_options"),
        "the compile options; which of them cannot be told",
        "keep the entries of both in one cache, and explain again with --cache-dir"
        if lefts is None or rights is None
        else None,
    )


def _placements(left: Compile, right: Compile) -> tuple[Values, Values]:
    """Replicas, partitions and devices that both sides tell: their entries, else their logs."""
    found: list[Values] = []
    for compile_ in (left, right):
        known = compile_.contents.compile_options if compile_.contents else None
        if known is not None and known.num_replicas is not None:
            found.append(
                {
                    "num_replicas": known.num_replicas,
                    "num_partitions": known.num_partitions,
                    "device_assignment": known.device_assignment,
                    "profile_guided": known.profile_guided,
                }
            )
    old, new = found if len(found) == 2 else (left.options, right.options)
    names = [n for n in old if old[n] is not None and new.get(n) is not None]
    return {n: old[n] for n in names}, {n: new[n] for n in names}


def _entry_flags(compile_: Compile) -> Values | None:
    return compile_.contents.flags if compile_.contents else None


def _written_in(compile_: Compile) -> str | None:
    return compile_.contents.written_in_cache_dir if compile_.contents else None


def _hashes_path(compile_: Compile) -> bool:
    """Whether its JAX hashes the path of the cache directory; so does one that is not known."""
    known = compile_.contents
    return known is None or known.kernel_cache or CACHE_PATH.holds(known.like_jaxlib or "0.4.36")


def _differing(left: Values, right: Values) -> list[str]:
    missing = object()
    names = left.keys() | right.keys()
    return sorted(n for n in names if left.get(n, missing) != right.get(n, missing))


def _given(flags: list[str]) -> str:
    return " ".join(flags) or "without"


def _assigned(names: list[str], values: Values) -> str:
    shown = [f"{n}={values.get(n, 'unset')}" for n in names[:_SHOWN]]
    more = len(names) - len(shown)
    return " ".join(shown) + (f" and {more} more" if more > 0 else "")
