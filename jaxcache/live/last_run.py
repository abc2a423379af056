"""Record which modules a program loaded in its last run, in order of use.

The record decides what the next run loads ahead (``preload.py``). It is a file of the local cache
directory, ``.jaxcache/live/starts/<program>``: the SHA-256 of what follows, a line feed and a JSON
object. It never comes from a tier or a bundle. Compile options are parsed by XLA and decide what a
load does, so the file must belong to this user, and no other user may write it.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import sys
from typing import Any, NamedTuple

from ..core.atomic import new_file
from ..core.names import is_key
from .files import own_directory_of, read_entry

_DIRECTORY = ("live", "starts")
MAX_LOADS = 1024
_MAX_OPTIONS_BYTES = 64 << 10
_MAX_FILE_BYTES = 4 << 20
#: Programs that one cache directory remembers.
_MAX_PROGRAMS = 128
_CPUINFO_BYTES = 4096
_NAME = re.compile("[0-9a-f]{16}")


class Load(NamedTuple):
    """What JAX gave to one load of an executable."""

    key: str
    options: bytes
    """The compile options, serialized."""
    devices: "tuple[int, ...]"
    """The ids of the devices, in order."""
    is_plain: bool
    """Whether nothing else was given: no host callbacks, and no argument that is not compared."""


class LastRun(NamedTuple):
    """The loads of one run, and the devices that it had."""

    devices: "list[list[Any]]"
    """Id, kind and process index of each."""
    loads: "tuple[Load, ...]"


def program_name(versions: "dict[str, str]", process_index: int) -> str:
    """Name this program: its script, or its module and directory, user, JAX, process, type of CPU.

    A cache on a shared file system serves machines of several types, and an executable made for one
    need not load on another.
    """
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    script = getattr(main, "__file__", None)
    if name is None and script:
        place = os.path.realpath(script)
    else:  # python -m, python -c, or a notebook, whose path Jupyter names
        place = f"{name or (sys.argv or [''])[0]}\0{os.environ.get('JPY_SESSION_NAME', '')}"
        with contextlib.suppress(OSError):  # the directory is gone
            place += f"\0{os.getcwd()}"
    parts = (place, os.geteuid(), process_index, _cpu(), *versions.values())
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def _cpu() -> str:
    """The model and the features of the first processor, as far as the system names them."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        lines = file.read(_CPUINFO_BYTES).decode("utf-8", "replace").split("\n\n")[0].splitlines()
        names = ("model name", "flags", "Features", "CPU part")
        return "\n".join(line for line in lines if line.startswith(names))
    return ""


def read_last_run(root: str, program: str) -> "LastRun | None":
    """Read a program's record; None if none can be trusted.

    Raises:
        OSError: the directory cannot be read.
    """
    try:
        with own_directory_of(root, *_DIRECTORY, make=False) as directory:
            data, status = read_entry(program, _MAX_FILE_BYTES, directory=directory)
    except FileNotFoundError:
        return None
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        return None
    digest, _, text = data.partition(b"\n")
    if digest.decode("latin-1") != hashlib.sha256(text).hexdigest():
        return None
    try:
        document = json.loads(text)
        options = [base64.b64decode(one) for one in document["options"]]
        loads = tuple(
            Load(key, options[number], tuple(devices), is_plain)
            for key, number, devices, is_plain in document["loads"][:MAX_LOADS]
            if is_key(key)
        )
        return LastRun(document["devices"], loads)
    except (LookupError, TypeError, ValueError):  # of another version of jaxcache
        return None


def write_last_run(root: str, program: str, run: LastRun) -> None:
    """Write a program's record whole, for this user alone.

    Raises:
        OSError: the directory cannot be written.
    """
    loads = [load for load in run.loads if len(load.options) <= _MAX_OPTIONS_BYTES]
    options = list(dict.fromkeys(load.options for load in loads))
    document = {
        "devices": run.devices,
        "options": [base64.b64encode(one).decode() for one in options],
        "loads": [[x.key, options.index(x.options), x.devices, x.is_plain] for x in loads],
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    if len(text) >= _MAX_FILE_BYTES:
        return
    data = hashlib.sha256(text).hexdigest().encode() + b"\n" + text
    with own_directory_of(root, *_DIRECTORY) as directory:
        with new_file(directory, [data], mode=0o600, durable=False) as file:
            file.give_name(program)
        names = _records(directory)
        if len(names) > _MAX_PROGRAMS:
            oldest = min(names, key=lambda n: os.stat(n, dir_fd=directory).st_mtime_ns)
            os.unlink(oldest, dir_fd=directory)


def forget_runs_with(root: str, keys: "set[str]") -> None:
    """Remove each record that names one of these keys, as far as this user may.

    Raises:
        OSError: the directory cannot be read or changed.
    """
    with own_directory_of(root, *_DIRECTORY, make=False) as directory:
        for name in _records(directory)[: _MAX_PROGRAMS + 1]:  # all that are ours
            with contextlib.suppress(OSError):  # another user's
                data = read_entry(name, _MAX_FILE_BYTES, directory=directory)[0]
                if any(key.encode() in data for key in keys):
                    os.unlink(name, dir_fd=directory)


def _records(directory: int) -> "list[str]":
    return [name for name in os.listdir(directory) if _NAME.fullmatch(name)]
