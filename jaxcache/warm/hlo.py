"""HLO as text, through the jaxlib of the user's Python."""

from jaxcache.errors import JaxcacheError, NoJaxError
from jaxcache.warm.child import Child, DiedError
from jaxcache.warm.process import NO_JAX_HINT, find_python

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
    child = Child(python, "hlo_text", str(len(module)), deed="prints the module", aside=True)
    try:
        child.send_bytes(module)
        told = child.answer(_TIMEOUT_SECONDS)
    except DiedError as error:
        told = {"error": f"{error}: {child.last_words}"}
    finally:
        child.stop()
    if "no_jaxlib" in told:
        raise NoJaxError(f"printing HLO takes jaxlib, and {python} has none", hint=NO_JAX_HINT)
    if "text" not in told:
        raise JaxcacheError(
            f"jaxlib could not print the module: {told.get('error')}",
            code="hlo-failed",
            hint="the jaxlib of the version that wrote the entry reads it best",
        )
    return str(told["text"])
