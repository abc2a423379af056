"""Print a target profile of hardware that nobody has here; runs in a Python with its compiler.

``deviceless_profile.py cuda [KIND]``: one GPU by the description that XLA's plugin carries, H200 if
not said. ``deviceless_profile.py tpu [TOPOLOGY]``: such as ``v5e:2x2``. What only the real host
knows, above all its ``platform_version``, is invented: such a profile is good for tests, and for
nothing else.
"""

import base64
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "TPU_SKIP_MDS_QUERY": "1",
}

import jax
import jaxlib
from jax._src.lib import xla_client
from jax.experimental import topologies


def described(kind: str) -> str:
    """The description of a GPU inside the plugin, as text of ``GpuTargetConfigProto``."""
    plugins = [p for v in (13, 12) for p in [find_spec(f"jax_plugins.xla_cuda{v}")] if p]
    (folder,) = plugins[0].submodule_search_locations or [""]
    data = (Path(folder) / "xla_cuda_plugin.so").read_bytes()
    at = data.find(f'device_description_str: "NVIDIA {kind} '.encode())
    if at >= 0:
        start = data.rfind(b"\0", 0, at) + 1
        text = data[start : data.index(b"\0", at)].decode("latin-1")
        return text[text.index("gpu_device_info") :]
    raise SystemExit(f"the plugin does not describe the {kind}")


platform, *rest = sys.argv[1:]
if platform == "cuda":
    config = described(*(rest or ["H200"]))
    made = topologies.get_topology_desc(
        "", platform="cuda", topology="1x1x1", target_config=config
    ).devices
    names = {"platform": "gpu", "platform_version": "PJRT C API\ncuda 13000"}
else:
    config = None
    made = topologies.get_topology_desc(*(rest or ["v5e:2x2"]), platform="tpu").devices
    names = {"platform": "tpu", "platform_version": "PJRT C API\nTFRT TPU v5 lite"}
topology = xla_client.get_topology_for_devices(made)
print(
    json.dumps(
        {
            "format": "jaxcache-target",
            "version": 1,
            "captured_at": "1970-01-01T00:00:00Z",
            **names,
            "lowering_platform": platform,
            "device_kinds": [d.device_kind for d in made],
            "device_ids": [d.id for d in made],
            "topology": base64.b64encode(topology.serialize()).decode(),
            "topology_fingerprint": str(topology.fingerprint()),
            "target_config": config,
            "python_version": sys.version.split()[0],
            "jax_version": jax.__version__,
            "jaxlib_version": jaxlib.__version__,
            "jaxlib_digest": None,
            "plugins": {},
            "key_codec": "zstandard",
            "codec": "zstd",
            "settings": {},
            "environment": {},
            "cpu": {"machine": None, "name": None, "features": []},
        }
    )
)
