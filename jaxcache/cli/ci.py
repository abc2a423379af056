"""``jaxcache ci``: the steps of a CI job, their environment, outputs and summary."""

import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Annotated, Any

from jaxcache.cli.opening import check_local
from jaxcache.cli.output import JsonOutput, Output, emit, note, write_text
from jaxcache.errors import ExitCode, JaxcacheError
from jaxcache.options import CacheDir, DryRun
from jaxcache.options.declare import TEXT, option
from jaxcache.options.move import RestoreOptions, SaveOptions
from jaxcache.options.run import KeyOptions
from jaxcache.store import is_remote
from jaxcache.store.location import VARIABLE, expand_location, locate_cache

OutputsFile = Annotated[
    str | None,
    option(
        "--outputs",
        TEXT,
        "Append JAXCACHE_NAME=value lines, for GitLab's dotenv reports.",
        metavar="FILE",
    ),
]
SummaryFile = Annotated[
    str | None,
    option(
        "--summary",
        TEXT,
        "Append a Markdown summary (default: $GITHUB_STEP_SUMMARY, if set).",
        metavar="FILE",
    ),
]


def key(place: CacheDir, options: KeyOptions, output: JsonOutput) -> None:
    """Print a key for the CI system's cache, from everything that JAX's keys depend on.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: give every job the same path, or fill
    the cache with warm --portable.
    """
    from jaxcache.cache.bundle.compat import XLA_CACHES
    from jaxcache.cache.ci.key import CiKey, describe_environment, hash_files
    from jaxcache.render.ci import key_view
    from jaxcache.warm.child.query import probing

    files = hash_files(options.hash_files, os.getcwd()) if options.hash_files else None
    path = locate_cache(place.cache_dir).path
    environment = job_environment(options.platform)
    probed = {**environment, XLA_CACHES: "none"}
    with probing(options.python, probed, features=True) as answer:
        host = answer()
    components = describe_environment(host, environment, cache_dir=path)
    ci_key = CiKey(components, files, options.prefix)
    emit(output.form, key_view(path, ci_key, restore_keys=options.restore_keys))
    write_outputs({"key": ci_key.key, "restore-keys": "\n".join(ci_key.restore_keys)})


def restore(
    source: Annotated[
        str, option("source", TEXT, "A bundle, a directory, or a URL.", metavar="SOURCE")
    ],
    place: CacheDir,
    options: RestoreOptions,
    outputs: OutputsFile = None,
    summary: SummaryFile = None,
    *,
    output: Output,
) -> int:
    """Add the entries that can hit here to the cache, before the job.

    A source that is missing or damaged is a cache miss, not an error.
    """
    target = locate_cache(place.cache_dir).path
    location = expand_location(source)
    check_local(target, location)
    with ExitStack() as opened:
        host: Any = lambda: None  # noqa: E731
        anything = is_remote(location) or location == "-" or os.path.lexists(location)
        if anything and (options.python is not None or not options.everything):
            from jaxcache.warm.child.query import probing_host

            environment = job_environment(options.platform)
            host = opened.enter_context(probing_host(options.python, environment=environment))
        # Imported while the jax of the job starts.
        from jaxcache.cli import ci_places as places
        from jaxcache.cli.opening import open_handle
        from jaxcache.cli.output import emit
        from jaxcache.render import ci as render

        open_handle(target).refuse_caches_below()
        restored = places.restore(location, target, options, host)
    emit(output.form, render.restore_view(restored))
    note_directory(restored.cache_dir)
    write_outputs(render.restore_outputs(restored), outputs)
    write_summary(render.restore_summary(restored), summary)
    if options.fail_on_cache_miss and not restored.hit:
        raise JaxcacheError(f"nothing in {source} fits this job", code="cache-miss")
    return ExitCode.PARTIAL if restored.unwritten else ExitCode.DONE


def save(
    target: Annotated[
        str, option("target", TEXT, "A bundle (FILE.jxb), a directory, or a URL.", metavar="TARGET")
    ],
    place: CacheDir,
    options: SaveOptions,
    outputs: OutputsFile = None,
    summary: SummaryFile = None,
    *,
    dry: DryRun,
    output: Output,
) -> int:
    """Save the entries that the job used, if it compiled anything new."""
    from jaxcache.cli import ci_places as places
    from jaxcache.render import ci as render

    planned = places.plan(locate_cache(place.cache_dir).path, expand_location(target), options)
    write = places.check if dry.dry_run else places.carry_out
    saved = write(planned, options)
    emit(output.form, render.save_view(planned, saved, options.key))
    if not (planned.usage.new or planned.usage.used):
        note_directory(planned.cache_dir)
    write_outputs(render.save_outputs(planned, saved, options.key), outputs)
    write_summary(render.save_summary(planned, saved), summary)
    return ExitCode.DONE if saved.complete else ExitCode.PARTIAL


def job_environment(platform: str | None) -> dict[str, str]:
    """The environment of the job's own jax."""
    return {**os.environ, **({"JAX_PLATFORMS": platform} if platform else {})}


def write_outputs(outputs: Mapping[str, str], file: str | None = None) -> None:
    """Hand outputs to the steps that follow: to GitHub's runner, and to ``file``.

    Raises:
        UsageError: ``cannot-write``
    """
    from jaxcache.render.ci import dotenv, github_outputs

    if path := os.environ.get("GITHUB_OUTPUT"):
        write_text(path, github_outputs(outputs, f"jaxcache-{secrets.token_hex(16)}"), "a")
    if file:
        write_text(file, dotenv(outputs), "a")


def write_summary(text: str, file: str | None) -> None:
    """Append to the job's summary, where it has one.

    Raises:
        UsageError: ``cannot-write``
    """

    if path := file or os.environ.get("GITHUB_STEP_SUMMARY"):
        write_text(path, text + "\n", "a")


def note_directory(cache_dir: str) -> None:
    """Say how plain Python finds this cache, where this step's environment leads elsewhere."""

    named = os.environ.get(VARIABLE)
    if not named or os.path.realpath(named) != os.path.realpath(cache_dir):
        value = f"is {named}" if named else "is not set"
        note(f"{VARIABLE} {value} in this step; plain Python needs {VARIABLE}={cache_dir}")
