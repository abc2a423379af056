"""Choose the Python that runs JAX: the one that the user's own ``python`` is.

jaxcache is often installed apart from JAX, by ``uv tool``, ``pipx`` or a CI action. A Python is
asked whether it finds JAX: to import JAX only to find it would take a second.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jaxcache.core.configuration import find_other_writer, report_once, working_directory
from jaxcache.core.system import expand_home
from jaxcache.errors import JaxcacheError, NoJaxError, system_errors_as
from jaxcache.store.location import configured_python
from jaxcache.units import no_jax_hint

_HAS_PACKAGE = """
import sys, importlib.util
spec = importlib.util.find_spec(sys.argv[1])
sys.exit(spec is None or spec.origin is None)
"""
_ASK_SECONDS = 20
#: Variables that name the active environment.
_ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")


class ChosenPython(NamedTuple):
    """A Python, and the setting that it comes from."""

    path: str
    origin: str


def find_python(python: str | None, *, script: str = "", package: str = "jax") -> str:
    """Return the interpreter to run: the one named, else the first that has the package.

    The order is: the configuration, ``VIRTUAL_ENV``, ``CONDA_PREFIX``, jaxcache's own, ``.venv``
    beside the script or above it, ``python`` on ``PATH``. One line reports the choice where it is
    not jaxcache's own. Where none has the package, it is jaxcache's own.

    Args:
        script: what is run; without it the working directory counts.
        package: the package that the Python must have: ``jax`` or ``torch``.

    Raises:
        NoJaxError: ``no-python`` where the named one does not exist.
    """
    if python is not None:
        return _resolve(python)
    chosen = choose_python(script, package)
    if chosen is None:
        return sys.executable
    origin = chosen.origin or "jaxcache's own"
    active = next((c.path for c in _candidates(script) if c.origin in _ACTIVE), chosen.path)
    is_passed_over = active != chosen.path and not has_package(active, package)
    if is_passed_over:
        origin += f"; the active one, {active}, has no {package}"
    if is_passed_over or not _is_own(chosen.path):
        report_once(f"using {chosen.path} ({origin})")
    return chosen.path


def describe_no_jax(python: str, reason: str = "") -> str:
    """Describe that a Python has no jax, or none that works.

    If it is jaxcache's own, the others that were tried are named as well.

    Args:
        reason: the error of its jax, if it has one.
    """
    tried = [c.path for c in _candidates("") if os.access(c.path, os.X_OK)]
    if len(tried) < 2 or not _is_own(python) or (reason and has_package(python, "jax")):
        return f"{python} has no usable jax: {reason}" if reason else f"{python} has no jax"
    return f"none of these has jax: {', '.join(dict.fromkeys(tried))}"


def missing_module(python: str, module: str) -> JaxcacheError:
    """Return the error of a Python that lacks a module: jax, or what the live layer needs."""
    if module == "jax":
        return NoJaxError(describe_no_jax(python), hint=no_jax_hint())
    has_pip = has_package(python, "pip")
    path = shlex.quote(python)
    return JaxcacheError(
        f"{python} has no {module}, which the requested tier or cache needs there",
        code=f"no-{module}",
        hint=f"{path} -m pip install {module}"
        if has_pip
        else f"uv pip install --python {path} {module}",
    )


def choose_python(script: str = "", package: str = "jax") -> ChosenPython | None:
    """Return the first Python that has a package; None where none has it. See :func:`find_python`.

    Raises:
        NoJaxError: ``no-python`` where the configured one does not exist.
    """
    for candidate in _candidates(script):
        if _is_own(candidate.path):
            spec = importlib.util.find_spec(package)
            # A directory of that name is not a package; python -m searches the current one, too.
            if spec is not None and spec.origin is not None:
                return candidate
        elif has_package(candidate.path, package):
            return candidate
    return None


def _candidates(script: str) -> Iterator[ChosenPython]:
    if configured := configured_python():
        value, origin = configured
        with system_errors_as(NoJaxError, f"Python not found: {value}", code="no-python"):
            value = expand_home(value)
        yield ChosenPython(_resolve(value), f"python of {origin}")
    for name in _ACTIVE:
        if prefix := os.environ.get(name):
            yield ChosenPython(os.path.join(prefix, "bin", "python"), name)
    yield ChosenPython(sys.executable, "")
    start = Path(working_directory(), script).parent if script else Path(working_directory())
    for directory in (start, *start.parents):
        environment = directory / ".venv"
        # Somebody else may have put one above a directory of the user's, such as /tmp.
        if environment.is_dir() and not find_other_writer(environment.stat()):
            yield ChosenPython(str(environment / "bin" / "python"), str(environment))
    own = os.path.join(sys.prefix, "bin")
    others = (p for p in os.get_exec_path() if os.path.realpath(p) != os.path.realpath(own))
    path = os.pathsep.join(others)
    if python := shutil.which("python", path=path) or shutil.which("python3", path=path):
        yield ChosenPython(os.path.abspath(python), "PATH")


def has_package(python: str, package: str) -> bool:
    """Ask a Python whether it has a package, which it finds and does not import."""
    command = [os.path.abspath(python), "-c", _HAS_PACKAGE, package]
    try:
        done = subprocess.run(
            command, capture_output=True, cwd=os.sep, timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _is_own(python: str) -> bool:
    """Whether a Python is of the environment that jaxcache itself runs in."""
    real = os.path.realpath
    prefix = Path(os.path.abspath(python)).parent.parent
    if (prefix / "pyvenv.cfg").is_file():
        return real(prefix) == real(sys.prefix)
    return sys.prefix == sys.base_prefix and real(python) == real(sys.executable)


def _resolve(python: str) -> str:
    """Return the path of an interpreter that was named.

    Raises:
        NoJaxError: ``no-python``.
    """
    path = shutil.which(python)
    if not path:
        raise NoJaxError(
            f"Python not found: {python}", code="no-python", hint="name an interpreter's path"
        )
    return os.path.abspath(path)
