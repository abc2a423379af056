"""Compile for a target, and know whether the result is what the real host would have made.

A GPU's compiler measures kernels on the GPU and keeps the fastest. Without the GPU it takes a
default, which the real host would then find in its cache and never tune. So the key is made of
the stock options, and what is compiled under it is chosen here:

* what needs no measurement, or finds it among the results of a real host, is ``tuned``: XLA itself
  refuses the rest under ``xla_gpu_require_complete_aot_autotune_results``;
* the rest is ``untuned``, with matrix products by ``--gemm``.

Flags as of XLA in jaxlib 0.11.2 and 0.12 (xla/debug_options_flags.cc).
"""

import copy
import time
from typing import Any, NamedTuple

from ..channel import first_line

#: Matrix products that no measurement chooses between.
GEMM = {
    "cublas": [("xla_gpu_enable_triton_gemm", False)],
    "cost-model": [("xla_gpu_experimental_cost_model_gemm_tiling_default", True)],
    "triton": [],
}
_COMPLETE = ("xla_gpu_require_complete_aot_autotune_results", True)


class CompiledExecutable(NamedTuple):
    """One executable."""

    payload: bytes
    seconds: float
    tuning: "str | None"
    """``tuned``, ``untuned``, or None where nothing is ever tuned."""


class UntunedError(Exception):
    """Only an untuned executable could be made, and a tuned one is required."""


class Tuning(NamedTuple):
    """The way in which the caller wants kernels to be chosen."""

    gemm: str = "cublas"
    autotune_from: "str | None" = None
    """A real host's autotune directory."""
    require_tuned: bool = False


def make(client: Any, request: Any, tuning: Tuning, *, is_gpu: bool) -> CompiledExecutable:
    """Compile a request.

    Raises:
        UntunedError: see there.
        Exception: what the compiler raises.
    """
    started = time.monotonic()

    def compile_(*overrides: "tuple[str, Any]") -> bytes:
        options = copy.deepcopy(request.options)
        _aim_autotuning(options, tuning.autotune_from)
        options.env_option_overrides = [*options.env_option_overrides, *overrides]
        # Host callbacks matter when an executable is loaded, and only then.
        executable = client.compile(
            request.module, executable_devices=request.executable_devices, compile_options=options
        )
        payload: bytes = executable.serialize()
        return payload

    if not is_gpu:
        return CompiledExecutable(compile_(), time.monotonic() - started, None)
    try:
        return CompiledExecutable(compile_(_COMPLETE), time.monotonic() - started, "tuned")
    except Exception as error:
        if tuning.require_tuned:
            raise UntunedError(first_line(error)) from error
    payload = compile_(*GEMM[tuning.gemm])
    return CompiledExecutable(payload, time.monotonic() - started, "untuned")


def _aim_autotuning(options: Any, directory: "str | None") -> None:
    """Read measurements from a real host, or from nowhere: none of ours are to be kept."""
    from jax._src.lib import xla_client

    debug = options.executable_build_options.debug_options
    debug.xla_gpu_per_fusion_autotune_cache_dir = directory or ""
    debug.xla_gpu_kernel_cache_file = ""
    if directory:
        debug.xla_gpu_experimental_autotune_cache_mode = xla_client.AutotuneCacheMode.READ
