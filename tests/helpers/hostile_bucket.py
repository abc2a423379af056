"""A bucket that means harm: an HTTP server process, ``python hostile_bucket.py MODE``.

It prints its port and that of a second server, to which it redirects; ``GET /seen`` of either gives
the requests that came, with their headers.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_NAMES = [f"jit_f-{n:064x}-cache" for n in range(1000)]


def page(names: "list[str]", token: str) -> bytes:
    """One answer to a listing, with more to come."""
    found = "".join(
        f"<Contents><Key>x/{n}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;{'0' * 32}&quot;</ETag><Size>9</Size></Contents>"
        for n in names
    )
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
    return (
        '<?xml version="1.0"?><ListBucketResult><Name>b</Name><KeyCount>1</KeyCount>'
        f"{more}{found}</ListBucketResult>"
    ).encode()


def serve(mode: str, other: "int | None") -> ThreadingHTTPServer:
    """Start one server."""
    seen: list[dict[str, Any]] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/seen":
                self.answer(200, json.dumps(seen).encode())
                return
            with lock:
                seen.append({"path": self.path, "headers": dict(self.headers)})
                number = len(seen)
            if mode == "redirect" and other is not None:
                self.answer(307, b"", Location=f"http://localhost:{other}{self.path}")
            elif mode == "large":
                self.flood()
            elif mode == "empty":
                self.answer(200, page([], f"t{number}"))
            elif mode == "long":
                self.answer(
                    200,
                    page([f"{number:09d}-{n}{'n' * 1_000_000}" for n in range(9)], f"t{number}"),
                )
            elif mode == "wide":
                self.answer(
                    200, page([f"{number:09d}-{n}{'n' * 4000}" for n in range(1000)], f"t{number}")
                )
            elif mode == "trickle":
                time.sleep(0.3)
                self.answer(200, page([f"jit_f-{number:064x}-cache"], f"t{number}"))
            elif mode == "drip":
                self.drip()
            elif mode == "slow":
                time.sleep(0.05)
                self.answer(200, page([], f"t{number}"))
            else:
                self.answer(200, page(_NAMES, "the same"))

        do_HEAD = do_PUT = do_GET  # noqa: N815

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def drip(self) -> None:
            """An answer of a byte now and then."""
            self.send_response_only(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"x")
                    time.sleep(0.05)
            except ConnectionError:
                self.close_connection = True

        def flood(self) -> None:
            """A single answer of 300 MB."""
            names = page(_NAMES, "t").split(b"<Contents>", 1)
            entries = b"<Contents>" + names[1].removesuffix(b"</ListBucketResult>")
            times = (300 << 20) // len(entries)
            end = b"</ListBucketResult>"
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(names[0]) + times * len(entries) + len(end)))
            self.end_headers()
            try:
                self.wfile.write(names[0])
                for _ in range(times):
                    self.wfile.write(entries)
                self.wfile.write(end)
            except ConnectionError:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    second = serve("page", None)
    first = serve(sys.argv[1], second.server_port)
    print(first.server_port, second.server_port, flush=True)
    sys.stdin.read()
