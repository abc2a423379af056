"""``jaxcache target``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.options import Format, Json, Jsonl, Python, choose_format, locate_cache
from jaxcache.errors import ExitCode, NoJaxError, UsageError

EXAMPLE = "jaxcache target capture h200.json"
EXIT_CODES = (0, 1, 2, 13)


def command(
    verb: Annotated[str, typer.Argument(metavar="capture|show", help="What to do.")],
    file: Annotated[
        str,
        typer.Argument(metavar="[FILE]", help="The profile; - is standard output."),
    ] = "-",
    python: Python = None,
    json: Json = False,
    jsonl: Jsonl = False,
) -> None:
    """Capture or show what a host's keys depend on.

    With the file, warm --target fills a cache for this host on a machine without its hardware.
    """
    from jaxcache.cli.output import note, print_document, print_lines
    from jaxcache.cli.output.show import write_payload
    from jaxcache.render.target import profile_document, profile_page, profile_tsv
    from jaxcache.warm.crosshost.compare import capture_profile, compare_profiles
    from jaxcache.warm.crosshost.profile import profile_bytes, read_profile

    form = choose_format(json=json, jsonl=jsonl)
    now_ns = time.time_ns()
    if verb == "capture":
        profile = capture_profile(python, now_ns=now_ns)
        write_payload([profile_bytes(profile)], file)
        note(f"{profile.devices} with jax {profile.jax_version}, fingerprint "
             f"{profile.topology_fingerprint or 'unknown'}")  # fmt: skip
        return
    if verb != "show" or file == "-":
        raise UsageError("write target capture [FILE], or target show FILE")
    profile = read_profile(file)
    differences = None
    try:
        differences = compare_profiles(profile, capture_profile(python, now_ns=now_ns))
    except NoJaxError as error:
        if python is not None:
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
