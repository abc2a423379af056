"""The counters for other programs: for Prometheus a file or an HTTP endpoint, or OpenTelemetry.

``metrics`` is a path, ``:PORT`` or ``HOST:PORT``, or ``otel``. ``{pid}`` in a path becomes the
process's number, because each process has counters of its own. The format is Prometheus' text
format 0.0.4, which needs no package.
"""

import contextlib
import ipaddress
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ..core.directories import open_directory
from .counters import COUNTERS, SUMS, Counters
from .files import write_whole

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
            host = match["host"].strip("[]") or "127.0.0.1"
            self.port = serve(host, int(match["port"]), lambda: text_format(counters))
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
                root, name = os.path.split(self._path)
                with open_directory(root) as directory:
                    write_whole(directory, name, text_format(self._counters))

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


#: Connections at a time; one more ends the oldest, so that slow clients do not block others.
_MAX_CONNECTIONS = 8
_TIMEOUT_SECONDS = 5


def serve(host: str, port: int, text: "Callable[[], bytes]") -> int:
    """Answer requests in the background; the port.

    Raises:
        OSError: the port is taken.
    """
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_SECONDS

        def do_GET(self) -> None:
            if not is_own_name(self.headers.get("Host", ""), host):
                self.send_error(421)  # a page in a browser, by a name that leads here
                return
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(404)
                return
            body = text()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def __init__(self) -> None:
            self._lock = threading.Lock()
            self._open: list[Any] = []
            super().__init__((host, port), Handler)

        def process_request(self, request: Any, client_address: Any) -> None:
            with self._lock:
                self._open.append(request)
                oldest = self._open.pop(0) if len(self._open) > _MAX_CONNECTIONS else None
            if oldest is not None:
                self._end(oldest)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            with self._lock:
                if request in self._open:
                    self._open.remove(request)
            super().shutdown_request(request)

        def handle_error(self, *_: Any) -> None:
            pass  # the other side went away

        @staticmethod
        def _end(request: Any) -> None:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)  # its thread closes it

    server = Server()
    threading.Thread(target=server.serve_forever, name="jaxcache-metrics", daemon=True).start()
    return int(server.server_address[1])


def is_own_name(header: str, host: str) -> bool:
    """Whether a Host header names this endpoint: by address, as localhost, or as this machine."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
    name = name.strip("[]").lower()
    if name in ("", "localhost", host.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.partition(".")[0] == socket.gethostname().partition(".")[0].lower()
    return True
