"""``jaxcache target show``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.options import JsonOutput, locate_cache
from jaxcache.errors import ExitCode, NoJaxError
from jaxcache.options.run import PythonChoice

EXAMPLE = "jaxcache target show h200.json"
EXIT_CODES = (0, 1, 2, 13)


def command(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A profile written by target capture.")
    ],
    given: PythonChoice,
    output: JsonOutput,
) -> None:
    """Show a target profile, what it sets, and how this host differs."""
    from jaxcache.cli.output import emit, note
    from jaxcache.render.target import profile_view
    from jaxcache.warm.crosshost.compare import capture_profile, compare_profiles
    from jaxcache.warm.crosshost.profile import read_profile

    profile = read_profile(file)
    differences = None
    try:
        differences = compare_profiles(
            profile, capture_profile(given.python, now_ns=time.time_ns())
        )
    except NoJaxError as error:
        if given.python is not None:
            raise
        note(f"not compared with this host: {error.message}; --python names a Python with jax")
    emit(output.form, profile_view(profile, differences, locate_cache(None).path))
    if any(d.prevents for d in differences or ()):
        raise typer.Exit(ExitCode.PROBLEMS)
