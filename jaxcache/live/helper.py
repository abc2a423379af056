"""A tier in a process of its own, with a time limit per request.

A system call on a network file system that hangs cannot be interrupted, and a process with a thread
in one cannot end, not even by SIGKILL. So the user's process makes no such call: another one does,
one thread for each connection, which can be abandoned. It ends when the user's process does. A
bucket is served in the same way: what obstore or a provider's own tools do cannot hold up the
program, and needs no thread of it, which Python 3.12 does not start at its end.
"""

import functools
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .files import MAX_ENTRY_BYTES
from .stores import AbsentError, BucketStore, DeniedError, DirectoryStore

_SIZES = struct.Struct("<QQ")
_MAX_HEAD_BYTES = 256 << 20  # a listing
_PART_BYTES = 1 << 20
#: For a Python to start and fork.
_START_SECONDS = 10.0
#: Leaves the process that has started it, so that this one has no child that it does not know.
#: Arguments: our package, the descriptor over which connections come, the address of the tier, the
#: limit of a request, and the path on which obstore is.
_PROGRAM = """
import json, os, sys
if os.fork():
    os._exit(0)
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
spec = ModuleSpec("_jaxcache", None, is_package=True)  # as in hook.py
spec.submodule_search_locations = [sys.argv[1]]
sys.modules["_jaxcache"] = module_from_spec(spec)
from _jaxcache.live import helper
sys.path[:] = json.loads(sys.argv[5])
helper.serve(helper.socket.socket(fileno=int(sys.argv[2])), sys.argv[3], float(sys.argv[4]))
"""


def send(connection: socket.socket, head: "dict[str, Any]", data: "bytes | memoryview") -> None:
    """Send a request or an answer.

    Raises:
        OSError
    """
    text = json.dumps(head).encode()
    connection.sendall(_SIZES.pack(len(text), len(data)) + text)
    connection.sendall(data)


def receive(
    connection: socket.socket, limit: int, deadline: "float | None" = None
) -> "tuple[dict[str, Any], bytes]":
    """Receive a request or an answer.

    Args:
        limit: of its data, in bytes.
        deadline: on the monotonic clock.

    Raises:
        OSError: the other side is gone, sends too much, or not in time.
    """
    head_bytes, data_bytes = _SIZES.unpack(_receive_exactly(connection, _SIZES.size, deadline))
    if head_bytes > _MAX_HEAD_BYTES or data_bytes > limit:
        raise OSError("too large an answer")
    head: dict[str, Any] = json.loads(_receive_exactly(connection, head_bytes, deadline))
    return head, bytes(_receive_exactly(connection, data_bytes, deadline))


def _receive_exactly(connection: socket.socket, size: int, deadline: "float | None") -> "bytearray":
    data = bytearray(size)
    view = memoryview(data)
    while view:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        received = connection.recv_into(view, min(len(view), _PART_BYTES))
        if not received:
            raise ConnectionError("the process that serves the tier has ended")
        view = view[received:]
    return data


def serve(control: socket.socket, address: str, seconds: float) -> None:
    """Serve a tier to each connection that comes, until the user's process ends."""
    open_store = functools.lru_cache(lambda: _open_store(address, seconds))
    while True:
        message, descriptors, *_ = socket.recv_fds(control, 1, 1)
        if not message:
            os._exit(0)  # which also ends requests that hang
        for descriptor in descriptors:
            arguments = socket.socket(fileno=descriptor), open_store
            threading.Thread(target=_serve, args=arguments, daemon=True).start()


def _open_store(address: str, seconds: float) -> Any:
    return BucketStore(address, seconds) if "://" in address else DirectoryStore(address)


def _serve(connection: socket.socket, open_store: "Callable[[], Any]") -> None:
    while True:
        try:
            head, data = receive(connection, 4 << 30)
        except OSError:
            return
        answer: dict[str, Any] = {}
        result = b""
        store = None
        try:
            store = open_store()
            arguments = [head["name"], *([data] if head["has_data"] else [])]
            value = getattr(store, head["verb"])(*arguments, **head["options"])
            if isinstance(value, bytes):
                result = value
            else:
                answer["value"] = sorted(value) if isinstance(value, set) else value
        except AbsentError:
            answer["absent"] = True
        except DeniedError as error:
            answer["denied"] = str(error)
        except OSError as error:
            answer["errno"], answer["error"] = error.errno, str(error.strerror or error)
        except ImportError as error:
            answer["missing"] = str(error)
        except Exception as error:
            answer["errno"], answer["error"] = None, f"{type(error).__name__}: {error}"
        except BaseException as error:  # obstore panics if an endpoint is not a URL
            answer["denied"] = str(error)
        answer["is_open"] = store is not None
        try:
            send(connection, answer, result)
        except OSError:  # the client no longer waits for it
            return


class TierClient:
    """The same as a store of :mod:`.stores`, of which no call can hang.

    Raises:
        DeniedError: no Python can be started beside this program.
        OSError: the process cannot be started.
    """

    def __init__(self, address: str, seconds: float) -> None:
        self._lock = threading.RLock()
        self._idle: list[socket.socket] = []
        self._address = address if "://" in address else os.path.abspath(address)
        self._seconds = seconds
        self._control = self._start()

    def __del__(self) -> None:
        if hasattr(self, "_control"):
            self.close()

    def within(self, seconds: float) -> "TierRequests":
        """Return the store with a limit for the next request."""
        return TierRequests(self, seconds)

    def ask(
        self, head: "dict[str, Any]", data: bytes, limit: int, seconds: float
    ) -> "tuple[dict[str, Any], bytes]":
        """Send a request and wait for its answer.

        Raises:
            TimeoutError: none came in time; its connection is abandoned.
            OSError: the request failed, or the process is gone.
        """
        deadline = time.monotonic() + seconds
        connection = self._connect(seconds)
        try:
            connection.settimeout(seconds)
            send(connection, head, data)
            answer = receive(connection, limit, deadline)
        except TimeoutError:
            connection.close()
            raise TimeoutError(f"no answer in {seconds:g} s") from None
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        """End the connections of this process; the other one ends with the last of them."""
        for connection in (*self._idle, self._control):
            connection.close()
        self._idle = []

    def _connect(self, seconds: float) -> socket.socket:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    self._control.settimeout(seconds)
                    socket.send_fds(self._control, [b"+"], [theirs.fileno()])
                except (BrokenPipeError, ConnectionError):  # the helper was ended
                    self._control.close()
                    self._control = self._start()
                    socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            return ours

    def _start(self) -> socket.socket:
        python = sys.executable or ""
        is_python = os.path.basename(python).startswith(("python", "pypy"))
        if not is_python or getattr(sys, "frozen", False):
            raise DeniedError("a tier needs a Python that can be started")
        ours, theirs = socket.socketpair()
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        with theirs:
            arguments = [str(theirs.fileno()), self._address, str(self._seconds)]
            arguments.append(json.dumps([os.path.abspath(path) for path in sys.path]))
            process = subprocess.Popen(
                [python, "-I", "-S", "-c", _PROGRAM, package, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # it finishes uploads after an interrupt
            )
            try:
                process.wait(_START_SECONDS)  # for it to fork
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return ours


class TierRequests:
    """The operations of a tier, each within the same limit."""

    def __init__(self, client: TierClient, seconds: float) -> None:
        self._client = client
        self._seconds = seconds

    def read(self, name: str, limit: int) -> bytes:
        """Return an object's bytes, at most ``limit``."""
        return self._ask("read", name, limit=limit)[1]

    def write(self, name: str, data: bytes, *, replace: bool) -> None:
        """Write an object whole."""
        self._ask("write", name, data, replace=replace)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object if it does not exist; return whether it was written."""
        return bool(self._ask("create", name, data)[0]["value"])

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        self._ask("delete", name)

    def names(self, directory: str = "") -> "set[str]":
        """The names directly below a directory."""
        return set(self._ask("names", directory)[0]["value"])

    def _ask(
        self, verb: str, name: str, data: "bytes | None" = None, **options: Any
    ) -> "tuple[dict[str, Any], bytes]":
        head = {"verb": verb, "name": name, "has_data": data is not None, "options": options}
        limit = options.get("limit", MAX_ENTRY_BYTES)
        answer, result = self._client.ask(head, data or b"", limit, self._seconds)
        if "absent" in answer:
            raise AbsentError
        if "missing" in answer:
            raise ImportError(answer["missing"])
        if "denied" in answer:
            raise DeniedError(answer["denied"], is_open=answer["is_open"])
        if "error" in answer:
            if answer["errno"] is None:
                raise OSError(answer["error"])
            raise OSError(answer["errno"], answer["error"], name)
        return answer, result
