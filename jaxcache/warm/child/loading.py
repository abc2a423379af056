"""The parent's side of ``injected/describe.py``: one entry kills one child, and is named."""

from collections.abc import Iterator, Sequence

from jaxcache.cache.files import EntryFile
from jaxcache.entry.codec import CodecError
from jaxcache.entry.decode import decode_origin, decode_payload, read_payload
from jaxcache.errors import NoJaxError
from jaxcache.model import Problem, ProblemKind, Progress
from jaxcache.store.base import Store, StoreError
from jaxcache.units import no_jax_hint
from jaxcache.warm.child.child import Child, DiedError, describe_no_jax, find_python

_START_SECONDS = 300.0
#: Loading takes milliseconds; a child that takes this long hangs.
_LOAD_SECONDS = 120.0
_MAX_PAYLOAD_BYTES = 1 << 30
_ONE_DEVICE = ((0,),)
_ABSENT = "for devices that are not here, as of several processes"
_FEWEST_DEVICES = 8
_MOST_DEVICES = 512


class SubprocessLoader:
    """Deserializes entries with the jax of one Python, for ``verify --level load``.

    Args:
        python: an interpreter that has jax; our own by default.
    """

    def __init__(self, python: str | None = None) -> None:
        self._python = find_python(python)

    def __call__(
        self, store: Store, files: Sequence[EntryFile], progress: Progress | None
    ) -> Iterator[Problem]:
        """Yield a problem per entry that does not load, and per entry that cannot be judged here.

        Raises:
            NoJaxError: no usable jax was found.
        """
        child: _Loading | None = None
        try:
            for done, file in enumerate(files):
                if progress:
                    progress(done, len(files))
                payload = _read_payload(store, file)
                if payload is None:
                    continue
                contents = decode_payload(payload, check=False)
                assignment = contents.compile_options.device_assignment or _ONE_DEVICE
                devices = max((i for row in assignment for i in row), default=0) + 1
                if devices > _MOST_DEVICES:
                    yield _problem(file, "not-loadable-here", _ABSENT)
                    continue
                if child is None or child.devices < devices:
                    if child:
                        child.stop()
                    child = _Loading(self._python, devices)
                platform = contents.device.platform
                if platform not in ("unknown", child.platform):
                    detail = f"for a {platform}, and this jax has a {child.platform}"
                    yield _problem(file, "not-loadable-here", detail)
                    continue
                sample = child.sample
                try:
                    problem = child.load(payload, assignment)
                except DiedError as error:
                    problem = ("load-crashed", str(error))
                    child.stop()
                    child = None
                if problem and problem[1] != _ABSENT and (why := _excuse(payload, sample)):
                    problem = ("not-loadable-here", why)
                if problem:
                    yield _problem(file, *problem)
        finally:
            if child:
                child.stop()


class _Loading(Child):
    """One process that deserializes until it dies."""

    def __init__(self, python: str, devices: int) -> None:
        self.devices = _FEWEST_DEVICES
        while self.devices < min(devices, _MOST_DEVICES):
            self.devices *= 2
        super().__init__(python, "describe.load_entries", str(self.devices), deed="loaded it")
        try:
            ready = self.answer(_START_SECONDS)
        except DiedError as error:
            ready = {"error": self.last_stderr_line or str(error)}
        if problem := ready.get("error"):
            self.stop()
            raise NoJaxError(describe_no_jax(python, problem), hint=no_jax_hint())
        if ready.get("event") == "unknown-jax":
            self.stop()
            raise NoJaxError(
                f"cannot load entries with the jax of {python} ({ready.get('detail')})",
                code="unknown-jax",
                hint="known are 0.4.30 to 0.12: upgrade jaxcache, or use another jax",
            )
        self.sample = bytes.fromhex(str(ready.get("sample") or ""))
        platform = str(ready.get("platform"))
        self.platform = "gpu" if platform in ("cuda", "rocm") else platform

    def load(
        self, payload: bytes, assignment: Sequence[Sequence[int]]
    ) -> tuple[ProblemKind, str] | None:
        """Have one payload deserialized; what went wrong, or None.

        Raises:
            DiedError: the child died of it, or hangs.
        """
        self.send({"size_bytes": len(payload), "device_assignment": assignment}, payload)
        event = self.answer(_LOAD_SECONDS)
        if event.get("event") == "absent":
            return "not-loadable-here", _ABSENT
        failed = event.get("event") == "failed"
        return ("load-failed", str(event.get("detail"))) if failed else None


def _excuse(payload: bytes, sample: bytes) -> str | None:
    """Return why a sound entry may fail to load here; None where only damage explains it.

    Args:
        sample: a program as the jax that failed writes it.
    """
    entry = decode_origin(payload)
    here = decode_origin(sample)
    if None not in (entry.like_jaxlib, here.like_jaxlib) and (
        (entry.like_jaxlib, entry.format) != (here.like_jaxlib, here.format)
    ):
        return f"written by another jaxlib, like {entry.like_jaxlib}"
    needed = {f for f in entry.device.cpu_features or () if f.startswith("+")}
    lacking = needed.difference(here.device.cpu_features or needed)
    return f"for a CPU with {', '.join(sorted(lacking)[:5])}" if lacking else None


def _read_payload(store: Store, file: EntryFile) -> bytes | None:
    """The payload; None where it is gone, damaged since it was checked, or too large to hold."""
    try:
        with store.open(file.info.name) as opened:
            return bytes(read_payload(opened, file.info.size_bytes, limit=_MAX_PAYLOAD_BYTES))
    except (CodecError, StoreError, OSError):
        return None


def _problem(file: EntryFile, kind: ProblemKind, detail: str) -> Problem:
    return Problem(file.info.name, kind, detail, file.key_text)
