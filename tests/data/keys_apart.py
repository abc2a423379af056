"""Keys of a few functions for a target, without jaxcache and by another way than its own.

``python keys_apart.py PROFILE``: each function is lowered with a device of the target as JAX's
default device, and its key made by JAX with the identity in the profile. Prints JSON.
"""

import base64
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path.cwd()))
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "TPU_SKIP_MDS_QUERY": "1",
}

import jax
import models
from jax._src import cache_key, compiler, xla_bridge
from jax._src.lib import _jax, xla_client

profile = json.loads(Path(sys.argv[1]).read_text())
platform = profile["lowering_platform"]
if platform == "tpu":
    xla_bridge.make_pjrt_tpu_topology("v5e:2x2")  # loads libtpu
else:
    xla_bridge._discover_and_register_pjrt_plugins()
    if not xla_client.pjrt_plugin_initialized(platform):
        xla_client.initialize_pjrt_plugin(platform)
topology = _jax.DeviceTopology.deserialize(base64.b64decode(profile["topology"]))
device = topology._make_compile_only_devices()[0]
identity = SimpleNamespace(
    platform=profile["platform"], platform_version=profile["platform_version"]
)
keys = {}


class Known(BaseException):
    """The key is known, and nothing needs to be compiled."""


def note_key(backend, computation, devices, options, *args, **kwargs):
    key = cache_key.get(computation, devices, options, identity, profile["key_codec"])
    keys[key.rpartition("-")[0]] = key
    raise Known


jax.config.update("jax_compilation_cache_dir", "/anywhere")
compiler.compile_or_get_cached = note_key
for function, arguments in models.CALLS:
    with jax.default_device(device):
        lowered = function.lower(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments))
    try:
        lowered.compile()
    except Known:
        continue
print(json.dumps(keys))
