"""Start one of the programs in this directory as a child of jaxcache; runs in the user's Python.

Arguments: the program, the descriptor for its answers, a directory to remove if jaxcache dies first
(or nothing), then the program's own. Answers are lines of JSON on a descriptor of their own,
because the user's ``sitecustomize``, plugins and modules print to the standard streams. Standard
input brings requests, and its end means that jaxcache has ended: the process then ends, too, even
in the middle of a compile.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import select
import shutil
import sys
import threading
from importlib.machinery import ModuleSpec
from typing import Any

_FAILED = 13


class Parent:
    """The way to and from jaxcache."""

    def __init__(self, answers: int, directory: str) -> None:
        os.set_inheritable(answers, False)
        self._answers = os.fdopen(answers, "w", buffering=1)
        self._directory = directory
        os.dup2(2, 1)
        requests = os.dup(0)
        self.requests = os.fdopen(requests, "rb")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        threading.Thread(target=self._watch, args=(requests,), daemon=True).start()

    def _watch(self, requests: int) -> None:
        """End with the parent; compiling and loading leave this thread running."""
        poll = select.poll()
        poll.register(requests, 0)  # only the hang-up, which poll always reports
        poll.poll()
        self.leave()

    def leave(self) -> None:
        """End this process; what the parent has not taken out of its directory is of no use."""
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
        os._exit(0)

    def answer(self, **event: Any) -> None:
        """Send one line; a parent that has ended is not an error."""
        with contextlib.suppress(BrokenPipeError):
            self._answers.write(json.dumps(event, default=str) + "\n")


def main() -> int:
    """Run a program of this directory, imported under a name that clashes with nothing."""
    here = os.path.dirname(os.path.abspath(__file__))
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)  # our own directory, whose names must not hide the user's modules
    program, answers, directory = sys.argv[1:4]
    del sys.argv[1:4]
    spec = ModuleSpec("_jaxcache", None, is_package=True)  # as in hook.py
    spec.submodule_search_locations = [os.path.dirname(here)]
    sys.modules["_jaxcache"] = importlib.util.module_from_spec(spec)
    parent = Parent(int(answers), directory)
    try:
        module, _, function = program.partition(".")
        loaded = importlib.import_module(f"_jaxcache.injected.{module}")
        getattr(loaded, function or "main")(parent)
    except Exception as error:
        describe_error = importlib.import_module("_jaxcache.core.seams").describe_error
        parent.answer(error=describe_error(error))
        return _FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
