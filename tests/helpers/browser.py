"""A real Chromium that opens a page and answers questions about it.

It is spoken to over a pipe, in its DevTools protocol
(https://chromedevtools.github.io/devtools-protocol/).
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

#: Names of the program, as distributions have it.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    *("--headless", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run"),
    *("--hide-scrollbars", "--disable-background-networking", "--window-size=1240,900"),
)
_TIMEOUT_SECONDS = 120.0
#: What the page's script sets when everything is drawn.
_DRAWN = "document.documentElement.dataset.drawn || ''"
_READ_BYTES = 1 << 20


@contextlib.contextmanager
def open_browser(program: str) -> "Iterator[Browser]":
    """Start a browser without a window, with a profile that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="jaxcache-", ignore_cleanup_errors=True) as directory:
        browser = Browser(program, directory)
        try:
            yield browser
        finally:
            browser.close()


class Browser:
    """One browser; what the page that was opened last says is kept in :attr:`events`.

    Its methods raise RuntimeError where it does not do what a test needs.
    """

    def __init__(self, program: str, profile: str) -> None:
        options = [*_OPTIONS, f"--user-data-dir={profile}"]
        if sys.platform == "linux" and os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium has none for root
        # It reads commands from descriptor 3 and answers on 4.
        shell = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1'
        self._process = subprocess.Popen(
            ["sh", "-c", shell, "sh", program, *options, "about:blank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin and self._process.stdout
        self._out, self._in = self._process.stdin, self._process.stdout.fileno()
        self._buffer = bytearray()
        self._sent = 0
        self._session: str | None = None
        self._deadline = time.monotonic() + _TIMEOUT_SECONDS
        self.events: list[dict[str, Any]] = []
        """Everything the page reported: ``Network``, ``Runtime`` and ``Log`` events."""

    def open(self, url: str) -> None:
        """Open a report in a page of its own, and wait until its script says that it is drawn."""
        self._session = None
        self._deadline = time.monotonic() + _TIMEOUT_SECONDS
        self.events.clear()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)
        while not self.evaluate(_DRAWN):
            if broken := [e for e in self.events if e["method"] == "Runtime.exceptionThrown"]:
                raise RuntimeError(broken[0]["params"]["exceptionDetails"])
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        with contextlib.suppress(BrokenPipeError):  # what it died of shows below
            self._out.write(json.dumps(message).encode() + b"\0")
            self._out.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self._sent:
                if "error" in answer:
                    raise RuntimeError(answer["error"].get("message"))
                result: dict[str, Any] = answer["result"]
                return result
            if "method" in answer:
                self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = self._deadline - time.monotonic()
            if left <= 0 or not select.select([self._in], [], [], left)[0]:
                raise RuntimeError("it did not answer in time")
            chunk = os.read(self._in, _READ_BYTES)
            if not chunk:
                raise RuntimeError(f"it ended with {self._process.wait(10)}")
            self._buffer += chunk
        end = self._buffer.index(b"\0")
        message: dict[str, Any] = json.loads(self._buffer[:end])
        del self._buffer[: end + 1]
        return message

    def close(self) -> None:
        """End the browser."""
        try:
            self._process.communicate(timeout=10)  # the end of its input tells it to end
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
