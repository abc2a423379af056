"""``jaxcache trust here|keygen|add|list|remove``."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

from jaxcache.cache import trust
from jaxcache.cli.output import JsonOutput, emit, note
from jaxcache.cli.terminal import confirm
from jaxcache.errors import UsageError
from jaxcache.options.declare import TEXTS, flag, option
from jaxcache.render.trust import settings_lines, trust_view
from jaxcache.store.location import read_settings

Name = Annotated[str, option("name NAME", "The name of the key.")]


def here(
    directory: Annotated[
        str | None,
        option("directory [DIRECTORY]", "Where to look, instead of here."),
    ] = None,
    yes: Annotated[bool, flag("--yes -y", "Do not ask; needed without a terminal.")] = False,
    *,
    output: JsonOutput,
) -> None:
    """Trust the settings of the nearest pyproject.toml, as they are now.

    Shows the settings and asks. Without trust, a project's file cannot choose the cache or switch
    the live layer on. A file that changes afterwards is not trusted until you repeat this.
    """
    file = trust.find_project(directory)
    note(f"{file.path}{f', {file.unsafe}' if file.unsafe else ''}:")
    note(*settings_lines(read_settings(file)))
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                "cannot ask for confirmation without a terminal",
                code="needs-yes",
                hint="if you trust these settings, add --yes",
            )
        confirm("Trust these settings?", f"{os.path.basename(file.path)} is not trusted")
    _print([], [trust.trust_project(file)], output)


def keygen(name: Name, output: JsonOutput) -> None:
    """Make a key to sign bundles with; print its public half."""
    path = trust.key_path(name)
    key = trust.TrustedKey(path.stem, trust.generate_key(path))
    note(f"the private key is in {path}; pass on only the public one")
    _print([key], [], output)


def add(
    name: Name,
    key: Annotated[list[str], option("key PUBLIC", "The public key.", TEXTS)],
    output: JsonOutput,
) -> None:
    """Trust a public key from now on."""
    _print([trust.add_trusted(trust.key_directory(), name, " ".join(key))], [], output)


def show(output: JsonOutput) -> None:
    """List the keys and the projects that you trust."""
    _print(trust.load_trusted(), trust.list_trusted_projects(), output)


def remove(
    name: Annotated[
        str,
        option("name NAME|PATH", "The name of the key, or the path of the project (with a /)."),
    ],
    output: JsonOutput,
) -> None:
    """Stop trusting a key or a project."""
    if "/" in name:
        _print([], [trust.distrust_project(name)], output)
    else:
        _print([trust.remove_trusted(trust.key_directory(), name)], [], output)


def _print(
    keys: Sequence[trust.TrustedKey],
    projects: Sequence[trust.TrustedProject],
    output: JsonOutput,
) -> None:
    emit(output.form, trust_view(keys, projects, str(trust.key_directory())))
