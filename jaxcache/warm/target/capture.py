"""Ask the user's Python what the keys of this host depend on."""

from jaxcache.warm.child import ask_once
from jaxcache.warm.process import find_python
from jaxcache.warm.target.profile import Profile, ProfileError, make_profile

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
    facts = ask_once(python, "capture", seconds=_TIMEOUT_SECONDS)
    if facts.get("process_count", 1) != 1:
        raise ProfileError(
            "several hosts work together here, and what keys depend on then is not known",
            code="several-processes", hint="capture on one host, outside of the program",
        )  # fmt: skip
    return make_profile(facts, now_ns=now_ns)
