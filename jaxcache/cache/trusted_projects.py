"""The list of projects whose settings this user trusts, in ``trusted-projects``.

``core/configuration.py`` reads the list and defines what trust means; this module changes it.
"""

import os
from dataclasses import dataclass

from jaxcache.cache.trust import changing_alone, key_directory
from jaxcache.core.configuration import (
    TRUSTED_PROJECTS,
    ConfigFile,
    digest_of,
    find_config_files,
    read_config_file,
    read_trusted_projects,
)
from jaxcache.errors import JaxcacheError, UsageError


@dataclass(frozen=True, slots=True)
class TrustedProject:
    """A project's configuration file that this user trusts."""

    path: str
    digest: str
    changed: bool
    """Whether the file was changed or removed since, so that its settings are ignored."""


def find_project(directory: str | None) -> ConfigFile:
    """Return the nearest pyproject.toml, from a directory upwards, with settings of jaxcache.

    Raises:
        UsageError: ``no-settings``, or ``bad-path`` where the list cannot hold the path.
    """
    start = os.path.realpath(directory or os.curdir)
    projects = [file for file in find_config_files(start) if file.is_project]
    if not projects:
        raise UsageError(
            f"no pyproject.toml in {start} or above it has a table [tool.jaxcache]",
            code="no-settings",
        )
    if "\n" in projects[0].path:
        raise UsageError(f"{projects[0].path!r} has a line break in its name", code="bad-path")
    return projects[0]


def list_trusted_projects() -> list[TrustedProject]:
    """Return the trusted projects, sorted by path."""
    projects = []
    for path, digest in sorted(read_trusted_projects().items()):
        file = read_config_file(path)
        projects.append(TrustedProject(path, digest, file is None or not file.is_trusted))
    return projects


def trust_project(file: ConfigFile) -> TrustedProject:
    """Trust a file with exactly the content that was read.

    Raises:
        LockedError, JaxcacheError
    """
    digest = digest_of(file.text)
    _replace(file.path, digest)
    return TrustedProject(file.path, digest, changed=False)


def distrust_project(path: str) -> TrustedProject:
    """Trust a project no longer.

    Args:
        path: its pyproject.toml, or the directory of it.

    Raises:
        LockedError, JaxcacheError: ``no-match`` where it is not trusted.
    """
    path = os.path.abspath(path)
    for project in list_trusted_projects():
        if project.path in (path, os.path.join(path, "pyproject.toml")):
            _replace(project.path, None)
            return project
    raise JaxcacheError(f"{path} is not trusted", code="no-match", hint="see jaxcache trust list")


def _replace(path: str, digest: str | None) -> None:
    with changing_alone(key_directory() / TRUSTED_PROJECTS) as replace:
        digests = read_trusted_projects()
        digests.pop(path, None)
        if digest is not None:
            digests[path] = digest
        replace([os.fsencode(f"{d} {p}\n") for p, d in sorted(digests.items())])
