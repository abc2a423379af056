"""Compile one trivial program and tell the versions; runs in the user's Python, with jax alone.

The parent names a fresh cache directory in the environment and reads the entry that appears there.
Prints one JSON object. Exits with 13 where jax does not import.
"""

import json
import os
import sys

NO_JAX = 13


def main() -> int:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)  # our own folder, whose names must not hide the user's modules
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what plugins print is no answer
    try:
        import jax
        import jaxlib
    except Exception as error:
        answers.close()  # a warning that it is open would be the last word
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return NO_JAX
    jax.jit(lambda x: x + 1)(1.0).block_until_ready()
    device = jax.devices()[0]
    told = {
        "jax_version": jax.__version__,
        "jaxlib_version": getattr(jaxlib, "__version__", "") or jaxlib.version.__version__,
        "platform": jax.default_backend(),
        "device_kind": str(device.device_kind),
        "platform_version": str(device.client.platform_version),
    }
    with answers:
        answers.write(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
