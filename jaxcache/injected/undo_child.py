"""Print the compile options and the topology that a process has with other flags and settings.

XLA reads its flags once in a process, JAX its variables when it is imported, and neither keeps a
default. So :mod:`undo` starts this file in a Python of its own, without site packages' startup
files. Standard input has a JSON object: ``path`` (of modules), ``flags`` (values of ``XLA_FLAGS``),
``devices`` (of the CPU; null for other platforms), ``settings`` (JAX's, by name, with their values)
and ``undone`` (lists of names of settings). Standard output gets a line of JSON for each of
``flags``, then for each of ``undone``.

Private names of JAX and jaxlib, tried on 0.6.2, 0.10.2 and 0.12.0.1: ``xla_client.CompileOptions``,
``make_cpu_client(num_devices=…)`` and ``get_topology_for_devices`` of jaxlib;
``compiler.get_compile_options`` and ``config._value_holders``.
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


def _describe(devices: "int | None") -> "dict[str, str]":
    from jaxlib import xla_client

    described = {"options": xla_client.CompileOptions().SerializeAsString().hex()}
    if devices is not None:
        cpus = xla_client.make_cpu_client(num_devices=devices).local_devices()
        described["topology"] = describe_topology(xla_client, cpus).hex()
    return described


def _print_with(flags: str, devices: "int | None") -> None:
    """Print what holds with these flags, from a process that has not read any."""
    child = os.fork()
    if child == 0:
        try:
            os.environ["XLA_FLAGS"] = flags
            print(json.dumps(_describe(devices)), flush=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    """Answer what standard input asks."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    from jaxlib import xla_client  # noqa: F401 - once for all forks

    for flags in request["flags"]:
        _print_with(flags, request["devices"])
    settings = request["settings"]
    if not settings:
        return
    for name in settings:
        os.environ.pop(name.upper(), None)
    import jax
    from jax._src import compiler

    holders = jax.config._value_holders
    defaults = {name: holders[name].value for name in settings}
    for names in request["undone"]:
        for name, value in settings.items():
            jax.config.update(name, defaults[name] if name in names else value)
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        print(json.dumps({"options": options.SerializeAsString().hex()}), flush=True)


if __name__ == "__main__":
    main()
