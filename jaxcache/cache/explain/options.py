"""Differences in XLA flags, compile options and devices."""

from collections.abc import Mapping
from functools import partial

from jaxcache.cache.explain.sides import Cause, Compile, Difference
from jaxcache.core.machine import hashes_path
from jaxcache.entry.contents import Contents
from jaxcache.units import join_some

#: Options that hold a path inside the cache directory (jax/_src/compiler.py, 0.4.36 and later).
_PATHS = frozenset({"xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_kernel_cache_file"})
#: The option that sets how many devices a CPU shows, which JAX keeps out of the flags of a key.
_DEVICE_COUNT = "xla_force_host_platform_device_count"
#: The option that JAX sets for programs of more than ten operations (``use_detailed_logging`` of
#: jax/_src/compiler.py, 0.10.2): where programs differ, it follows from them.
_BY_PROGRAM = "xla_detailed_logging"
_WITHOUT = "none (--portable)"
_SHOWN = 8

Values = Mapping[str, object]
_of_flags = partial(Difference, "XLA flags", cause=Cause.FLAG, title="XLA flags")
_of_options = partial(Difference, "compile_options")
_FLAGS_FIX = "set the same XLA_FLAGS, LIBTPU_INIT_ARGS and --xla… arguments on both sides"


def compare_flags(left: Compile, right: Compile) -> Difference:
    """Compare the flags that went into the key, where their hashes differ."""
    if left.xla_flags is not None and right.xla_flags is not None:
        old = [f for f in left.xla_flags if f not in right.xla_flags]
        new = [f for f in right.xla_flags if f not in left.xla_flags]
        return _of_flags(
            " ".join(old) or "without",
            " ".join(new) or "without",
            "the XLA flags, from XLA_FLAGS, LIBTPU_INIT_ARGS and the command line",
            _FLAGS_FIX,
        )
    if difference := compare_options(left, right):
        return difference
    meaning = "the XLA flags; which of them is not recorded on both sides"
    if _entry_flags(left) is not None and _entry_flags(right) is not None:
        meaning = (
            "flags that XLA did not read, such as --xla… arguments of the script itself: "
            "JAX hashes them all the same"
        )
    hashes = left.hash_of("XLA flags"), right.hash_of("XLA flags")
    return _of_flags(*hashes, meaning, _FLAGS_FIX)


def compare_options(left: Compile, right: Compile) -> Difference | None:
    """Compare the options of XLA that both entries hold."""
    lefts = _entry_flags(left)
    rights = _entry_flags(right)
    if lefts is None or rights is None:
        return None
    ignored = {*_PATHS, _DEVICE_COUNT}
    programs = {(side.components or {}).get("computation") for side in (left, right)}
    if None in programs or len(programs) > 1:
        ignored.add(_BY_PROGRAM)
    names = [n for n in _differing(lefts, rights) if n not in ignored]
    if not names:
        return None
    return _of_flags(
        _assigned(names, lefts),
        _assigned(names, rights),
        "XLA flags as the compiled programs have them, from XLA_FLAGS or compiler_options",
        "pass the same compiler_options to jit, and the same XLA_FLAGS",
    )


def compare_placements(left: Compile, right: Compile) -> Difference | None:
    """Compare how many devices a program runs on, and which; or that only one has a profile."""
    old, new = _placements(left, right)
    names = _differing(old, new)
    if names == ["profile_guided"]:
        with_one = "compiled with a profile (PGLE)"
        without = "without"
        return _of_options(
            with_one if old["profile_guided"] else without,
            with_one if new["profile_guided"] else without,
            "JAX compiles a function again once it has a profile of its runs, under another key",
            "JAX_COMPILATION_CACHE_EXPECT_PGLE=1 has JAX look for the one with a profile first",
            Cause.CONFIG,
            title="a profile (PGLE)",
        )
    if not names:
        return None
    return _of_options(
        _assigned(names, old),
        _assigned(names, new),
        "how many devices the program runs on, and which",
        "use the same mesh and number of devices; JAX_… and XLA_FLAGS may set them",
        Cause.DEVICE,
        title="devices of the program",
    )


def compare_device_counts(left: Compile, right: Compile, *, are_others: bool) -> Difference | None:
    """Compare how many devices the processes had, or the CPUs were set to show.

    Args:
        are_others: the keys differ in the devices; those of one kind of CPU then differ in number.
    """
    old = _device_count(left)
    new = _device_count(right)
    is_told = None not in (old, new) or (are_others and _is_same_cpu(left, right))
    if old == new or not is_told:
        return None
    return Difference(
        "accelerator_config",
        f"device_count={old or 'unknown'}",
        f"device_count={new or 'unknown'}",
        "the number of devices of the process, which every key contains",
        "show as many devices to both: on a CPU JAX_NUM_CPU_DEVICES sets the number, or "
        "--xla_force_host_platform_device_count in XLA_FLAGS",
        Cause.DEVICE,
        title="number of devices",
    )


def _is_same_cpu(left: Compile, right: Compile) -> bool:
    facts = [device_facts(side.contents) if side.contents else None for side in (left, right)]
    return facts[0] == facts[1] and facts[0] is not None and facts[0][0] == "cpu"


def _device_count(side: Compile) -> int | None:
    """Return what was recorded; an entry records only what the XLA flag sets, which is 1 else."""
    flagged = (_entry_flags(side) or {}).get(_DEVICE_COUNT)
    return side.device_count or (flagged if isinstance(flagged, int) and flagged > 1 else None)


def device_facts(contents: Contents) -> tuple[object, ...]:
    """Return the facts of a device that keys depend on; unknown facts are empty."""
    device = contents.device
    platform = None if device.platform == "unknown" else device.platform
    return platform, device.target, sorted(device.cpu_features or ())


def device_name(compile_: Compile) -> str | None:
    """Return the platform and target of an entry."""
    device = compile_.contents and compile_.contents.device
    return f"{device.platform} {device.target or 'unknown'}" if device else None


def compare_paths(left: Compile, right: Compile) -> Difference | None:
    """Compare the paths of the cache, where JAX hashes them."""
    if not (_hashes_path(left) and _hashes_path(right)):
        return None
    paths = left.cache_path or _written_in(left), right.cache_path or _written_in(right)
    if paths[0] == paths[1]:
        return None
    hashed = "which JAX 0.4.36 to 0.10 hash"
    if all(paths):
        return _of_options(
            *paths,
            f"the path of the cache directory, {hashed} (xla_gpu_per_fusion_autotune_cache_dir)",
            "use the cache under one path, or set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none "
            "on both sides, or use jax 0.11",
            Cause.PATH,
            title="cache path",
        )
    for side in (left, right):
        if side.cache_path is None and _entry_flags(side) is None:
            return None
    return _of_options(
        paths[0] or _WITHOUT,
        paths[1] or _WITHOUT,
        f"the path of the cache directory, {hashed}: one side was compiled with "
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none (--portable sets it), which leaves it out",
        "run with --portable on both sides, or on neither",
        Cause.PATH,
        title="cache path",
    )


_PLACEMENT = ("num_replicas", "num_partitions", "device_assignment", "profile_guided")


def _placements(left: Compile, right: Compile) -> tuple[Values, Values]:
    """Replicas, partitions and devices that the entries of both sides record."""
    values: list[Values] = []
    for compile_ in (left, right):
        options = compile_.contents.compile_options if compile_.contents else None
        if options is not None and options.num_replicas is not None:
            values.append({name: getattr(options, name) for name in _PLACEMENT})
    old, new = values if len(values) == 2 else ({}, {})
    names = [n for n in old if old[n] is not None and new.get(n) is not None]
    return {n: old[n] for n in names}, {n: new[n] for n in names}


def _entry_flags(compile_: Compile) -> Values | None:
    return compile_.contents.flags if compile_.contents else None


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
