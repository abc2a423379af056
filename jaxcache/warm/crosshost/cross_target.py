"""Compile for a host that is not here: what children need for it, and the entries that they make.

A child leaves each executable in a file; the entry around it is made here, with the target's codec.
Its zstd frame has a checksum, so that JAX notices rot, as after ``seal``. :class:`Delivery` brings
what a child has made into the cache: whole, once, and under JAX's own name.
"""

import contextlib
import io
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from jaxcache.cache.allow_lists import kept_flags
from jaxcache.cache.files import remove_leftovers, scratch_directory, take_inventory
from jaxcache.cache.ledger.record import COMPILE, PAYLOAD, Event, digest_facts
from jaxcache.cache.ledger.write import append
from jaxcache.cache.move.export_plan import has_atimes, is_truncated
from jaxcache.cache.move.plan import Check, Item, MoveAction, Plan, Step
from jaxcache.cache.move.stores import StoreParcel, StoreTarget
from jaxcache.cache.scan import UnknownFormats
from jaxcache.cache.verify.check import ImportPolicy
from jaxcache.core.compile_event import CompileFinished, RunEvent
from jaxcache.core.machine import hashes_path
from jaxcache.core.names import CACHE_SUFFIX, HEADER_BYTES, XLA_CACHES
from jaxcache.entry.codec import CodecError, compress_content
from jaxcache.entry.names import key_of
from jaxcache.errors import JaxcacheError
from jaxcache.model import Codec, FileInfo
from jaxcache.options.run import TargetOptions
from jaxcache.store import make_store
from jaxcache.store.base import ChangedError, ExistsError, Store, StoreError
from jaxcache.warm.crosshost.target_profile import CACHE_DIR, TargetProfile, read_profiles


class Delivery:
    """One cache that is being filled, from several threads.

    JAX writes entries in place, so a worker that is killed would leave half of one, which no run
    ever mends. Workers therefore write elsewhere, and the store writes atomically. A truncated
    entry that is there counts as missing, and is replaced.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        remove_leftovers(store)
        inventory = take_inventory(store)
        now_ns = time.time_ns()
        formats = UnknownFormats(store)
        self._torn: dict[str, FileInfo] = {}
        for e in inventory.entries:
            with contextlib.suppress(
                StoreError
            ):  # nothing can be put in the place of what cannot be read
                if is_truncated(formats, e.info, now_ns):
                    self._torn[e.key_text] = e.info
        self._there = {e.key_text for e in inventory.entries} - self._torn.keys()
        self._gate = ImportPolicy((e.info.name for e in inventory.entries), allow_large=True)
        self._check = Check(self._gate)
        plan = Plan("", store.url, (), with_atimes=has_atimes(inventory, store, dated=False))
        self._target = StoreTarget(store, plan)
        self._learnt: list[Event] = []
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The location of the cache."""
        return self._store.url

    def has(self, key: str) -> bool:
        """Whether the cache holds an entry of that key."""
        with self._lock:
            return key in self._there

    def known_keys(self) -> list[str]:
        """Keys that the cache has."""
        with self._lock:
            return sorted(self._there)

    def take(
        self,
        name: str,
        file: BinaryIO,
        key: str,
        facts: Mapping[str, Any] | None = None,
        *,
        records_digest: bool = False,
    ) -> FileInfo | None:
        """Write one entry into the cache, under the name that JAX gives it.

        Args:
            facts: what the ledger learns of its compile.
            records_digest: whether the ledger learns the digest of its payload.

        Returns:
            Its file; None if another process has written that entry meanwhile.

        Raises:
            JaxcacheError: it cannot be written, is damaged, or is not what the child reported.
        """
        if key_of(name) != key:
            raise JaxcacheError(f"{name} is not the entry of {key}", code="bad-name")
        parcel = self._parcel(name, file, key)
        with contextlib.closing(self._target.put([parcel])) as ends:
            (error,) = ends
        if error is not None:
            self._check_overtaken(name, error)
            info = None
        else:
            info = self._target.files[name]
        with self._lock:
            self._there.add(key)
            self._torn.pop(key, None)
            if info is not None:
                digest = parcel.facts.sha256 if records_digest else None
                self._learnt += _events(key, info, facts, digest)
        return info

    def _parcel(self, name: str, file: BinaryIO, key: str) -> StoreParcel:
        """Check an entry as any that comes into a cache."""
        if reason := self._gate.name_error(name):
            raise JaxcacheError(f"{name} {reason}", code="bad-name")
        now_ns = time.time_ns()
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        info = FileInfo(name, "file", size_bytes, now_ns, now_ns, 0, 0, -1)
        torn_file = self._torn.get(key)
        item = Item(name, key, size_bytes, now_ns, now_ns, info)
        try:
            checked = self._check.read(item, file, info)
        except CodecError as error:
            raise JaxcacheError(f"{name}: {error.detail}", code=error.kind) from error
        action = MoveAction.WRITE if torn_file is None else MoveAction.HEAL
        return StoreParcel(Step(item, action, there=torn_file), info, file, checked, changes=False)

    def _check_overtaken(self, name: str, error: StoreError) -> None:
        """Let an entry be that another process wrote meanwhile.

        Raises:
            StoreError: any other failure, or something else has the name.
        """
        if not isinstance(error, ExistsError | ChangedError):
            raise error
        present = self._store.info(name)
        if present.type != "file":
            raise StoreError(name, f"a {present.type} has its name", code="exists") from error

    def remember(self) -> None:
        """Append what was learnt of the entries to the cache's ledger, if it can be written."""
        with self._lock:
            learnt = self._learnt
            self._learnt = []
        if learnt:
            with contextlib.suppress(JaxcacheError):
                append(self._store, learnt)


def _events(
    key: str, info: FileInfo, facts: Mapping[str, Any] | None, payload_sha256: str | None
) -> Iterator[Event]:
    """The ledger events of an entry."""
    now_ns = info.mtime_ns
    if facts is not None and facts.get("tuning"):
        tuned_file = {"tuning_mtime_ns": info.mtime_ns, "tuning_size_bytes": info.size_bytes}
        facts = {**facts, **tuned_file}
    if facts is not None:
        yield Event(key, COMPILE, now_ns, facts)
    if payload_sha256 is not None:
        yield Event(key, PAYLOAD, now_ns, digest_facts(payload_sha256, info))


#: JAX's own level; what it reads most is small.
_LEVEL = 3
_MAX_PAYLOAD_BYTES = 2 << 30
_MAX_SECONDS = 2**31 - 1
#: With these a program runs on the CPU, and plugins load where their hardware is not.
WITHOUT_HARDWARE = {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "TPU_SKIP_MDS_QUERY": "1",
}
#: Settings of JAX that only affect what it prints.
_HARMLESS = ("JAX_LOG", "JAX_DEBUG", "JAX_TRACEBACK", "JAX_DUMP")


@dataclass(frozen=True, slots=True)
class CrossTarget:
    """A target, and how to compile for it."""

    profiles: tuple[TargetProfile, ...]
    """The host, or the processes of a pod."""
    options: TargetOptions

    @property
    def profile(self) -> TargetProfile:
        """The host, or process 0 of a pod."""
        return self.profiles[0]

    @property
    def processes(self) -> int | None:
        """The number of processes that the program is run as, where it is of a pod."""
        return len(self.profiles) if len(self.profiles) > 1 else None

    def write_request(self, spool: str, directory: str) -> str:
        """Write what children need to know into a directory of theirs; the path of the request.

        Args:
            directory: the cache that is filled.
        """
        profiles = []
        for number, profile in enumerate(self.profiles):
            path = Path(spool, f"profile-{number}.json")
            path.write_bytes(profile.to_bytes())
            profiles.append(str(path))
        names = ("autotune_from", "require_tuned")
        tuning = {name: getattr(self.options, name) for name in names}
        document = {"profiles": profiles, "spool": spool, "directory": directory, "tuning": tuning}
        request = Path(spool, "request.json")
        request.write_text(json.dumps(document), "utf-8")
        return str(request)

    def environment(self, *, devices: int | None) -> dict[str, str]:
        """Return the environment in which a program on the CPU is traced as on the target.

        Args:
            devices: how many CPU devices the program is to see; as many as the target has if None.
        """
        profile = self.profile
        count = f"--xla_force_host_platform_device_count={devices or profile.device_count}"
        flags = kept_flags(profile.environment.get("XLA_FLAGS", "").split())
        env = {
            **profile.environment,
            # The count is in no key (jax/_src/cache_key.py), and the last one counts.
            "XLA_FLAGS": " ".join([*flags, count]),
            "LIBTPU_INIT_ARGS": profile.environment.get("LIBTPU_INIT_ARGS", ""),
            **WITHOUT_HARDWARE,
        }
        if profile.platform == "gpu":
            # XLA warns for every kernel that it cannot measure it; the report does so once.
            env["TF_CPP_MIN_LOG_LEVEL"] = "3"
        is_hashed = hashes_path(profile.jax_version, profile.settings.get(XLA_CACHES) or "")
        for name, value in profile.settings.items():
            if isinstance(value, str) and (name != CACHE_DIR or is_hashed):
                env[name.upper()] = value
        return env

    @staticmethod
    def unset(environ: Mapping[str, str]) -> tuple[str, ...]:
        """Name the caller's variables that would enter keys instead of the target's."""
        return tuple(n for n in environ if n.startswith("JAX_") and not n.startswith(_HARMLESS))


def read_cross(options: TargetOptions) -> CrossTarget | None:
    """Read the target that the options name, if any.

    Raises:
        UsageError: options exclude each other, or the profile does not exist.
    """
    options.check()
    return None if options.target is None else CrossTarget(read_profiles(options.target), options)


def frame_payload(file: Path, seconds: float, codec: Codec) -> bytes:
    """Put JAX's header in front of an executable, and both into a sealed frame.

    Args:
        seconds: what compiling took; the header holds whole ones.

    Raises:
        JaxcacheError: ``too-large``.
        OSError: the file cannot be read.
    """
    with file.open("rb") as opened:
        payload = opened.read(_MAX_PAYLOAD_BYTES + 1)
    if len(payload) > _MAX_PAYLOAD_BYTES:
        raise JaxcacheError(f"{file.name} is larger than any entry", code="too-large")
    header = min(int(seconds), _MAX_SECONDS).to_bytes(HEADER_BYTES, "big")
    return compress_content(header + payload, codec, _LEVEL)


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """Takes the events of a run and brings the entries that they announce into the cache."""

    delivery: Delivery
    cross: CrossTarget
    directory: str
    """The directory for executables."""
    request: str
    """The file with the request to the children."""

    def take(self, event: RunEvent) -> RunEvent:
        """The event, once what it announces is done: as it was, or with what came of it."""
        if not isinstance(event, CompileFinished) or event.spool is None:
            return event
        started = time.time()
        try:
            done = self._write(event, event.spool)
        except (JaxcacheError, OSError) as error:
            return replace(event, outcome="error", reason="write-error", detail=str(error))
        return replace(done, spans={**done.spans, "write": (started, time.time() - started)})

    def _write(self, event: CompileFinished, spooled: str) -> CompileFinished:
        key = str(event.key)
        # The child runs the user's program: it may name no file but its own.
        path = os.path.join(self.directory, os.path.basename(spooled))
        seconds = event.seconds_of("compile") or 0.0
        try:
            frame = frame_payload(Path(path), seconds, self.cross.profile.codec)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
        name = f"{key}{CACHE_SUFFIX}"
        info = self.delivery.take(name, io.BytesIO(frame), key, records_digest=True)
        if info is None:
            return replace(event, reason="written-meanwhile", tuning=None)
        return replace(event, size_bytes=info.size_bytes, mtime_ns=info.mtime_ns)


@contextlib.contextmanager
def open_spool(cache_dir: str, cross: CrossTarget) -> Iterator[TargetOutput]:
    """Make ready to write entries for a target into a cache.

    Raises:
        NoCacheError, UsageError: the cache cannot be opened or made.
    """
    with scratch_directory("cross") as directory:
        request = cross.write_request(directory, cache_dir)
        delivery = Delivery(make_store(cache_dir))
        try:
            yield TargetOutput(delivery, cross, directory, request)
        finally:
            delivery.remember()
