"""``jaxcache trust here|keygen|add|list|remove``."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxcache.cache import trust
from jaxcache.cli.output import JsonOutput, emit, note
from jaxcache.cli.terminal import confirm
from jaxcache.errors import UsageError
from jaxcache.options import TEXTS, flag, option
from jaxcache.render.view import Line, View
from jaxcache.store.location import read_settings

_NAME = option("name NAME", "The name of the key.")


def here(
    *,
    directory: str | None = option("directory [DIRECTORY]", "Where to look, instead of here."),
    yes: bool = flag("--yes -y", "Do not ask; needed without a terminal."),
    output: JsonOutput,
) -> None:
    """Trust the settings of the nearest pyproject.toml, as they are now.

    Shows the settings and asks. Without trust, a project's file cannot choose the cache or switch
    the live layer on. A file that changes afterwards is not trusted until you repeat this.
    """
    file = trust.find_project(directory)
    note(f"{file.path}{f', {file.unsafe}' if file.unsafe else ''}:")
    note(*_settings_lines(read_settings(file)))
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                "cannot ask for confirmation without a terminal",
                code="needs-yes",
                hint="if you trust these settings, add --yes",
            )
        confirm("Trust these settings?", f"{os.path.basename(file.path)} is not trusted")
    _print([], [trust.trust_project(file)], output)


def keygen(*, name: str = _NAME, output: JsonOutput) -> None:
    """Make a key to sign bundles with; print its public half."""
    path = trust.key_path(name)
    key = trust.TrustedKey(path.stem, trust.generate_key(path))
    note(f"the private key is in {path}; pass on only the public one")
    _print([key], [], output)


def add(
    *,
    name: str = _NAME,
    key: list[str] = option("key PUBLIC", "The public key.", TEXTS),
    output: JsonOutput,
) -> None:
    """Trust a public key from now on."""
    _print([trust.add_trusted(trust.key_directory(), name, " ".join(key))], [], output)


def show(output: JsonOutput) -> None:
    """List the keys and the projects that you trust."""
    _print(trust.load_trusted(), trust.list_trusted_projects(), output)


def remove(
    *,
    name: str = option(
        "name NAME|PATH", "The name of the key, or the path of the project (with a /)."
    ),
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
    rows = [(k.name, k.text) for k in keys]
    rows += [(p.path, f"{p.digest}{' (changed since: ignored)' * p.changed}") for p in projects]
    document = {"cache_dir": str(trust.key_directory()), "keys": keys, "projects": projects}
    page = [Line(text, f"{name}  ", whole=True) for name, text in rows]
    emit(output.form, View(document, rows, records=[*keys, *projects], page=page))


def _settings_lines(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield a line for each setting of a configuration file."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _settings_lines(value, f"{prefix}{name}.")
        else:
            yield f"  {prefix}{name} = {json.dumps(value, default=str)}"
