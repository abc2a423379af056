"""The user's function behind a ``pmap``, where JAX itself no longer says.

From 0.8 on ``jax.pmap`` is ``jit`` of ``shard_map`` over a wrapper of its own (``_fun`` in
jax/_src/pmap.py, ``call_wrapped`` in jax/_src/linear_util.py), and the module is named after the
wrapper. The operations inside still know the lines of the user's program.
"""

import os
from typing import Any

_WRAPPERS = {("pmap.py", "_fun"), ("linear_util.py", "call_wrapped")}


def find_mapped(jaxpr: Any, function: str | None, file: str | None) -> dict[str, Any]:
    """Function, file, line and kind of a mapped function; nothing where it is none."""
    if not file or (os.path.basename(file), function) not in _WRAPPERS:
        return {}
    for outer in jaxpr.eqns:
        if str(outer.primitive) != "shard_map":
            continue
        for inner in getattr(outer.params["jaxpr"], "jaxpr", outer.params["jaxpr"]).eqns:
            frame = _user_frame(inner)
            if frame is not None and not frame.function_name.startswith("<"):
                name = frame.function_name.rpartition(".")[2]
                return {
                    "function": name,
                    "kind": "pmap",
                    "file": frame.file_name,
                    "line": frame.start_line,
                }
        return {"kind": "pmap"}
    return {}


def _user_frame(equation: Any) -> Any:
    from jax._src import source_info_util

    info = equation.source_info
    try:
        return source_info_util.user_frame(info.traceback)
    except AttributeError:  # takes the whole source info, before 0.8
        return source_info_util.user_frame(info)
