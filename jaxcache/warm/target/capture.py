"""Ask the user's Python what the keys of this host depend on."""

import json
import subprocess
from pathlib import Path

from jaxcache.errors import NoJaxError
from jaxcache.warm.process import find_python
from jaxcache.warm.target.profile import Profile, ProfileError, make_profile

_SCRIPT = Path(__file__).parents[2] / "jaxside" / "capture.py"
_TIMEOUT_SECONDS = 300


def capture_profile(python: str | None = None, *, now_ns: int) -> Profile:
    """The profile of this host, as the jax of one Python sees it.

    Args:
        python: an interpreter that has jax; our own by default.

    Raises:
        NoJaxError: it has none, cannot run, or finds no device.
        ProfileError: ``several-processes`` in a program of several hosts.
    """
    python = find_python(python)
    hint = "name a Python that has jax with --python, or: pip install 'jaxcache[jax]'"
    try:
        done = subprocess.run(
            [python, str(_SCRIPT)],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
    except OSError as error:
        raise NoJaxError(f"cannot run {python}: {error.strerror}", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        raise NoJaxError(f"{python} took more than {_TIMEOUT_SECONDS} s", hint=hint) from error
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise NoJaxError(f"{python} has no usable jax: {lines[-1]}", hint=hint)
    try:
        facts = json.loads(done.stdout)
    except ValueError as error:
        raise NoJaxError(f"{python} printed something else", hint=hint) from error
    if facts.get("process_count", 1) != 1:
        raise ProfileError(
            "several hosts work together here, and what keys depend on then is not known",
            code="several-processes", hint="capture on one host, outside of the program",
        )  # fmt: skip
    return make_profile(facts, now_ns=now_ns)
