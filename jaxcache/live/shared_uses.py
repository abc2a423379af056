"""Tell the tiers what this client uses, so that ``prune`` of a tier keeps it.

Per client and day one segment of the tier's ledger, ``.jaxcache/ledger/<midnight>-<client>.jsonl``,
which each process of the client writes anew with what its own directory has noted of that day. It
is bounded, and a ``prune`` of the tier reads one object per client and day, however many entries
and programs there are.
"""

import contextlib
import hashlib
import os
import socket
import time

from ..core.ledger import DAY_NS, day_segment, read_lines, sum_up
from ..core.names import LEDGER_DIR
from .files import own_directory_of, read_file, write_whole
from .uses import UseLog

#: The latest uses of a day that a client tells.
_MAX_LINES = 8_192
_MAX_BYTES = 4 << 20
_DIRECTORY = "shared"


class SharedUses(UseLog):
    """The uses of this process, for the tiers of one directory."""

    def __init__(self, root: str) -> None:
        super().__init__(root, {})
        client = f"{socket.gethostname()}\0{os.path.abspath(root)}\0{os.getuid()}"
        self._client = hashlib.sha256(client.encode()).hexdigest()[:16]

    def segment(self) -> "tuple[str, bytes] | None":
        """The name and the content of today's segment; None where this process adds nothing.

        Raises:
            OSError: the directory cannot be written.
        """
        events = self.take()
        if not events:
            return None
        name = day_segment(time.time_ns() // DAY_NS, self._client)
        with own_directory_of(self._root, "live", _DIRECTORY) as directory:
            data = read_file(name, _MAX_BYTES, directory=directory)
            lines = sum_up([*read_lines(name, data or b"").values, *events])[-_MAX_LINES:]
            data = "".join(f"{line}\n" for line in lines).encode()
            write_whole(directory, name, data)
            for other in os.listdir(directory):
                if other != name and other.endswith(".jsonl"):
                    with contextlib.suppress(OSError):
                        os.unlink(other, dir_fd=directory)
        return f"{LEDGER_DIR}/{name}", data
