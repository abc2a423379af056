"""Run cases of the guard in one JAX, and count what XLA itself compiled.

``changes.py``, ``transformations.py``, ``scopes.py`` and ``processes.py`` are programs:
``python changes.py [CASE...]`` prints each case with its fault (empty: none) and a note, as JSON.
XLA writes a file for each module that it compiles (``--xla_dump_to``); those are counted, so that
neither JAX nor jaxcache is believed.
"""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

DUMP = tempfile.TemporaryDirectory(prefix="guard-")
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"--xla_force_host_platform_device_count=2 --xla_dump_to={DUMP.name} "
    "--xla_dump_hlo_as_text",
}

import jax  # noqa: E402 - XLA reads its flags when it starts
import numpy as np  # noqa: E402
from jax._src import pjit  # noqa: E402

from jaxcache import UnexpectedCompileError, guard  # noqa: E402

Case = Callable[[], "str | None"]
CASES: "dict[str, Case]" = {}


def case(name: str) -> "Callable[[Case], Case]":
    """Add a case: it raises AssertionError where the guard is wrong, and may return a note."""

    def add(function: Case) -> Case:
        CASES[name] = function
        return function

    return add


def main() -> None:
    """Run the cases that the command line names, or all."""
    results = {}
    for name in sys.argv[1:] or CASES:
        try:
            results[name] = {"fault": "", "note": CASES[name]() or ""}
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            fault = f"{type(error).__name__} in line {place.lineno}: {error}"
            results[name] = {"fault": fault, "note": ""}
    print(json.dumps(results))


def equal(value: Any, expected: Any, what: str) -> None:
    """Compare two values."""
    assert value == expected, f"{what}: {value!r}, expected {expected!r}"


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    """An array whose making compiles nothing."""
    return np.ones(shape, dtype)


def xla_compiles(call: Callable[[], Any]) -> int:
    """How many modules XLA compiles during a call."""
    before = _dumped()
    jax.block_until_ready(call())
    return _dumped() - before


def _dumped() -> int:
    return len(list(Path(DUMP.name).glob("*before_optimizations*")))


def dispatches(call: Callable[[], Any]) -> int:
    """How often a warm call reaches JAX's dispatch in Python; C++ alone answers the others."""
    call()
    call()
    with CountedDispatches() as counted:
        call()
    return counted.number


class CountedDispatches:
    """Counts JAX's dispatches in Python in a block."""

    def __enter__(self) -> "CountedDispatches":
        self.number = 0
        self._original = pjit._infer_params

        def count(*args: Any, **kwargs: Any) -> Any:
            self.number += 1
            return self._original(*args, **kwargs)

        pjit._infer_params = count
        return self

    def __exit__(self, *error: object) -> None:
        pjit._infer_params = self._original


def refuse(call: Callable[[], Any]) -> UnexpectedCompileError:
    """Return the error of a call that the guards of the caller must refuse before XLA."""
    before = _dumped()
    try:
        call()
    except UnexpectedCompileError as error:
        equal(_dumped() - before, 0, "modules that XLA compiled before the refusal")
        return error
    raise AssertionError("the call was not refused")


def refuse_thrice(call: Callable[[], Any], modules: int | None = None) -> UnexpectedCompileError:
    """Refuse the same call three times, each with the same words; then allow it.

    Allowed, it compiles this many modules, any number for None, and at a second call none.
    """
    with guard():
        first, second, third = (refuse(call) for _ in range(3))
    equal(str(second), str(first), "the second refusal")
    equal(str(third), str(first), "the third refusal")
    compiled = xla_compiles(call)
    equal(compiled, compiled or 1 if modules is None else modules, "compiles of the allowed call")
    equal(xla_compiles(call), 0, "compiles of the second allowed call")
    with guard():
        equal(xla_compiles(call), 0, "compiles of a guarded warm call")
    return first
