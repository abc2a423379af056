"""Compile for a target, and know whether the result is what the real host would have made.

A GPU's compiler measures kernels on the GPU and keeps the fastest. Without the GPU it takes a
default, which the real host would then find in its cache and never tune. So the key is made of
the stock options, and what is compiled under it is chosen here:

* what needs no measurement, or finds it among the results of a real host, is ``tuned``: XLA itself
  refuses the rest under ``xla_gpu_require_complete_aot_autotune_results``;
* the rest is ``untuned``. Its matrix products go to cuBLAS, which chooses by itself; XLA's own
  kernels with default tiles took up to 34 times as long on an H200 (docs/evidence/gpu.md);
* a convolution that is not measured is not made: it loads, and fails when it runs.

Flags as of XLA in jaxlib 0.11.2 and 0.12 (xla/debug_options_flags.cc).
"""

import copy
import re
import time
from typing import Any, NamedTuple

from ..channel import first_line

_CUBLAS = ("xla_gpu_enable_triton_gemm", False)
_COMPLETE = ("xla_gpu_require_complete_aot_autotune_results", True)
#: A call of a cuDNN convolution with algorithm -1: XLA writes it where it has no measurement, and
#: cuDNN refuses it (``CudnnBackend::GetDefaultConfig``, xla/backends/gpu/autotuner/cudnn.cc).
_UNMEASURED = re.compile(r'custom_call_target="__cudnn\$conv.*"algo_id":"-1"')


class CompiledExecutable(NamedTuple):
    """One executable."""

    payload: bytes
    seconds: float
    tuning: "str | None"
    """``tuned``, ``untuned``, or None where nothing is ever tuned."""


class UntunedError(Exception):
    """Only an untuned executable could be made, and a tuned one is required.

    The text is that of the compiler.
    """

    reason = "untuned"


class UnmeasuredConvolutionError(UntunedError):
    """The module has a convolution without a measurement; the GPU would load and not run it."""

    reason = "unmeasured-convolution"


class Tuning(NamedTuple):
    """The way in which the caller wants kernels to be chosen."""

    autotune_from: "str | None" = None
    """A real host's autotune directory."""
    require_tuned: bool = False


def make(client: Any, request: Any, tuning: Tuning, *, is_gpu: bool) -> CompiledExecutable:
    """Compile a request.

    Raises:
        UntunedError: nothing was made; ``reason`` and the text say why.
        Exception: what the compiler raises.
    """
    started = time.monotonic()

    def compile_(*overrides: "tuple[str, Any]") -> Any:
        options = copy.deepcopy(request.options)
        _aim_autotuning(options, tuning.autotune_from)
        options.env_option_overrides = [*options.env_option_overrides, *overrides]
        # Host callbacks matter when an executable is loaded, and only then.
        return client.compile(
            request.module, executable_devices=request.executable_devices, compile_options=options
        )

    def finish(executable: Any, state: "str | None") -> CompiledExecutable:
        return CompiledExecutable(executable.serialize(), time.monotonic() - started, state)

    if not is_gpu:
        return finish(compile_(), None)
    try:
        return finish(compile_(_COMPLETE), "tuned")
    except Exception as error:
        if tuning.require_tuned:
            raise UntunedError(first_line(error)) from error
    executable = compile_(_CUBLAS)
    if any(_UNMEASURED.search(module.to_string()) for module in executable.hlo_modules()):
        raise UnmeasuredConvolutionError(
            "cuDNN cannot run its convolution until a real host has measured it; "
            "--autotune-from DIR takes such measurements"
        )
    return finish(executable, "untuned")


def _aim_autotuning(options: Any, directory: "str | None") -> None:
    """Read measurements from a real host, or from nowhere: none of ours are to be kept."""
    from jax._src.lib import xla_client

    debug = options.executable_build_options.debug_options
    debug.xla_gpu_per_fusion_autotune_cache_dir = directory or ""
    debug.xla_gpu_kernel_cache_file = ""
    if directory:
        debug.xla_gpu_experimental_autotune_cache_mode = xla_client.AutotuneCacheMode.READ
