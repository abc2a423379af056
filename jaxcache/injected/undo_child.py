"""Print the compile options and the topology that a process has with other flags and settings.

XLA reads its flags once in a process, JAX its variables when it is imported, and neither keeps a
default. So :mod:`undo` starts this file in a Python of its own, without site packages' startup
files. Standard input has a JSON object: ``path`` (of modules), ``devices`` (of the CPU; null for
other platforms), ``settings`` (JAX's, by name, with their values) and ``environments`` (XLA's flags
and the name of a setting that has its default). Standard output gets a line of JSON for each.
"""

import json
import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from typing import Any


def _describe(flags: str, settings: "dict[str, Any]", devices: "int | None") -> "dict[str, str]":
    """Describe a process that has not read flags yet, with these and some settings of JAX."""
    import jax
    from _jaxcache.core.seams import compiling

    os.environ["XLA_FLAGS"] = flags
    for name, value in settings.items():
        jax.config.update(name, value)
    described = {"options": compiling.compile_options().hex()}
    if devices is not None:
        described["topology"] = compiling.describe_topology(compiling.make_cpus(devices)).hex()
    return described


def main() -> None:
    """Answer the request of standard input."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    settings = request["settings"]
    for name in settings:
        os.environ.pop(name.upper(), None)
    spec = ModuleSpec("_jaxcache", None, is_package=True)  # as in hook.py
    here = os.path.dirname(os.path.abspath(__file__))
    spec.submodule_search_locations = [os.path.dirname(here)]
    sys.modules["_jaxcache"] = module_from_spec(spec)
    import jax  # noqa: F401 - once for all forks

    for flags, undone in request["environments"]:
        own = {name: value for name, value in settings.items() if name != undone}
        child = os.fork()
        if child == 0:
            try:
                print(json.dumps(_describe(flags, own, request["devices"])), flush=True)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
