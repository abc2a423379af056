"""Write what was made for a target into the cache, as the target's own JAX would have.

The child leaves each executable in a file; the entry around it is framed and written here, with
the target's codec, by the store: whole or not at all. A frame has a checksum, so that JAX notices
rot, as after ``seal``.
"""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxcache.cache.inventory import take_inventory
from jaxcache.cache.ledger.record import PAYLOAD
from jaxcache.cache.ledger.record import Event as Fact
from jaxcache.cache.ledger.segments import append
from jaxcache.entry.names import CACHE_SUFFIX, FileKind, parse_name
from jaxcache.errors import JaxcacheError
from jaxcache.store import make_store
from jaxcache.store.base import ExistsError, Store, StoreError
from jaxcache.warm.inbox import Event
from jaxcache.warm.target.framing import frame_payload
from jaxcache.warm.target.profile import Profile, profile_bytes

_ATIME_BYTES = 8


#: With these a program runs on the CPU, and plugins load where their hardware is not.
WITHOUT_HARDWARE = {
    "JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "TPU_SKIP_MDS_QUERY": "1"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Aim:
    """A target, and how to compile for it."""

    profile: Profile
    gemm: str = "cublas"
    autotune_from: str | None = None
    """The autotune directory of a real host, absolute."""
    require_tuned: bool = False

    def write_request(self, folder: str, directory: str) -> str:
        """Write what children need to know into a folder of theirs; the path of the request.

        Args:
            directory: the cache that is filled.
        """
        profile = Path(folder, "profile.json")
        profile.write_bytes(profile_bytes(self.profile))
        wishes = {
            "gemm": self.gemm, "autotune_from": self.autotune_from,
            "require_tuned": self.require_tuned,
        }  # fmt: skip
        request = Path(folder, "request.json")
        document = {
            "profile": str(profile), "spool": folder, "directory": directory, "wishes": wishes
        }  # fmt: skip
        request.write_text(json.dumps(document), "utf-8")
        return str(request)

    def environment(self, *, devices: int | None) -> dict[str, str]:
        """What a program on the CPU needs to stand where the target's programs stand.

        Args:
            devices: how many CPU devices the program is to see; as many as the target has if None.
        """
        profile = self.profile
        count = f"--xla_force_host_platform_device_count={devices or profile.device_count}"
        flags = [f for f in profile.environment.get("XLA_FLAGS", "").split() if f != count]
        env = {
            **profile.environment,
            # The count is in no key (jax/_src/cache_key.py), and the last one counts.
            "XLA_FLAGS": " ".join([*flags, count]),
            "LIBTPU_INIT_ARGS": profile.environment.get("LIBTPU_INIT_ARGS", ""),
            **WITHOUT_HARDWARE,
        }
        if profile.platform == "gpu":
            # XLA says of every kernel that it cannot measure it; the report does so once.
            env["TF_CPP_MIN_LOG_LEVEL"] = "3"
        for name, value in profile.settings.items():
            if isinstance(value, str):
                env[name.upper()] = value
        return env

    @staticmethod
    def unset(environ: Mapping[str, str]) -> tuple[str, ...]:
        """What of the caller's environment would enter keys that are the target's."""
        return tuple(n for n in environ if n.startswith("JAX_") and not n.startswith(_HARMLESS))


#: Settings of JAX that only say what is printed.
_HARMLESS = ("JAX_LOG", "JAX_DEBUG", "JAX_TRACEBACK", "JAX_DUMP")


@dataclass(slots=True)
class Delivery:
    """Takes the events of a run and writes the entries that they announce."""

    store: Store
    aim: Aim
    folder: str
    """Where the children leave executables."""
    request: str
    """The file that tells the children what to do."""
    facts: list[Fact] = field(default_factory=list)
    _atimes: bool | None = None

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
        # The child runs the user's program: it may name no file but its own.
        path = os.path.join(self.folder, os.path.basename(spooled))
        name = f"{event['key']}{CACHE_SUFFIX}"
        if parse_name(name).kind is not FileKind.ENTRY:
            raise StoreError(name, "no name of an entry")
        try:
            framed = frame_payload(Path(path), float(event["compile"][1]), self.aim.profile.codec)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self._wants_atimes():
            stamp = time.time_ns().to_bytes(_ATIME_BYTES, "little")
            self.store.write(f"{event['key']}-atime", [stamp])
        try:
            info = self.store.write(name, [framed.frame], replace=False)
        except ExistsError:
            info = self.store.info(name)
            return {"reason": "written-meanwhile", "size_bytes": info.size_bytes, "tuning": None}
        facts = {"payload_sha256": framed.payload_sha256, "file_mtime_ns": info.mtime_ns}
        self.facts.append(Fact(event["key"], PAYLOAD, time.time_ns(), facts))
        return {"size_bytes": info.size_bytes, "mtime_ns": info.mtime_ns}

    def _wants_atimes(self) -> bool:
        """Whether the cache has ``-atime`` files: for all of its entries, or for none."""
        if self._atimes is None:
            self._atimes = bool(take_inventory(self.store).atimes)
        return self._atimes

    def finish(self) -> None:
        """Let the ledger learn the digests."""
        append(self.store, self.facts)


@contextlib.contextmanager
def deliver(cache_dir: str, aim: Aim) -> Iterator[Delivery]:
    """Make ready to write entries for a target into a cache.

    Raises:
        NoCacheError, UsageError: the cache cannot be opened or made.
    """
    with tempfile.TemporaryDirectory(prefix="jaxcache-") as folder:
        request = aim.write_request(folder, cache_dir)
        delivery = Delivery(make_store(cache_dir), aim, folder, request)
        yield delivery
        delivery.finish()
