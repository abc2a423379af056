"""What each part of the layer has of its process: settings, counters, threads, lines to a user."""

import contextlib
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..core.call_site import name_program
from ..core.configuration import working_directory
from ..core.threads import Background
from .counters import Counters
from .loading import FirstRuns
from .settings import ResolvedSettings


class ThreadState(threading.local):
    """The state of the current thread between two calls of JAX."""

    loading = False
    """JAX looks an entry up to load it."""
    key = ""
    """The key of that entry."""
    decoded: "tuple[bytes, bytes] | None" = None
    """The entry that was checked last, and its content."""
    unmarked: Any = None
    """Where that entry is; None where its load is marked."""
    seconds: "float | None" = None
    """Duration of the compile whose entry is being written."""
    missed: "tuple[Any, str] | None" = None
    """The last look-up that missed, until its entry is written."""

    def __init__(self) -> None:
        self.leases: list[tuple[Any, str]] = []
        """Keys that this thread is about to compile, for all processes."""


class LiveProcess:
    """A process with the layer.

    Args:
        adapter: of the imported jax, or what is known of one that is about to be imported.
    """

    def __init__(self, settings: ResolvedSettings, adapter: Any) -> None:
        self.settings = settings
        self.adapter = adapter
        self.counters = Counters(adapter.monitoring)
        self.background = Background("live", self.trouble)
        self.now = ThreadState()
        self.first_runs = FirstRuns()
        self._said: set[str] = set()

    def facts(self) -> "dict[str, str]":
        """The versions and the script, which the ledger keeps of every compile of this process."""
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        return {**self.adapter.versions, **({"script": str(script)} if script else {})}

    def program(self) -> str:
        """A name for this program with this JAX, the same on every machine."""
        name = name_program([str(word) for word in sys.argv], working_directory()).name
        text = "\0".join([os.path.basename(name), *self.adapter.versions.values()])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def say(self, text: str) -> None:
        """Print a line on standard error, once; not before jax is imported."""
        if text not in self._said:
            self._said.add(text)
            if self.adapter.monitoring is not None:
                say(text)

    def trouble(self, error: BaseException) -> None:
        """Count a failure of the layer, and print each kind once."""
        self.counters.count("troubles")
        self.say(f"live: {type(error).__name__}: {error}")

    def run(self, call: "Callable[[str], Any]", key: str) -> None:
        """Do something about a key whose failure is not the user's."""
        try:
            call(key)
        except Exception as error:
            self.trouble(error)


def say(text: str) -> None:
    """Print one line on standard error, in one write: two threads may speak at once."""
    with contextlib.suppress(Exception):  # it is closed
        sys.stderr.write(f"jaxcache: {text}\n")
        sys.stderr.flush()
