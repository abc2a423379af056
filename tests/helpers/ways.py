"""Every way in which entries move."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from bundling import SMALL
from conftest import RunCli

from jaxcache.cache.bundle.format import open_bundle

OLD_NS = 10**18
#: Every command that brings entries of one directory into another, or into a bundle.
WAYS: dict[str, Callable[[Path, Path], tuple[object, ...]]] = {
    "copy": lambda there, here: ("copy", there, here),
    "pull": lambda there, here: ("pull", there, "-C", here),
    "push": lambda there, here: ("push", here, "-C", there),
    "restore": lambda there, here: ("ci", "restore", there, "-C", here, "--everything"),
    "save": lambda there, here: ("ci", "save", here, "-C", there),
    "export": lambda there, here: ("export", f"{here}.jxb", "-C", there),
    "save-bundle": lambda there, here: ("ci", "save", f"{here}.jxb", "-C", there),
}
#: Every command that brings entries out of the bundle beside a directory, into another directory.
FROM_BUNDLE: dict[str, Callable[[Path, Path], tuple[object, ...]]] = {
    "import": lambda there, here: ("import", f"{there}.jxb", "-C", here),
    "restore-bundle": lambda there, here: (
        *("ci", "restore", f"{there}.jxb", "-C", here, "--everything"),
    ),
}
ALL_WAYS = {**WAYS, **FROM_BUNDLE}
MOVES = ["push", "pull", "copy"]


def old_copy(target: Path, source: Path = SMALL) -> Path:
    """A real cache none of whose files is young, and which nobody else may write."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    target.chmod(0o755)
    for file in target.iterdir():
        file.chmod(0o644)
        os.utime(file, ns=(OLD_NS, OLD_NS))
    return target


def names(cache: Path) -> set[str]:
    return {p.name for p in cache.glob("*-cache")}


def bundled(bundle: Path) -> set[str]:
    """The entries in a bundle."""
    with closing(open_bundle(str(bundle))) as found:
        return {item.file for item in found.manifest.items}


def told(run_cli: RunCli, *words: object, code: int = 0) -> Any:
    done = run_cli(*words, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)
