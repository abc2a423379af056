"""The counters for other programs: for Prometheus a file or an HTTP endpoint, or OpenTelemetry.

``metrics`` is a path, ``:PORT`` or ``HOST:PORT``, or ``otel``. ``{pid}`` in a path becomes the
process's number, because each process has counters of its own. The format is Prometheus' text
format 0.0.4, which needs no package.
"""

import contextlib
import os
import re
import threading
import time
from typing import Any

from .counters import COUNTERS, SUMS, Counters
from .files import write_entry_file

_FILE_SECONDS = 15.0
_ADDRESS = re.compile(r"(?P<host>[^/:\s]*|\[[0-9a-f:]+\]):(?P<port>\d{1,5})")


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
    """The destination of this process's counters.

    Raises:
        OSError: the port is taken, or the file cannot be written.
        ImportError: no opentelemetry.
    """

    def __init__(self, target: str, counters: Counters) -> None:
        self._counters = counters
        self._path = ""
        self.port = 0
        match = _ADDRESS.fullmatch(target)
        if target == "otel":
            self._observe()
        elif match:
            self._serve(match["host"].strip("[]") or "127.0.0.1", int(match["port"]))
        else:
            self._path = os.path.abspath(target.replace("{pid}", str(os.getpid())))
            if not os.access(os.path.dirname(self._path), os.W_OK | os.X_OK):
                raise OSError(f"{self._path} cannot be written")
            threading.Thread(target=self._write_often, name="jaxcache-metrics", daemon=True).start()

    def _write_often(self) -> None:
        while True:
            time.sleep(_FILE_SECONDS)
            self.write()

    def write(self) -> None:
        """Write the file, if there is to be one."""
        if self._path:
            with contextlib.suppress(OSError):
                directory, name = os.path.split(self._path)
                write_entry_file(directory, name, text_format(self._counters))

    def _serve(self, host: str, port: int) -> None:
        from .endpoint import serve

        self.port = serve(host, port, lambda: text_format(self._counters))

    def _observe(self) -> None:
        from opentelemetry import metrics

        meter = metrics.get_meter("jaxcache.live")
        counters = self._counters
        for name, meaning in {**COUNTERS, **SUMS}.items():

            def observe(_: Any, name: str = name) -> "list[metrics.Observation]":
                return [metrics.Observation(counters[name])]

            meter.create_observable_counter(
                f"jaxcache.live.{name}", callbacks=[observe], description=meaning
            )
