"""A tier in a process of its own, with a time limit per request.

A system call on a network file system that hangs cannot be interrupted, and a process with a thread
in one cannot end, not even by SIGKILL. So the user's process makes no such call: another one does,
one thread for each connection, which can be abandoned. It ends when the user's process does. A
bucket is served in the same way: what obstore or a provider's own tools do cannot hold up the
program, and needs no thread of it, which Python 3.12 does not start at its end.

The objects of a tier are in a store: a directory, or a bucket that obstore reaches.
"""

import contextlib
import functools
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..core import remote
from ..core.atomic import new_file, open_below, open_directory
from .files import MAX_ENTRY_BYTES, read_file, write_whole

_MAX_NAMES = 200_000
_MAX_LISTED = 1_000_000
#: No directory has longer names, so no entry has.
_MAX_NAME_LENGTH = 255


class AbsentError(Exception):
    """The tier has no such object."""


class DeniedError(Exception):
    """The tier refuses this user; asking again is of no use.

    Args:
        is_open: whether the tier itself did, which a request has reached.
    """

    def __init__(self, reason: str, *, is_open: bool = False) -> None:
        super().__init__(reason)
        self.is_open = is_open


class DirectoryStore:
    """A directory, such as one on a network file system."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, name: str, limit: int) -> bytes:
        """Return an object's bytes, at most ``limit``."""
        data = None
        with contextlib.suppress(FileNotFoundError), self._directory(name) as (directory, base):
            data = read_file(base, limit, directory=directory)
        if data is None:
            raise AbsentError
        return data

    def write(self, name: str, data: bytes, *, replace: bool) -> None:
        """Write an object whole."""
        with self._directory(name, make=True) as (directory, base):
            if replace or not os.access(base, os.F_OK, dir_fd=directory):
                write_whole(directory, base, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object if it does not exist; return whether it was written."""
        with (
            self._directory(name, make=True) as (directory, base),
            new_file(directory, [data], like=directory, durable=False) as file,
        ):
            try:
                file.give_name(base, replace=False)
            except FileExistsError:
                return False
        return True

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        with contextlib.suppress(FileNotFoundError), self._directory(name) as (directory, base):
            os.unlink(base, dir_fd=directory)

    def names(self, directory: str = "") -> "set[str]":
        """The names directly below a directory."""
        try:
            with self._directory(f"{directory}/") as (fd, _):
                return set(os.listdir(fd))
        except FileNotFoundError:
            return set()

    @contextlib.contextmanager
    def _directory(self, name: str, *, make: bool = False) -> "Iterator[tuple[int, str]]":
        """A descriptor of the directory of an object, and its name there; no link is followed."""
        if make:
            os.makedirs(self._path, exist_ok=True)
        path, _, base = name.rpartition("/")
        with open_directory(self._path) as root, open_below(root, path, make=make) as directory:
            yield directory, base


class BucketStore:
    """Whatever obstore reaches; credentials come from the providers' own variables.

    Raises:
        DeniedError: nothing names credentials, or the URL or an endpoint holds some.
    """

    def __init__(self, url: str, seconds: float) -> None:
        from datetime import timedelta

        import obstore
        import obstore.store

        client = {
            "timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=min(seconds, 1.0)),
        }
        try:
            scheme = url.partition("://")[0]
            if scheme not in remote.SERVICES:
                raise DeniedError(f"no store serves {scheme}://")
            service = remote.SERVICES[remote.split_url(url).scheme]
            remote.check_endpoints()
            options = remote.connection(service, client)
        except remote.RemoteError as error:
            raise DeniedError(f"{error}: {error.hint}") from None
        if "credential_provider" not in options and not remote.has_credentials(service):
            raise DeniedError(
                "no credentials: docs/remote.md has the variables; "
                "JAXCACHE_INSTANCE_CREDENTIALS=true for those that a cloud gives its machines"
            )
        self._obstore = obstore
        self._store = obstore.store.from_url(url, **options)

    def read(self, name: str, limit: int) -> bytes:
        """Return an object's bytes, at most ``limit``."""
        with self._errors():
            result = self._obstore.get(self._store, name)
            if result.meta["size"] > limit:
                raise OSError("the object is too large")
            return bytes(result.bytes())

    def write(self, name: str, data: bytes, *, replace: bool) -> None:
        """Write an object; an existing one stays unless it is to be replaced."""
        if replace:
            with self._errors():
                self._obstore.put(self._store, name, data, use_multipart=False)
        else:
            self.create(name, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object if it does not exist; return whether it was written."""
        try:
            with self._errors():
                self._obstore.put(self._store, name, data, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        with contextlib.suppress(AbsentError), self._errors():
            self._obstore.delete(self._store, name)

    def names(self, directory: str = "") -> "set[str]":
        """The names directly below a directory."""
        names: set[str] = set()
        prefix = f"{directory}/" if directory else None
        with self._errors():
            listed = 0  # names of other directories and repeated ones count, too
            for page in self._obstore.list(self._store, prefix, chunk_size=1000):
                for meta in page:
                    name = meta["path"][len(prefix or "") :]
                    if "/" not in name and len(name) <= _MAX_NAME_LENGTH:
                        names.add(name)
                listed += len(page)
                if len(names) > _MAX_NAMES or listed > _MAX_LISTED:
                    raise OSError("the listing has too many names")
        return names

    @contextlib.contextmanager
    def _errors(self) -> Any:
        try:
            yield
        except Exception as error:
            name = type(error).__name__
            if name == "NotFoundError" or isinstance(error, FileNotFoundError):
                raise AbsentError from None
            if name in ("AlreadyExistsError", "PreconditionError"):
                raise FileExistsError(str(error)) from error
            if name in ("PermissionDeniedError", "UnauthenticatedError"):
                raise DeniedError(str(error).splitlines()[0]) from error
            raise


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
    """A store in a process of its own, of which no call can hang.

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

    def ask(
        self,
        verb: str,
        name: str,
        data: "bytes | None" = None,
        *,
        seconds: float,
        limit: int = MAX_ENTRY_BYTES,
        **options: Any,
    ) -> Any:
        """Return what a method of the store returns.

        Args:
            verb: the name of the method.
            seconds: the limit of this request.
            limit: of the bytes that it returns.

        Raises:
            AbsentError, DeniedError, ImportError
            TimeoutError: no answer came in time; its connection is abandoned.
            OSError: the request failed, or the process is gone.
        """
        if verb == "read":
            options["limit"] = limit
        head = {"verb": verb, "name": name, "has_data": data is not None, "options": options}
        answer, result = self._exchange(head, data or b"", limit, seconds)
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
        return answer.get("value", result)

    def _exchange(
        self, head: "dict[str, Any]", data: bytes, limit: int, seconds: float
    ) -> "tuple[dict[str, Any], bytes]":
        """Send a request and wait for its answer."""
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
