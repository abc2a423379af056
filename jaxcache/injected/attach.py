"""The one listener of a process: for the parent that started it, and for blocks that watch."""

import atexit
import sys
import threading
from typing import Any

from . import channel, colocated, multiprocess
from .adapter import Jax, UnknownJaxError
from .listener import Listener
from .process_observer import Sink

#: The one of this process, whoever asked for it first.
LISTENER: "Listener | None" = None
_lock = threading.Lock()


def listen(module: Any, sink: Sink, *, seal: bool = False) -> Listener:
    """Send the events of the imported jax to a sink, by the one listener of this process.

    Args:
        seal: add a checksum to each entry that JAX writes from now on.

    Raises:
        UnknownJaxError: nobody here knows this jax.
    """
    global LISTENER
    with _lock:
        if LISTENER is None:
            jax = Jax(module)
            LISTENER = Listener(jax)
            if seal:
                jax.seal_writes()
            jax.listen(LISTENER)
            colocated.watch(LISTENER.send)
    LISTENER.add(sink)
    return LISTENER


def attach(module: Any) -> None:
    """Send the events of the jax that was just imported to the parent process."""
    send = channel.CHANNEL.send
    if imported := getattr(sys.modules.get("_jaxcache_hook"), "imported", None):
        send(imported)
    try:
        atexit.register(listen(module, send, seal=True).on_exit)
    except UnknownJaxError as error:
        send({"event": "unobserved", "detail": str(error)})
    multiprocess.join(module)
