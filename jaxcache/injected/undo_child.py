"""Print the compile options and the topology that a process has with other flags and settings.

XLA reads its flags once in a process, JAX its variables when it is imported, and neither keeps a
default. So :mod:`undo` starts this file in a Python of its own, without site packages' startup
files. Standard input has a JSON object: ``path`` (of modules), ``devices`` (of the CPU; null for
other platforms), ``settings`` (JAX's, by name, with their values) and ``environments`` (XLA's flags
and the name of a setting that has its default). Standard output gets a line of JSON for each.

Private names of JAX and jaxlib, tried on 0.6.2, 0.10.2 and 0.12.0.1:
``make_cpu_client(num_devices=…)`` and ``get_topology_for_devices`` of jaxlib, and
``compiler.get_compile_options``.
"""

import json
import os
import sys
from typing import Any


def describe_topology(client: Any, devices: Any) -> bytes:
    """Return what JAX hashes of the devices of a process."""
    topology = client.get_topology_for_devices(list(devices))
    fingerprint = getattr(topology, "fingerprint", None)
    if fingerprint is None:  # up to 0.9
        return bytes(topology.serialize())
    return int(fingerprint()).to_bytes(8, byteorder="big")


def _describe(flags: str, settings: "dict[str, Any]", devices: "int | None") -> "dict[str, str]":
    """Describe a process that has not read flags yet, with these and some settings of JAX."""
    import jax
    from jax._src import compiler
    from jaxlib import xla_client

    os.environ["XLA_FLAGS"] = flags
    for name, value in settings.items():
        jax.config.update(name, value)
    options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
    described = {"options": options.SerializeAsString().hex()}
    if devices is not None:
        cpus = xla_client.make_cpu_client(num_devices=devices).local_devices()
        described["topology"] = describe_topology(xla_client, cpus).hex()
    return described


def main() -> None:
    """Answer the request of standard input."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    settings = request["settings"]
    for name in settings:
        os.environ.pop(name.upper(), None)
    import jax  # noqa: F401 - once for all forks

    for flags, undone in request["environments"]:
        own = {name: value for name, value in settings.items() if name != undone}
        child = os.fork()
        if child == 0:
            try:
                print(json.dumps(_describe(flags, own, request["devices"])), flush=True)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
