"""Shared by the steps of a CI job: its environment, its outputs, its summary."""

import os
import secrets
from collections.abc import Mapping
from typing import Annotated

from jaxcache.errors import UsageError
from jaxcache.options.declare import TEXT, option
from jaxcache.store.location import VARIABLE

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


def check_local(cache_dir: str, other: str) -> None:
    """Refuse a cache that the steps of a job can do nothing with.

    Raises:
        UsageError: ``not-local``, ``same-directory``
    """
    if "://" in cache_dir:
        raise UsageError(
            f"{cache_dir} is not a local directory",
            code="not-local",
            hint="give JAX a local directory, and name the bucket as source and target",
        )
    if os.path.realpath(other) == os.path.realpath(cache_dir):
        raise UsageError(
            f"{other} is the cache itself",
            code="same-directory",
            hint="name another directory, or a bundle, which is also smaller",
        )


def job_environment(platform: str | None) -> dict[str, str]:
    """The environment of the job's own jax."""
    return {**os.environ, **({"JAX_PLATFORMS": platform} if platform else {})}


def write_outputs(outputs: Mapping[str, str], file: str | None = None) -> None:
    """Hand outputs to the steps that follow: to GitHub's runner, and to ``file``.

    Raises:
        UsageError: ``cannot-write``
    """
    from jaxcache.cli.output import write_text
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
    from jaxcache.cli.output import write_text

    if path := file or os.environ.get("GITHUB_STEP_SUMMARY"):
        write_text(path, text + "\n", "a")


def note_directory(cache_dir: str) -> None:
    """Say how plain Python finds this cache, where this step's environment leads elsewhere."""
    from jaxcache.cli.output import note

    named = os.environ.get(VARIABLE)
    if not named or os.path.realpath(named) != os.path.realpath(cache_dir):
        value = f"is {named}" if named else "is not set"
        note(f"{VARIABLE} {value} in this step; plain Python needs {VARIABLE}={cache_dir}")
