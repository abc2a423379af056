"""``jaxcache target show``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.options import Format, JsonOutput, locate_cache
from jaxcache.errors import ExitCode, NoJaxError
from jaxcache.options.run import PythonChoice

EXAMPLE = "jaxcache target show h200.json"
EXIT_CODES = (0, 1, 2, 13)


def command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What target capture has written.")],
    given: PythonChoice,
    output: JsonOutput,
) -> None:
    """Show a target profile, what would be applied of it, and what differs here."""
    from jaxcache.cli.output import note, print_document, print_lines
    from jaxcache.render.target import profile_document, profile_page, profile_tsv
    from jaxcache.warm.crosshost.compare import capture_profile, compare_profiles
    from jaxcache.warm.crosshost.profile import read_profile

    form = output.form
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
    if form.is_json:
        print_document(profile_document(profile, differences, locate_cache(None).path), form)
    elif form is Format.TSV:
        print_lines(profile_tsv(profile, differences))
    else:
        print(profile_page(profile, differences))
    if any(d.prevents for d in differences or ()):
        raise typer.Exit(ExitCode.PROBLEMS)
