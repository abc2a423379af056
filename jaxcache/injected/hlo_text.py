"""Print a serialized HLO module as text, with jaxlib alone, for ``warm/child/query.py``."""

import sys
from typing import Any


def _hlo_module_class() -> Any:
    """``HloModule``: jaxlib._hlo (0.10.2, 0.12), jaxlib._jax (0.8.3), xla_extension (0.4.30)."""
    import importlib

    for name in ("jaxlib._hlo", "jaxlib._jax", "jaxlib.xla_extension"):
        try:
            module_class = getattr(importlib.import_module(name), "HloModule", None)
        except ImportError:
            continue
        if module_class is not None:
            return module_class
    raise ImportError("no jaxlib that can print HLO")


def main(parent: Any) -> None:
    """Read an ``HloModuleProto``, whose size is the argument; answer with its text."""
    try:
        module = _hlo_module_class()
    except ImportError as error:
        parent.answer(no_jaxlib=str(error))
        return
    data = parent.requests.read(int(sys.argv[1]))
    text = module.from_serialized_hlo_module_proto(data).to_string()
    parent.answer(text=text.rstrip("\n") + "\n")
