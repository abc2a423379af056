"""Write the counters of this process to a file for Prometheus.

``metrics`` is a path. ``{pid}`` in it becomes the process's number, because each process has
counters of its own. The format is Prometheus' text format 0.0.4, which needs no package.
"""

import contextlib
import os
import threading
import time

from ..core.atomic import open_directory
from .counters import COUNTERS, SUMS, Counters
from .files import write_whole

_FILE_SECONDS = 15.0


def text_format(counters: Counters) -> bytes:
    """Every counter in Prometheus' text format."""
    values = counters.snapshot()
    lines = []
    for name, meaning in {**COUNTERS, **SUMS}.items():
        full = f"jaxcache_live_{name}_total"
        lines += [f"# HELP {full} {meaning}", f"# TYPE {full} counter"]
        lines.append(f"{full} {values.get(name, 0):.15g}")
    full = "jaxcache_live_tier_hits_total"
    lines += [f"# HELP {full} entries served, by tier", f"# TYPE {full} counter"]
    for tier, number in sorted(counters.by_tier.items()):
        label = tier.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        lines.append(f'{full}{{tier="{label}"}} {number}')
    return ("\n".join(lines) + "\n").encode(errors="replace")  # a path need not be text


class Metrics:
    """The file of this process's counters.

    Raises:
        OSError: the file cannot be written.
        ValueError: ``target`` names no directory.
    """

    def __init__(self, target: str, counters: Counters) -> None:
        if os.sep not in target:
            raise ValueError(
                "metrics must be a file with its directory, such as /run/jax-{pid}.prom "
                f"(got {target!r})"
            )
        self._counters = counters
        self._path = os.path.abspath(target.replace("{pid}", str(os.getpid())))
        if not os.access(os.path.dirname(self._path), os.W_OK | os.X_OK):
            raise OSError(f"{self._path} cannot be written")
        threading.Thread(target=self._write_often, name="jaxcache-metrics", daemon=True).start()

    def _write_often(self) -> None:
        while True:
            time.sleep(_FILE_SECONDS)
            self.write()

    def write(self) -> None:
        """Write the file now."""
        with contextlib.suppress(OSError):
            root, name = os.path.split(self._path)
            with open_directory(root) as directory:
                write_whole(directory, name, text_format(self._counters))
