"""Deserialize executables with the real backend; the parent expects this process to die of some.

The argument is how many devices a CPU host is to pretend to have, so that sharded programs load.
A request is a line of JSON (``size_bytes``, ``device_assignment``) followed by the payload.
Answers: ``ready`` once, with a program of this jax to compare others with, then ``done``,
``failed`` or ``absent`` (devices that are not here) per request.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from .channel import first_line
from .describe import sample


def main(parent: Any) -> None:
    """Answer requests until they end."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        count = f"--xla_force_host_platform_device_count={sys.argv[1]}"
        os.environ["XLA_FLAGS"] = f"{flags} {count}".strip()
    import jax

    jax.config.update("jax_enable_compilation_cache", False)
    backend = jax.devices()[0].client
    try:
        load = _choose_way(backend)
    except Exception as error:
        parent.answer(event="unknown-jax", detail=f"{type(error).__name__}: {error}"[:500])
        return
    parent.answer(event="ready", platform=backend.platform, sample=_sample())
    here = {device.id for device in backend.devices()}
    while line := parent.requests.readline():
        request = json.loads(line)
        payload = parent.requests.read(request["size_bytes"])
        assignment = request["device_assignment"]
        if not here.issuperset(i for row in assignment for i in row):
            parent.answer(event="absent")
            continue
        try:
            load(payload, assignment)
        except Exception as error:
            parent.answer(event="failed", detail=first_line(error))
        else:
            parent.answer(event="done")


def _sample() -> "str | None":
    """A small program as this jax writes it, in hexadecimal; None where it does not let us."""
    import jax

    try:
        return sample(jax.devices()[0]).hex()
    except Exception:
        return None


def _choose_way(backend: Any) -> "Callable[[bytes, list[list[int]]], Any]":
    """Choose the call that deserializes in this jaxlib (``jax/_src/compilation_cache.py``).

    Two arguments up to 0.5.3, then three with the devices in the middle. Private names of JAX,
    tried on 0.4.30, 0.4.38, 0.5.3, 0.6.2, 0.8.3, 0.10.2, 0.11.2 and 0.12.0.1:
    ``compiler.get_compile_options``, ``xla_client.DeviceList``, ``client.deserialize_executable``.

    Raises:
        Exception: no known call fits. That must not be reported of each entry.
    """
    from jax._src import compiler
    from jax._src.lib import xla_client

    devices = {device.id: device for device in backend.devices()}

    def with_devices(payload: bytes, chosen: "list[Any]", options: Any) -> None:
        backend.deserialize_executable(payload, xla_client.DeviceList(tuple(chosen)), options)

    def without_devices(payload: bytes, _: "list[Any]", options: Any) -> None:
        backend.deserialize_executable(payload, options)

    def make_options(assignment: "list[list[int]]") -> Any:
        return compiler.get_compile_options(
            num_replicas=len(assignment),
            num_partitions=len(assignment[0]),
            device_assignment=assignment,
            backend=backend,
        )

    first = next(iter(devices))
    for way in (with_devices, without_devices):
        try:
            way(b"no executable", [devices[first]], make_options([[first]]))
        except (AttributeError, TypeError) as error:
            misfit = error
        except Exception:  # understood, and refused
            break
    else:
        raise misfit

    def load(payload: bytes, assignment: "list[list[int]]") -> None:
        chosen = [devices[i] for row in assignment for i in row]
        way(payload, chosen, make_options(assignment))

    return load
