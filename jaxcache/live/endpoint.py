"""The HTTP endpoint of the counters, which others may keep busy and the program must not notice."""

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Connections at a time; one more ends the oldest, so that slow ones keep nobody out.
_MAX_CONNECTIONS = 8
_TIMEOUT_SECONDS = 5


def serve(host: str, port: int, text: "Callable[[], bytes]") -> int:
    """Answer requests in the background; the port.

    Raises:
        OSError: the port is taken.
    """

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
