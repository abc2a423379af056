"""``jaxcache target capture``, ``target check`` and ``target show``."""

import os
import time
from typing import Annotated

import typer

from jaxcache.cli.options import JsonOutput, locate_cache
from jaxcache.errors import ExitCode, NoJaxError
from jaxcache.options import CacheDir
from jaxcache.options.run import PythonChoice

EXAMPLES = {
    "capture": "jaxcache target capture h200.json",
    "check": "jaxcache target check h200.json",
    "show": "jaxcache target show h200.json",
}
EXIT_CODES = {"capture": (0, 2, 13), "check": (0, 1, 2, 10, 13), "show": (0, 1, 2, 13)}


def capture(
    file: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|DIR/]",
            help="The profile to write (- for stdout); a directory, for each process of a pod.",
        ),
    ] = "-",
    *,
    given: PythonChoice,
) -> None:
    """Write what this host's keys depend on into a file.

    With it, warm --target fills a cache for this host on a machine without its hardware.

    With DIR/ this is one process of a program of several hosts: run it on all of them at once, as
    the program is started. Each waits for the others, and writes a file of its own.
    """
    from jaxcache.cli.output import note, write_file
    from jaxcache.warm.crosshost.compare import capture_profile
    from jaxcache.warm.crosshost.profile import pod_file, profile_bytes

    pod = file.endswith(os.sep) or os.path.isdir(file)
    profile = capture_profile(given.python, now_ns=time.time_ns(), pod=pod)
    if pod:
        os.makedirs(file, exist_ok=True)
        file = pod_file(file, profile)
    write_file(file, [profile_bytes(profile)])
    fingerprint = profile.topology_fingerprint or "unknown"
    note(f"{profile.devices} with jax {profile.jax_version}, fingerprint {fingerprint}")


def check(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DIR",
            help="The profile, or those of a pod, that the cache was warmed for.",
        ),
    ],
    place: CacheDir,
    given: PythonChoice,
    output: JsonOutput,
) -> int:
    """On the target itself: count the entries of a cache that it would look up.

    Compares what is in keys here with the profile; nothing is compiled. Exits with 1 where no
    entry would be looked up. With the DIR of a pod, run it on all of its hosts at once.
    """
    from jaxcache.cache.ledger.segments import Ledger
    from jaxcache.cache.scan import scan
    from jaxcache.cli.output import emit
    from jaxcache.render.target import check_view
    from jaxcache.store import open_store
    from jaxcache.warm.crosshost.compare import capture_profile, check_target
    from jaxcache.warm.crosshost.profile import read_profiles

    profiles = read_profiles(file)
    store = open_store(locate_cache(place.cache_dir).path)
    keys = [e.key for e in scan(store, heads=False).entries]
    ledger = Ledger.load(store)
    records = [record for key in keys if (record := ledger.record(key))]
    here = capture_profile(given.python, now_ns=time.time_ns(), pod=len(profiles) > 1)
    checked = check_target(profiles, here, keys, records)
    emit(output.form, check_view(checked, store.url))
    return ExitCode.DONE if checked.looked_up else ExitCode.PROBLEMS


def show(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A profile written by target capture.")
    ],
    given: PythonChoice,
    output: JsonOutput,
) -> int:
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
    return ExitCode.PROBLEMS if any(d.prevents for d in differences or ()) else ExitCode.DONE
