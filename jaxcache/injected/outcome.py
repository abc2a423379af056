"""What is observed of a compile request: one outcome, one reason.

Source: ``compile_or_get_cached``, ``_cache_read`` and ``_cache_write`` in jax/_src/compiler.py,
``is_cache_used`` and ``put_executable_and_time`` in jax/_src/compilation_cache.py.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..core.compile_event import CompileFinished, CompileStep, Counted, RunOutcome, Span

_EVENT_FIELDS = tuple(f.name for f in fields(CompileFinished))
_BEGIN_FIELDS = ("number", "module", "at", "function", "file", "line", "backend")
_COUNTED: Mapping[str, Counted] = {"hits": "hit", "misses": "miss", "requests": "request"}
#: Reasons for which JAX makes an entry and does not write it.
_MADE = ("over-cap", "size")
ALIKE = (
    "the same optimized HLO; the machine code is not compared, because XLA's for CPU differs "
    "between any two compiles"
)


@dataclass(kw_only=True, eq=False, repr=False)
class CompileRequest(CompileFinished):
    """The event of one request while it is made, and the facts that its outcome follows from."""

    module: str = ""
    outcome: RunOutcome = "error"
    reason: str = ""
    spans: dict[CompileStep, Span] = field(default_factory=dict)
    callbacks: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    jax_counts: set[str] = field(default_factory=set)
    """What JAX has counted of it: ``requests``, ``hits``, ``misses``."""
    hit: bool = False
    read_error: str | None = None
    key_error: str | None = None
    hashers: dict[str, Any] = field(default_factory=dict)
    """Component name to the function that hashes it."""
    key_inputs: tuple[Any, ...] = ()
    """The module, devices, compile options and backend that the key is made of."""
    found: tuple[int, ...] | None = None
    """The entry's file at the look-up; see :func:`identity`."""
    existed: bool = False
    """The entry's file was there before the write."""
    replaced: bool = False
    """After the write it was another file than at the look-up."""
    no_write: bool = False
    """The write was left out."""
    disabled_at_first: bool = False
    """JAX asks once per process whether the cache is on, and keeps the answer."""
    computation: Any = None
    """The MLIR module, until it is compiled."""
    asked: tuple[Any, ...] = ()
    """The arguments of the look-up: key, options, backend, devices."""
    alike: bool = False
    """On CPU: other bytes than the entry, but the same optimized program."""
    differs: str | None = None
    """The message of JAX's verification where an entry differs from the new executable."""
    compile_seconds: float | None = None
    """JAX's own measure; None if it has not compiled, or did not get as far as to report it."""
    is_writing: bool = False
    write_error: str | None = None
    raised: str | None = None
    interrupted: bool = False
    """It was raised by Ctrl-C."""
    refused: str | None = None
    """Why ``jaxcache.guard()`` did not let it compile."""

    def add(self, facts: Mapping[str, Any]) -> None:
        """Take the facts that are fields of the event, such as those of the lowering."""
        for name in facts.keys() & _EVENT_FIELDS:
            setattr(self, name, facts[name])
        self.spans = dict(self.spans)  # a module that was lowered once may be compiled again

    def fail(self, outcome: RunOutcome, reason: str, detail: str) -> None:
        """Conclude that nothing was compiled."""
        self.outcome = outcome
        self.reason = reason
        self.detail = detail

    def compiled(self, args: tuple[Any, ...]) -> None:
        """JAX calls ``_cache_write(key, compile_time_secs, …)``: the compile is done."""
        self.compile_seconds = float(args[1])

    def wire_begin(self) -> dict[str, Any]:
        """Return the event that is sent before it compiles."""
        return {"event": "begin", **{name: getattr(self, name) for name in _BEGIN_FIELDS}}

    def wire(self) -> dict[str, Any]:
        """Return the event that is sent at its end."""
        return {"event": "module", **{name: getattr(self, name) for name in _EVENT_FIELDS}}

    def conclude(self, directory: str | None, *, refuses_callbacks: bool) -> None:
        """Decide the outcome when the request has ended.

        Args:
            directory: where the entry was written to.
        """
        self.outcome, self.reason, self.detail = _classify(self, directory, refuses_callbacks)
        self.counted = next((c for name, c in _COUNTED.items() if name in self.jax_counts), None)
        if self.stubbed:
            self.spans.pop("compile", None)
        if not self.hit:
            self.spans.pop("retrieve", None)
        if file := entry_file(directory, self.key):
            self.size_bytes = file.st_size
        elif self.reason not in _MADE:
            self.size_bytes = None


_Verdict = tuple[RunOutcome, str, str | None]


def _classify(request: CompileRequest, directory: str | None, refuses_callbacks: bool) -> _Verdict:
    if request.hit:
        return "hit", "in-cache", None
    if request.stubbed:
        return "skipped", "collected", "answered with zeros"
    if request.alike:
        return "skipped", "same-hlo", ALIKE
    if request.differs:
        return "error", "not-deterministic", request.differs
    if request.refused:
        return "refused", "guard", request.refused
    if request.interrupted:
        return "skipped", "interrupted", "a signal came while it compiled or loaded"
    if request.write_error or request.read_error:
        return _classify_error(request, directory)
    if request.raised:
        return "error", "compile-failed", request.raised
    if request.key_error:
        return "uncacheable", "key-failed", request.key_error
    if "requests" not in request.jax_counts:
        return _classify_without_key(request)
    if "misses" in request.jax_counts:
        return _classify_written(request, directory)
    if request.compile_seconds is not None:
        return _classify_decided(request, directory, refuses_callbacks)
    return "skipped", "shared-by-process-0", "process 0 compiled it for all"


def _classify_decided(
    request: CompileRequest, directory: str | None, refuses_callbacks: bool
) -> _Verdict:
    """JAX has compiled and then not written."""
    settings = request.settings
    if request.process_id:
        return "skipped", "not-process-0", f"this is process {request.process_id}"
    if request.callbacks and refuses_callbacks:
        return "uncacheable", "host-callbacks", f"{request.callbacks} host callbacks"
    if not settings.get("jax_compilation_cache_dir") and directory is None:
        return "uncacheable", "no-directory", "jax_compilation_cache_dir is not set"
    if "write" not in request.spans:
        limit = settings.get("jax_persistent_cache_min_compile_time_secs")
        return "skipped", "compile-time", f"took {request.compile_seconds:.2f} s, under {limit} s"
    if directory is None:
        return "uncacheable", "cache-not-opened", "JAX could not open the cache"
    limit = settings.get("jax_persistent_cache_min_entry_size_bytes")
    size = f"{request.size_bytes} bytes, " if request.size_bytes else ""
    return "skipped", "size", f"{size}smaller than {limit} bytes"


def _classify_written(request: CompileRequest, directory: str | None) -> _Verdict:
    """JAX counts a write; whether it made one is another question."""
    if request.settings.get("jax_compilation_cache_check_contents") and request.existed:
        return "skipped", "verified", "compiled again, the same bytes as the entry"
    if request.no_write:
        return "skipped", "no-write", "nothing is written in this run"
    if request.replaced:
        return "written", "replaced", "its entry was damaged, and was replaced"
    if request.existed:
        return "skipped", "written-meanwhile", "another thread or process wrote it first"
    local = directory is not None and "://" not in directory
    if local and entry_file(directory, request.key) is None:
        cap = request.settings.get("jax_compilation_cache_max_size")
        size = f"{request.size_bytes} bytes, " if request.size_bytes else ""
        return "skipped", "over-cap", f"{size}larger than jax_compilation_cache_max_size ({cap})"
    return "written", "not-in-cache", None


def _classify_error(request: CompileRequest, directory: str | None) -> _Verdict:
    message = request.write_error or request.read_error or ""
    if "File name too long" in message:
        return "uncacheable", "name-too-long", message
    if request.read_error:
        # JAX compiles, but leaves a file that is there as it is: the next run fails again.
        return "error", "read-error", request.read_error
    setting = str(request.settings.get("jax_compilation_cache_dir") or "")
    if directory and not os.path.exists(directory) and not setting.startswith(os.sep):
        message = (
            f"{directory} does not exist: JAX opened the relative directory {setting} before the "
            "program changed its working directory"
        )
    return "error", "write-error", message


def _classify_without_key(request: CompileRequest) -> _Verdict:
    """JAX made no key, so it did not count the request as one that uses the cache."""
    if not request.settings.get("jax_enable_compilation_cache"):
        return "uncacheable", "cache-disabled", "jax_enable_compilation_cache is off"
    if request.disabled_at_first:
        return "uncacheable", "cache-disabled", "the cache was off at the first compile"
    return "uncacheable", "platform", "JAX does not cache for this platform"


def identity(file: "os.stat_result | None") -> "tuple[int, ...] | None":
    """Return what distinguishes a file from one that replaces it."""
    return None if file is None else (file.st_ino, file.st_size, file.st_mtime_ns)


def entry_file(directory: str | None, key: str | None) -> os.stat_result | None:
    """The entry's file, under the name of any JAX; None if it does not exist, or is not local."""
    if not directory or not key or "://" in directory:
        return None
    for name in (f"{key}-cache", key):
        try:
            return os.stat(os.path.join(directory, name))
        except OSError:
            continue
    return None
