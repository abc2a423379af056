"""What children make for a target, on its way into the cache.

The child leaves each executable in a file; the entry around it is framed here, with the target's
codec. A frame has a checksum, so that JAX notices rot, as after ``seal``.
"""

import contextlib
import io
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxcache.entry.names import CACHE_SUFFIX
from jaxcache.errors import JaxcacheError
from jaxcache.store import make_store
from jaxcache.warm.delivery import Delivery
from jaxcache.warm.inbox import Event
from jaxcache.warm.target.aim import Aim
from jaxcache.warm.target.framing import frame_payload


@dataclass(frozen=True, slots=True)
class Spool:
    """Takes the events of a run and brings the entries that they announce into the cache."""

    delivery: Delivery
    aim: Aim
    folder: str
    """Where the children leave executables."""
    request: str
    """The file that tells the children what to do."""

    def take(self, event: Event) -> Event:
        """The event, once what it announces is done: as it was, or with what came of it."""
        spooled = event.get("spool")
        if event["event"] != "module" or not isinstance(spooled, str):
            return event
        event = {k: v for k, v in event.items() if k != "spool"}
        started = time.time()
        try:
            written = self._write(event, spooled)
        except (JaxcacheError, OSError) as error:
            return {**event, "outcome": "error", "reason": "write-error", "detail": str(error)}
        return {**event, **written, "write": [started, time.time() - started]}

    def _write(self, event: Event, spooled: str) -> dict[str, Any]:
        key = str(event["key"])
        # The child runs the user's program: it may name no file but its own.
        path = os.path.join(self.folder, os.path.basename(spooled))
        try:
            framed = frame_payload(Path(path), float(event["compile"][1]), self.aim.profile.codec)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
        info = self.delivery.take(
            f"{key}{CACHE_SUFFIX}",
            io.BytesIO(framed.frame),
            key,
            payload_sha256=framed.payload_sha256,
        )
        if info is None:
            return {"reason": "written-meanwhile", "tuning": None}
        return {"size_bytes": info.size_bytes, "mtime_ns": info.mtime_ns}


@contextlib.contextmanager
def open_spool(cache_dir: str, aim: Aim) -> Iterator[Spool]:
    """Make ready to write entries for a target into a cache.

    Raises:
        NoCacheError, UsageError: the cache cannot be opened or made.
    """
    with tempfile.TemporaryDirectory(prefix="jaxcache-") as folder:
        request = aim.write_request(folder, cache_dir)
        delivery = Delivery(make_store(cache_dir))
        try:
            yield Spool(delivery, aim, folder, request)
        finally:
            delivery.remember()
