"""Print a serialized HLO module as text; runs in the user's Python, with jaxlib alone.

Reads an ``HloModuleProto`` from standard input and writes HLO text to standard output. Exits with
13 where there is no jaxlib to do it, with 1 where jaxlib refuses the module.
"""

import sys
from typing import Any

NO_JAX = 13


def _hlo_module_class() -> Any:
    """``HloModule``: jaxlib._hlo (0.10.2, 0.12), jaxlib._jax (0.8.3), xla_extension (0.4.30)."""
    import importlib

    for name in ("jaxlib._hlo", "jaxlib._jax", "jaxlib.xla_extension"):
        try:
            found = getattr(importlib.import_module(name), "HloModule", None)
        except ImportError:
            continue
        if found is not None:
            return found
    raise ImportError("no jaxlib that can print HLO")


def main() -> int:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)  # our own folder, whose names must not hide the user's modules
    try:
        module = _hlo_module_class()
    except ImportError as error:
        print(error, file=sys.stderr)
        return NO_JAX
    try:
        text = module.from_serialized_hlo_module_proto(sys.stdin.buffer.read()).to_string()
    except Exception as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
