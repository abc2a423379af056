"""HLO as text, through the jaxlib of the user's Python."""

import subprocess
from pathlib import Path

from jaxcache.errors import JaxcacheError, NoJaxError
from jaxcache.warm.process import find_python

_SCRIPT = Path(__file__).parents[1] / "jaxside" / "hlo_text.py"
_NO_JAX = 13
_TIMEOUT_SECONDS = 600


def hlo_text(module: bytes, *, python: str | None = None) -> str:
    """Print an ``HloModuleProto`` as HLO text, in a child process.

    Args:
        python: an interpreter that has jaxlib; our own by default.

    Raises:
        NoJaxError: it has none, or is no Python.
        JaxcacheError: ``hlo-failed`` where jaxlib refuses the module or dies over it.
    """
    python = find_python(python)
    hint = "name a Python that has jax with --python, or: pip install 'jaxcache[jax]'"
    try:
        done = subprocess.run(
            [python, str(_SCRIPT)],
            input=module, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
    except OSError as error:
        raise NoJaxError(f"cannot run {python}: {error.strerror}", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        raise JaxcacheError(
            f"jaxlib took more than {_TIMEOUT_SECONDS} s over the module", code="hlo-failed"
        ) from error
    if done.returncode == _NO_JAX:
        raise NoJaxError(f"printing HLO takes jaxlib, and {python} has none", hint=hint)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise JaxcacheError(
            f"jaxlib could not print the module (exit status {done.returncode}): {lines[-1]}",
            code="hlo-failed",
            hint="the jaxlib of the version that wrote the entry reads it best",
        )
    return done.stdout.decode("utf-8", "replace")
