"""The commands and their modules, each imported when it is called."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

#: Command name to the module in this package that holds it, under the headings and in the order of
#: ``--help``. A name of two words is a command of a group, which :data:`GROUPS` describes.
HEADINGS: dict[str, dict[str, str]] = {
    "Look": {"ls": "look:ls", "show": "look:show", "stats": "look:stats", "report": "look:report"},
    "Fill": {
        "warm": "warm",
        "run": "run",
        "compile": "compile",
        "target capture": "target:capture",
        "target check": "target:check",
        "target show": "target:show",
    },
    "Diagnose": {
        "explain": "explain",
        "doctor": "diagnose:doctor",
        "where": "where",
        "diff": "diagnose:diff",
        "bug-report": "diagnose:bug_report",
    },
    "Maintain": {
        "verify": "maintain:verify",
        "seal": "maintain:seal",
        "prune": "maintain:prune",
        "rm": "maintain:rm",
        "pin": "maintain:pin",
    },
    "Move": {
        "export": "bundle:export",
        "import": "bundle:import_",
        "push": "sync:push",
        "pull": "sync:pull",
        "copy": "sync:copy",
        "ci key": "ci:key",
        "ci restore": "ci:restore",
        "ci save": "ci:save",
    },
    "Advanced": {
        "trust here": "trust:here",
        "trust keygen": "trust:keygen",
        "trust add": "trust:add",
        "trust list": "trust:show",
        "trust remove": "trust:remove",
        "completion": "completion",
    },
}
COMMANDS = {name: module for row in HEADINGS.values() for name, module in row.items()}
GROUPS = {
    "ci": "Restore and save a cache in a CI job.",
    "target": "Capture, check or show what the cache keys of a host depend on.",
    "trust": "Trust this project's settings; make a signing key; choose whose signatures count.",
}


def load_function(name: str) -> tuple[Any, Any, str, Sequence[int]]:
    """Import one command; return its module, function, example and exit codes."""
    place, _, function = COMMANDS[name].partition(":")
    module = import_module(f"jaxcache.cli.{place}")
    if function:
        loaded = getattr(module, function)
        return module, loaded, module.EXAMPLES[function], module.EXIT_CODES[function]
    return module, module.command, module.EXAMPLE, module.EXIT_CODES
