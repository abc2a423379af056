"""A bucket that means harm: an HTTP server process, ``python hostile_bucket.py MODE``.

It prints its port; ``GET /seen`` gives the paths of the requests that came.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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


#: The names on each page of a listing, by its number, where none of the pages is the last.
_PAGES: "dict[str, Callable[[int], list[str]]]" = {
    "page": lambda number: _NAMES,
    "empty": lambda number: [],
    "long": lambda number: [f"{number:09d}-{n}{'n' * 1_000_000}" for n in range(9)],
    "wide": lambda number: [f"{number:09d}-{n}{'n' * 4000}" for n in range(1000)],
    "trickle": lambda number: [f"jit_f-{number:064x}-cache"],
}


def serve(mode: str) -> ThreadingHTTPServer:
    """Start the server."""
    seen: list[str] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/seen":
                self.answer(json.dumps(seen).encode())
                return
            with lock:
                seen.append(self.path)
                number = len(seen)
            if mode == "large":
                start, entry, rest = page(_NAMES, "t").partition(b"<Contents>")
                self.pour(start, entry + rest.removesuffix(b"</ListBucketResult>"))
            elif mode == "drip":
                self.pour(b"", b"x", 0.05)
            else:
                time.sleep(0.3 if mode == "trickle" else 0)
                token = "the same" if mode == "page" else f"t{number}"
                self.answer(page(_PAGES[mode](number), token))

        do_HEAD = do_PUT = do_GET  # noqa: N815

        def answer(self, body: bytes) -> None:
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def pour(self, start: bytes, part: bytes, pause_seconds: float = 0) -> None:
            """A single answer of 300 MB."""
            times = (300 << 20) // len(part)
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(start) + times * len(part)))
            self.end_headers()
            try:
                self.wfile.write(start)
                for _ in range(times):
                    self.wfile.write(part)
                    time.sleep(pause_seconds)
            except ConnectionError:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    print(serve(sys.argv[1]).server_port, flush=True)
    sys.stdin.read()
