"""Deserialize executables with the real backend; the parent expects this process to die of some.

Runs by path in the user's Python; the argument is how many devices a CPU host is to pretend to
have, so that sharded programs load. Standard input brings requests, each a line of JSON (``id``,
``size_bytes``, ``device_assignment``) followed by so many bytes of payload. Standard output gets
one line of JSON per event: ``ready`` once, then ``done`` or ``failed`` per request.
"""

import json
import os
import sys
from typing import Any

_NO_JAX = 13


def main() -> int:
    """Answer requests until standard input ends."""
    # Whatever XLA or a hostile payload prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        count = f"--xla_force_host_platform_device_count={sys.argv[1]}"
        os.environ["XLA_FLAGS"] = f"{flags} {count}".strip()
    try:
        import jax
        import jaxlib

        jax.config.update("jax_enable_compilation_cache", False)
        backend = jax.devices()[0].client
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return _NO_JAX

    def answer(**event: Any) -> None:
        answers.write(json.dumps(event) + "\n")

    answer(event="ready", platform=backend.platform, jaxlib=jaxlib.__version__)
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        payload = sys.stdin.buffer.read(request["size_bytes"])
        try:
            _load(backend, payload, request["device_assignment"])
        except Exception as error:
            text = str(error).strip().splitlines() or [type(error).__name__]
            answer(event="failed", id=request["id"], detail=text[0][:500])
        else:
            answer(event="done", id=request["id"])
    return 0


def _load(backend: Any, payload: bytes, assignment: list[list[int]]) -> None:
    """Deserialize as ``jax/_src/compilation_cache.py`` does.

    Two arguments up to 0.5.3, then three with the devices in the middle; read in 0.4.30, 0.4.38,
    0.5.3, 0.6.2, 0.8.3, 0.10.2 and 0.12.0.1.
    """
    from jax._src import compiler
    from jax._src.lib import xla_client

    options = compiler.get_compile_options(
        num_replicas=len(assignment),
        num_partitions=len(assignment[0]),
        device_assignment=assignment,
        backend=backend,
    )
    devices = {device.id: device for device in backend.devices()}
    chosen = [devices[i] for row in assignment for i in row if i in devices]
    try:
        listed = xla_client.DeviceList(tuple(chosen))
        backend.deserialize_executable(payload, listed, options)
    except (AttributeError, TypeError):
        backend.deserialize_executable(payload, options)


if __name__ == "__main__":
    sys.exit(main())
