"""Find functions that ask, while they are traced, which hardware they run on.

The answer is this machine's, so the program that comes out is not the one that the target would
trace: under its own key it never hits. Such functions are found and named, not guessed at.
``jax.default_backend``, ``devices`` and the like all go through ``xla_bridge.get_backend``
(jax/_src/xla_bridge.py, 0.11.2 and 0.12). Other private names: ``core.subjaxprs`` and
``core.trace_state_clean``.
"""

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from .host import unknown_jax

#: Parts of JAX that build programs; queries of other parts do not depend on what is traced.
_LIBRARIES = ("random", "nn", "numpy", "lax", "scipy", "pallas", "cudnn", "ops", "image")
_LIBRARY_FILES = tuple(
    os.path.join("_src", library + end) for library in _LIBRARIES for end in (os.sep, ".py")
)
#: Questions whose answer does not depend on the kind of hardware.
_HARMLESS = frozenset({"process_index", "process_count", "process_indices", "host_id"})
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

#: File and first line of a function.
CodePlace = tuple[str, int]


class PlatformQueryDetector:
    """Remembers what asked: every function that was being traced at that moment.

    Args:
        same_platform: the target's platform is the one of this process; then what JAX itself
            asks gets the right answer.

    Raises:
        TargetError: ``unknown-jax``.
    """

    def __init__(self, jax: Any, *, same_platform: bool) -> None:
        try:
            from jax._src import core, xla_bridge

            for name in ("subjaxprs", "trace_state_clean"):
                getattr(core, name)
        except (ImportError, AttributeError) as error:
            raise unknown_jax(jax, error) from error
        self._core = core
        self._bridge = os.path.abspath(xla_bridge.__file__)
        self._jax = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
        self._same = same_platform
        self._local = threading.local()
        self._asked: dict[CodePlace, str] = {}
        self.outside: dict[str, None] = {}
        """``file:line`` where the program queried the platform while nothing was traced."""

    def suspended(self, work: Any) -> Any:
        """Do something in which questions do not count: lowering, which is done twice."""
        before = getattr(self._local, "suspended", False)
        self._local.suspended = True
        try:
            return work()
        finally:
            self._local.suspended = before

    def see(self, platform: Any) -> None:
        """Note a query for a backend by this name; None means the default backend."""
        if platform is not None or getattr(self._local, "suspended", False):
            return
        frames = list(self._frames())
        if not frames or frames[0][2] in _HARMLESS:
            return
        asker = next((f for f in frames if f[0] != self._bridge), None)
        user = next((f for f in frames if not self._is_jax(f[0])), None)
        if asker is None or user is None:
            return
        by_jax = self._is_jax(asker[0])
        if by_jax and (self._same or not self._is_library(asker[0])):
            return
        place = f"{user[0]}:{user[3]}"
        if self._core.trace_state_clean():
            if frames[0][2] == "default_backend" and not by_jax:
                self.outside[place] = None
            return
        for file, first_line, _, _ in frames:
            self._asked.setdefault((file, first_line), place)

    def find(self, jaxpr: Any) -> "str | None":
        """Return where it was asked, if a function of this program was being traced then."""
        if not self._asked:
            return None
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        info = getattr(inner, "debug_info", None)
        source = str(getattr(info, "func_src_info", None) or "").rpartition(" at ")[2]
        file, _, line = source.rpartition(":")
        if line.isdigit() and (place := self._asked.get((file, int(line)))):
            return place
        for part in self._core.subjaxprs(inner):
            if place := self.find(part):
                return place
        return None

    def _frames(self) -> "Iterator[tuple[str, int, str, int]]":
        """File, first line of the function, its name and the line, from the asker outwards."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith((_HERE, "<frozen")):
                yield code.co_filename, code.co_firstlineno, code.co_name, frame.f_lineno
            frame = frame.f_back

    def _is_jax(self, file: str) -> bool:
        return file.startswith((self._jax, "<")) or os.sep + "contextlib.py" in file

    def _is_library(self, file: str) -> bool:
        inside = file[len(self._jax) :]
        return inside.startswith((f"experimental{os.sep}", *_LIBRARY_FILES))
