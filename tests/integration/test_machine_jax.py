"""The table of JAX's releases, asked of every JAX at hand."""

import json

import pytest
from processes import sh

from tools.generate.releases import CHANGES

pytestmark = pytest.mark.jax

#: Prints what this JAX does, under the names of the rules.
_PROBE = """
import inspect, json
import jax
from jax._src import cache_key, compiler, config, lru_cache

keys, compile = inspect.getsource(cache_key), inspect.getsource(compiler)
debug = keys.partition("def _hash_serialized_compile_options")[2].partition("\\ndef ")[0]
topology = inspect.getsource(cache_key._hash_accelerator_config)
eviction = inspect.getsource(lru_cache.LRUCache._evict_if_needed)
autotune = "xla_gpu_per_fusion_autotune_cache_dir"
print(json.dumps({
    "version": jax.__version__,
    "cache-path": autotune in compile and f"debug_options.{autotune} =" not in debug,
    "kernel-cache-path": "xla_gpu_kernel_cache_file" in compile
    and "debug_options.xla_gpu_kernel_cache_file =" not in debug,
    "callbacks-uncached": "because it uses host" in compile,
    "atime-required": "exists()" not in eviction,
    "mosaic-paths": not hasattr(cache_key, "_strip_mosaic_debug_info"),
    "mosaic-debug-locations": hasattr(config, "jax_mosaic_unzip_debug_locations")
    or "jax_mosaic_unzip_debug_locations" in config.config.values,
    "platform-version": '"backend version"' in keys,
    "tpu-compiler-variant": "--xla_tpu_compiler_variant" not in keys,
    "autotune-mode": "--xla_gpu_experimental_autotune_cache_mode" not in keys,
    "effort": "exec_time_optimization_effort" in compile,
    "output-indices": "individually_defined_output_indices" in compile,
    "profile-placeholder": 'b"pgle profiled"' in compile,
    "topology-fingerprint": ".fingerprint()" in topology,
}))
"""


def test_each_rule_holds_in_this_jax(each_jax_python: str) -> None:
    seen = json.loads(sh([each_jax_python, "-c", _PROBE], check=True).stdout)
    version = seen.pop("version")
    assert {c.name: c.rule.holds(version) for c in CHANGES} == seen
