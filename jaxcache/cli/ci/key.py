"""``jaxcache ci key``."""

import os
from typing import Annotated

import typer

from jaxcache.cli.options import JsonOutput, Platform, Python, locate_cache
from jaxcache.options import CacheDir

EXAMPLE = "jaxcache ci key --hash-files 'src/**/*.py'"
EXIT_CODES = (0, 2, 13)


def command(
    place: CacheDir,
    hash_files: Annotated[
        list[str] | None,
        typer.Option(
            "--hash-files",
            metavar="GLOB",
            help="Files whose contents are part of the key; repeatable, '!GLOB' takes some out.",
        ),
    ] = None,
    restore_keys: Annotated[
        bool,
        typer.Option("--restore-keys", help="Print the looser keys instead, the closest first."),
    ] = False,
    prefix: Annotated[str, typer.Option(metavar="NAME", help="How the key begins.")] = "jaxcache",
    python: Python = None,
    platform: Platform = None,
    *,
    output: JsonOutput,
) -> None:
    """Print a CI cache key of what JAX's keys depend on here."""
    from jaxcache.cache.ci.files import hash_files as hash_named
    from jaxcache.cache.ci.key import CiKey
    from jaxcache.cli.ci import describe_job, write_outputs
    from jaxcache.cli.output import print_document, print_lines
    from jaxcache.render.ci import key_document

    form = output.form
    files = hash_named(hash_files, os.getcwd()) if hash_files else None
    path = locate_cache(place.cache_dir).path
    key = CiKey(describe_job(path, python, platform), files, prefix)
    if form.is_json:
        print_document(key_document(path, key), form)
    else:
        print_lines(key.restore_keys if restore_keys else [key.key])
    write_outputs({"key": key.key, "restore-keys": "\n".join(key.restore_keys)})
