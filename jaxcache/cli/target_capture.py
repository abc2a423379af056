"""``jaxcache target capture``."""

import time
from typing import Annotated

import typer

from jaxcache.options.run import PythonChoice

EXAMPLE = "jaxcache target capture h200.json"
EXIT_CODES = (0, 2, 13)


def command(
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="The profile to write (- for stdout).")
    ] = "-",
    *,
    given: PythonChoice,
) -> None:
    """Write what this host's keys depend on into a file.

    With it, warm --target fills a cache for this host on a machine without its hardware.
    """
    from jaxcache.cli.output import note, write_file
    from jaxcache.warm.crosshost.compare import capture_profile
    from jaxcache.warm.crosshost.profile import profile_bytes

    profile = capture_profile(given.python, now_ns=time.time_ns())
    write_file(file, [profile_bytes(profile)])
    fingerprint = profile.topology_fingerprint or "unknown"
    note(f"{profile.devices} with jax {profile.jax_version}, fingerprint {fingerprint}")
