"""``jaxcache ci``: the steps of a CI job, their environment, outputs and summary."""

import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from jaxcache.cli.opening import check_local, open_handle
from jaxcache.cli.output import JsonOutput, Output, emit, note, write_text
from jaxcache.errors import ExitCode, JaxcacheError
from jaxcache.options import CacheDir, DryRun, Options, option
from jaxcache.options.move import RestoreOptions, SaveOptions
from jaxcache.options.run import KeyOptions, job_environment
from jaxcache.store import is_remote
from jaxcache.store.location import VARIABLE, expand_location

if TYPE_CHECKING:
    from jaxcache.render.ci import StepReport


class StepFiles(Options):
    """Files that the steps after this one, and people, read."""

    outputs: str | None = option(
        "--outputs FILE", "Append JAXCACHE_NAME=value lines, for GitLab's dotenv reports."
    )
    summary: str | None = option(
        "--summary FILE", "Append a Markdown summary (default: $GITHUB_STEP_SUMMARY, if set)."
    )


def key(place: CacheDir, options: KeyOptions, output: JsonOutput) -> None:
    """Print a key for the CI system's cache, from everything that JAX's keys depend on.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: give every job the same path, or fill
    the cache with warm --portable.
    """
    from jaxcache.render.ci import key_view

    cache = open_handle(place.cache_dir)
    key = cache.ci.key(options)
    emit(output.form, key_view(cache.location.path, key, restore_keys=options.restore_keys))
    _write_outputs({"key": key.key, "restore-keys": "\n".join(key.restore_keys)})


def restore(
    *,
    source: str = option("source SOURCE", "A bundle, a directory, or a URL."),
    place: CacheDir,
    options: RestoreOptions,
    files: StepFiles,
    output: Output,
) -> int:
    """Add the entries that can hit here to the cache, before the job.

    A source that is missing or damaged is a cache miss, not an error.
    """
    cache = open_handle(place.cache_dir)
    location = expand_location(source)
    check_local(cache.location.path, location)
    with ExitStack() as opened:
        host: Any = lambda: None  # noqa: E731
        anything = is_remote(location) or location == "-" or os.path.lexists(location)
        if anything and (options.python is not None or not options.everything):
            from jaxcache.warm.child.query import probing_host

            environment = job_environment(options.platform)
            host = opened.enter_context(probing_host(options.python, environment=environment))
        # Imported while the jax of the job starts.
        from jaxcache.render.ci import restore_step

        restored = cache.ci.restore(location, options, host)
    _report(restore_step(restored), output, files, restored.cache_dir)
    if options.fail_on_cache_miss and not restored.hit:
        raise JaxcacheError(f"nothing in {source} fits this job", code="cache-miss")
    return ExitCode.PARTIAL if restored.unwritten else ExitCode.DONE


def save(
    *,
    target: str = option("target TARGET", "A bundle (FILE.jxb), a directory, or a URL."),
    place: CacheDir,
    options: SaveOptions,
    files: StepFiles,
    dry: DryRun,
    output: Output,
) -> int:
    """Save the entries that the job used, if it compiled anything new."""
    from jaxcache.render.ci import save_step

    cache = open_handle(place.cache_dir)
    location = expand_location(target)
    check_local(cache.location.path, location)
    plan = cache.ci.plan_save(location, options)
    saved = cache.ci.save(plan, options, dry_run=dry.dry_run)
    is_unused = not (plan.usage.new or plan.usage.used)
    step = save_step(plan, saved, options.key)
    _report(step, output, files, plan.cache_dir if is_unused else None)
    return ExitCode.DONE if saved.complete else ExitCode.PARTIAL


def _report(step: "StepReport", output: Output, files: StepFiles, cache_dir: str | None) -> None:
    """Print the report of a step, and append its outputs and its summary to their files.

    Args:
        cache_dir: how plain Python finds it is said where this step's environment leads elsewhere.

    Raises:
        UsageError: ``cannot-write``
    """
    emit(output.form, step.view)
    named = os.environ.get(VARIABLE)
    if cache_dir and not (named and os.path.realpath(named) == os.path.realpath(cache_dir)):
        value = f"is {named}" if named else "is not set"
        note(f"{VARIABLE} {value} in this step; plain Python needs {VARIABLE}={cache_dir}")
    _write_outputs(step.outputs, files.outputs)
    if path := files.summary or os.environ.get("GITHUB_STEP_SUMMARY"):
        write_text(path, step.summary + "\n", "a")


def _write_outputs(outputs: Mapping[str, str], file: str | None = None) -> None:
    """Hand outputs to the steps that follow: to GitHub's runner, and to ``file``.

    Raises:
        UsageError: ``cannot-write``
    """
    from jaxcache.render.ci import dotenv, github_outputs

    if path := os.environ.get("GITHUB_OUTPUT"):
        write_text(path, github_outputs(outputs, f"jaxcache-{secrets.token_hex(16)}"), "a")
    if file:
        write_text(file, dotenv(outputs), "a")
