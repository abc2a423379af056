"""Serve the requests to a directory tier in a process of its own, which can be abandoned.

A system call on a network file system that hangs cannot be interrupted, and a process with a thread
in one cannot end, not even by SIGKILL. So the user's process makes no such call: this program does,
one thread for each connection. It ends when the user's process does.

Arguments: the descriptor over which connections come, and the directory.
"""

import json
import os
import socket
import struct
import sys
import threading
import time
from typing import Any

_SIZES = struct.Struct("<QQ")
_MAX_HEAD_BYTES = 256 << 20  # a listing
_PART_BYTES = 1 << 20


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
            raise ConnectionError("the process that serves the directory has ended")
        view = view[received:]
    return data


def _serve(connection: socket.socket, store: Any) -> None:
    from _jaxcache.live.stores import AbsentError  # type: ignore[import-not-found,unused-ignore]

    while True:
        try:
            head, data = receive(connection, 4 << 30)
        except OSError:
            return
        answer: dict[str, Any] = {}
        result = b""
        try:
            value = _answer(store, head, data)
            if isinstance(value, bytes):
                result = value
            else:
                answer["value"] = sorted(value) if isinstance(value, set) else value
        except AbsentError:
            answer["absent"] = True
        except OSError as error:
            answer["errno"], answer["error"] = error.errno, str(error.strerror or error)
        except Exception as error:
            answer["errno"], answer["error"] = None, f"{type(error).__name__}: {error}"
        try:
            send(connection, answer, result)
        except OSError:  # the client no longer waits for it
            return


def _answer(store: Any, head: "dict[str, Any]", data: bytes) -> Any:
    verb = head["verb"]
    name = head["name"]
    if verb == "read":
        return store.read(name, head["limit"])
    if verb == "write":
        return store.write(name, data, replace=head["replace"])
    if verb == "create":
        return store.create(name, data)
    if verb == "delete":
        return store.delete(name)
    return store.names(name)


def main() -> None:
    """Leave the process that has started this one, and serve it."""
    control = socket.socket(fileno=int(sys.argv[1]))
    path = sys.argv[2]
    if os.fork():
        os._exit(0)  # so that the user's process has no child that it does not know
    from importlib.machinery import ModuleSpec
    from importlib.util import module_from_spec

    spec = ModuleSpec("_jaxcache", None, is_package=True)  # as in hook.py
    here = os.path.dirname(os.path.abspath(__file__))
    spec.submodule_search_locations = [os.path.dirname(here)]
    sys.modules["_jaxcache"] = module_from_spec(spec)
    from _jaxcache.live.stores import DirectoryStore  # type: ignore[import-not-found,unused-ignore]

    while True:
        message, descriptors, *_ = socket.recv_fds(control, 1, 1)
        if not message:
            os._exit(0)  # which also ends requests that hang
        for descriptor in descriptors:
            arguments = socket.socket(fileno=descriptor), DirectoryStore(path)
            threading.Thread(target=_serve, args=arguments, daemon=True).start()


if __name__ == "__main__":
    main()
