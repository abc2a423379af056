"""Allow-lists of what a file from elsewhere, a recipe or a profile, may set in a child process.

Such a file is data: it starts no program, loads no library and names no file to be written. What is
not listed is refused, not left out, because without it keys would be others.
"""

import re
from collections.abc import Iterable, Iterator

from jaxcache.core import wire
from jaxcache.core.wire import Budget, WireError
from jaxcache.entry.options import flag_names, flag_values, known_defaults, option_override

#: The most devices that a file may request; each takes some 30 kB of a CPU host.
MOST_DEVICES = 512
#: The most processes that a file may request, if the caller allows no more.
MOST_PROCESSES = 8

#: Flags that do not reach a worker, so that their values do not matter: JAX leaves them out of keys
#: (``is_hashed()`` of ``core/seams/`` asks JAX itself), and they name files.
LEFT_OUT = re.compile(
    r"-*(xla_dump_\w+|xla_gpu_cuda_data_dir|xla_force_host_platform_device_count)"
)
_PATHS_AND_DUMPS = """
xla_gpu_cuda_data_dir xla_gpu_per_fusion_autotune_cache_dir xla_gpu_kernel_cache_file xla_dump_to
xla_dump_hlo_module_re xla_dump_hlo_pass_re xla_dump_hlo_pipeline_re xla_dump_hlo_as_text
xla_dump_hlo_as_long_text xla_dump_hlo_as_proto xla_dump_hlo_as_dot xla_dump_hlo_as_url
xla_dump_hlo_as_html xla_dump_fusion_visualization xla_dump_hlo_snapshots xla_dump_max_hlo_modules
xla_dump_module_metadata xla_dump_compress_protos xla_dump_disable_metadata
"""
#: Options that a worker resets (``compile_requests.py`` in injected), as JAX does for keys.
_REPLACED = frozenset(_PATHS_AND_DUMPS.split())
#: Options by whose names XLA reads or writes files, or starts other programs.
_RISKY = re.compile(
    r"dump|upload|file|(?<!fast_)path|profil|snapshot|extra_flags|flags_reset|dir$|_to$|_from$"
)
#: Options of XLA's backends in the map of this name; all others there are LLVM's own.
_EXTRA = "xla_backend_extra_options"
_PLAIN = re.compile(r"[\w.,:=+*()-]*")
#: Fields of ``CompileOptionsProto`` and ``ExecutableBuildOptionsProto``
#: (xla/pjrt/proto/compile_options.proto) that hold numbers, shapes and devices; 3 and 7 are read.
_COMPILE_FIELDS = frozenset({1, 2, 3, 4, 5, 7, 9, 10})
_BUILD_FIELDS = frozenset(range(1, 27)) - {13}

_BOOL = "(?i:0|1|true|false|yes|no|on|off|y|n|t|f)"
_WORD = r"\w{1,40}"
#: Settings that are true or false, without "jax_".
_BOOLS = """
accurate_erf_inv allow_f16_reductions auto_pcast bcoo_cusparse_lowering check_static_indices
check_tracer_leaks compilation_cache_include_metadata_in_key compiler_enable_remat_pass
custom_jvp3 custom_vjp3 custom_vjp_disable_shape_check data_dependent_tracing_fallback
debug_infs debug_key_reuse debug_nans disable_bwd_checks disable_jit disable_most_optimizations
disable_vmap_shmap_error disallow_mesh_context_manager dynamic_shapes eager_pmap enable_checks
enable_custom_prng enable_custom_vjp_by_custom_transpose enable_empty_arrays enable_memories
enable_x64 high_dynamic_range_gumbel include_full_tracebacks_in_locations mosaic_allow_hlo
mosaic_unzip_debug_locations mutable_array_checks no_execution pallas_enable_debug_checks
pmap_no_rank_reduction pmap_shmap_merge ragged_dot_use_ragged_dot_instruction
raise_on_ppermute_sort_diff remat3 remat_barrier_no_cotangents remat_opt_barrier
remove_custom_partitioning_ptr_from_cache_key remove_size_one_mesh_axis_from_type scan3
share_autotune_config_between_hosts share_binary_between_hosts softmax_custom_jvp
sort_devices_by_process_index threefry_gpu_kernel_lowering threefry_partitionable
use_cpp_shard_args use_direct_linearize use_emit_pipeline_primitive use_hlo_logistic_lowering
use_rgv3 use_shardy_partitioner use_simplified_jaxpr_constants varying_axes_in_types
"""
#: Settings that change programs or compile options, and their values.
_SETTINGS: dict[str, str] = {
    "jax_cpu_collectives_implementation": "none|gloo",
    "jax_default_dtype_bits": "32|64",
    "jax_default_matmul_precision": _WORD,
    "jax_default_prng_impl": _WORD,
    "jax_embedded_constants_max_bytes": r"\d{1,6}",
    "jax_exec_time_optimization_effort": r"-?[01](\.\d{1,9})?",
    "jax_explicit_x64_dtypes": _WORD,
    "jax_legacy_prng_key": _WORD,
    "jax_memory_fitting_effort": r"-?[01](\.\d{1,9})?",
    "jax_memory_fitting_level": _WORD,
    "jax_mock_gpu_topology": r"(\d{1,3}x\d{1,3}x\d{1,3})?",
    "jax_mock_num_gpu_processes": r"\d{1,3}",
    "jax_num_cpu_devices": r"-1|\d{1,2}|[1-4]\d\d|50\d|51[0-2]",
    "jax_numpy_dtype_promotion": _WORD,
    "jax_numpy_rank_promotion": _WORD,
    "jax_optimization_level": _WORD,
    "jax_persistent_cache_enable_xla_caches": r"\w{0,40}(,\w{1,40}){0,3}",
    "jax_random_seed_offset": r"-?\d{1,18}",
    "jax_spmd_mode": _WORD,
    "jax_traceback_in_locations_limit": r"-?\d{1,4}",
    "jax_use_magma": _WORD,
} | dict.fromkeys(("jax_" + name for name in _BOOLS.split()), _BOOL)


def is_allowed_setting(name: str, value: object) -> bool:
    """Whether a file may give this setting of JAX, by JAX's name, this value."""
    setting = _SETTINGS.get(name)
    return setting is not None and bool(re.fullmatch(setting, str(value), re.ASCII))


def is_allowed_variable(name: str, value: str) -> bool:
    """Whether a file may give this variable of the environment this value."""
    if name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        return all(is_allowed_flag(f, tpu=name != "XLA_FLAGS") for f in value.split())
    return name.isupper() and is_allowed_setting(name.lower(), value)


def is_allowed_flag(flag: str, *, tpu: bool = False) -> bool:
    """Whether a file may set a flag of XLA: known, naming no file, with a plain value.

    Args:
        tpu: it is for libtpu, whose flags are known by their beginning alone.
    """
    if LEFT_OUT.match(flag):
        return True
    match = re.fullmatch(r"--(xla_\w+)(?:=(\S*))?", flag, re.ASCII)
    if not match:
        return False
    name = match[1]
    value = match[2] or ""
    if name == _EXTRA:
        return all(_is_plain(*pair.partition("=")[::2]) for pair in value.split(","))
    return (tpu or name in flag_names().values()) and _is_plain(name, value)


def _is_plain(name: str, value: str) -> bool:
    """Whether an option of XLA neither names a file nor has a value that could."""
    shaped = re.fullmatch(r"xla_\w+", name, re.ASCII) and not _RISKY.search(name)
    return bool(shaped and _PLAIN.fullmatch(value))


def kept_flags(flags: Iterable[str]) -> list[str]:
    """The flags that a worker is given: those that enter keys."""
    return [f for f in flags if not LEFT_OUT.match(f)]


def refused_options(options: bytes, host: bytes | None = None) -> Iterator[str]:
    """Yield the names of compile options that a file may not set.

    Args:
        options: a ``CompileOptionsProto``.
        host: that of the jaxlib that is going to compile, with its defaults. Without it, numbers
            under names that are not known pass.

    Raises:
        WireError: it is none.
    """
    own = None if host is None else _debug_values(host)
    budget = Budget()
    for number, _, value in wire.walk(memoryview(options), budget):
        if number not in _COMPILE_FIELDS:
            yield f"compile option {number}"
        elif number == 7 and isinstance(value, memoryview):
            name, chosen = option_override(value)
            if name not in _REPLACED and not is_allowed_flag(f"--{name}={chosen}", tpu=True):
                yield name
        elif number == 3 and isinstance(value, memoryview):
            for inner in wire.walk(value, budget):
                if inner.number not in _BUILD_FIELDS:
                    yield f"build option {inner.number}"
                elif inner.number == 3 and isinstance(inner.value, memoryview):
                    yield from _refused_debug(inner.value, own, budget)


def _refused_debug(
    debug: memoryview, host: dict[int, tuple[str, ...]] | None, budget: Budget
) -> Iterator[str]:
    """Yield the names of those ``DebugOptions`` that are neither defaults nor plain."""
    names = flag_names()
    for number, values in flag_values(debug, budget).items():
        name = names.get(number)
        if name in _REPLACED or (host is not None and host.get(number) == values):
            continue
        if any(defaults.get(number) == values for defaults in known_defaults().values()):
            continue
        if name is None:
            if host is not None or any(v.startswith("x") for v in values):
                yield f"XLA option {number}"
        elif name == _EXTRA:
            entries = (v for n, _, v in wire.walk(debug, budget) if n == number)
            yield from (n for n, v in map(_entry, entries) if not _is_plain(n, v))
        elif not all(_is_plain(name, _text(v)) for v in values):
            yield name


def _text(value: str) -> str:
    """Return a value of :func:`flag_values` as text; empty if it is not a byte string."""
    return bytes.fromhex(value[1:]).decode("latin-1") if value.startswith("x") else ""


def _entry(data: int | memoryview) -> tuple[str, str]:
    """Key and value of one entry of a map of strings."""
    if not isinstance(data, memoryview):
        raise WireError("a map entry of another type")
    fields = wire.walk(data, Budget())
    fields_by_name = {
        n: bytes(v).decode("utf-8", "replace") for n, _, v in fields if not isinstance(v, int)
    }
    return fields_by_name.get(1, ""), fields_by_name.get(2, "")


def _debug_values(options: bytes) -> dict[int, tuple[str, ...]]:
    build = wire.first_bytes(memoryview(options), 3, Budget())
    debug = None if build is None else wire.first_bytes(build, 3, Budget())
    return {} if debug is None else flag_values(debug)
