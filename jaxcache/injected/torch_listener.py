"""Observe the torch of one process: the outcome of every look into its caches.

Torch writes what happens to its structured trace, which ``tlparse`` reads from ``TORCH_TRACE``; a
handler on that logger gets the same records. The few other private names are here too. Tried with
torch 2.9 and 2.11 to 2.15. A failure is reported as ``trouble``; the script goes on.
"""

import atexit
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from traceback import walk_stack
from typing import Any

from . import channel
from .channel import safely

#: The logger of ``torch/_logging/_internal.py``; torch calls its handlers where it has any.
_TRACE = "torch.__trace"
_TRIED = "tried with torch 2.9 and 2.11 to 2.15"
#: The modules with the two caches, which write entries by the same name.
_CACHES = {
    "aotautograd": ("torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCache"),
    "fxgraph": ("torch._inductor.codecache", "FxGraphCache"),
}
_WRITE = "_write_to_local_cache"
#: The beginnings of the names of artifacts that report one look-up.
_LOOKS = {"aotautograd_cache_": "aotautograd", "fx_graph_cache_": "fxgraph"}
_STATES = ("hit", "miss", "bypass")
_METRICS = {"compilation_metrics": "forward", "bwd_compilation_metrics": "backward"}
_COUNTED = ("autograd_cache_", "fxgraph_cache_")
_SETTINGS = {
    "torch._inductor.config": (
        *("fx_graph_cache", "fx_graph_remote_cache", "force_disable_caches", "freezing"),
    ),
    "torch._functorch.config": (
        *("enable_autograd_cache", "enable_remote_autograd_cache", "bundled_autograd_cache"),
    ),
}
_BREAK_AT = re.compile(r"Graph break in user code at (?P<file>.*):(?P<line>\d+)")
_TEXT_CHARACTERS = 2000


class TorchListener(logging.Handler):
    """The handler of torch's structured trace, and a wrapper around the writes of its caches."""

    def __init__(self, version: str, send: Callable[["dict[str, Any]"], None]) -> None:
        super().__init__(logging.DEBUG)
        self._version = version
        self._send = send
        self._wrapped: set[str] = set()
        self._introduced: dict[str, Any] | None = None
        self._before: dict[str, int] = {}
        self._owners: dict[str | None, str] = {}
        os.register_at_fork(after_in_child=self._start_afresh)

    def _start_afresh(self) -> None:
        """A forked child has a connection of its own, and counts from here."""
        self._introduced = None
        safely(self._send, lambda: setattr(self, "_before", _counters()))

    def emit(self, record: logging.LogRecord) -> None:
        """Take one record of the trace."""
        safely(
            self._send,
            lambda: self._take(getattr(record, "metadata", {}), getattr(record, "payload", None)),
        )

    def _take(self, metadata: "dict[str, Any]", payload: Any) -> None:
        if "dynamo_start" in metadata or "artifact" in metadata:
            self._wrap_writes()
        if "dynamo_start" in metadata and (owner := _owner()):
            self._owners[_compile_id(metadata)] = owner
        artifact = metadata.get("artifact") or {}
        name = str(artifact.get("name", "")) if isinstance(artifact, dict) else ""
        if look := _look(name):
            self._tell(metadata, {"event": "torch-graph", **look, **_of_look(payload)})
        elif name == "recompile_reasons":
            self._tell(metadata, {"event": "torch-recompile", "guards": _reasons(payload)})
        elif name == "dynamo_graph_break_reason":
            self._tell(metadata, {"event": "torch-break", **_of_break(str(payload or ""))})
        for key, direction in _METRICS.items():
            if key in metadata:
                owner = self._owners.get(_compile_id(metadata))
                compiled = {"event": "torch-compiled", "direction": direction, "owner": owner}
                self._tell(metadata, {**compiled, **_of_metrics(metadata[key])})

    def _tell(self, metadata: "dict[str, Any]", event: "dict[str, Any]") -> None:
        self._introduce()
        self._send({"compile_id": _compile_id(metadata), **event, "counters": self._counts()})

    def _introduce(self) -> None:
        """Say which torch this is and how its caches are set, where that is news."""
        torch = {"version": self._version, "rank": _rank(), "settings": _settings()}
        torch["directory"] = os.environ.get("TORCHINDUCTOR_CACHE_DIR")  # torch sets it by itself
        if torch != self._introduced:
            self._introduced = torch
            self._send({"event": "torch", **torch})

    def _wrap_writes(self) -> None:
        """Wrap the writes of both caches as soon as they are imported."""
        for tier, (module, name) in _CACHES.items():
            owner = getattr(sys.modules.get(module), name, None)
            if owner is None or tier in self._wrapped:
                continue
            self._wrapped.add(tier)
            write = getattr(owner, _WRITE, None)
            if write is None:
                detail = f"torch {self._version} writes its entries otherwise ({_TRIED})"
                self._send({"event": "unobserved", "detail": detail})
            else:
                setattr(owner, _WRITE, staticmethod(self._telling(tier, write)))

    def _telling(self, tier: str, write: Any) -> Any:
        def tell_and_write(key: Any, content: Any, *args: Any, **kwargs: Any) -> Any:
            done = write(key, content, *args, **kwargs)
            event = {"event": "torch-saved", "tier": tier, "key": key, "size_bytes": len(content)}
            safely(self._send, lambda: self._send(event))
            return done

        return tell_and_write

    def _counts(self) -> "dict[str, int]":
        before = self._before
        return {name: max(0, n - before.get(name, 0)) for name, n in _counters().items()}

    def on_exit(self) -> None:
        """The process ends in good order."""
        safely(self._send, self._introduce)
        safely(self._send, lambda: self._send({"event": "torch-end", "counters": self._counts()}))


def attach(torch: Any) -> None:
    """Send what the torch that was just imported does with its caches to the parent process."""
    send = channel.CHANNEL.send
    version = str(getattr(torch, "__version__", "unknown"))
    if not hasattr(sys.modules.get("torch._logging._internal"), "trace_log"):
        detail = f"torch {version} has no structured trace to listen to ({_TRIED})"
        send({"event": "unobserved", "detail": detail})
        return
    listener = TorchListener(version, send)
    logging.getLogger(_TRACE).addHandler(listener)
    atexit.register(listener.on_exit)


def _owner() -> "str | None":
    """The class of the ``nn.Module`` whose ``forward`` is compiled.

    Torch has the frame's variables in ``_compile`` of ``torch/_dynamo/convert_frame.py``; a module
    of torch's own is called through a function ``inner(fn)``.
    """
    frames = (frame for frame, _ in walk_stack(sys._getframe()))
    frame = next((f for f in frames if f.f_code.co_name == "_compile"), None)
    local_names = frame.f_locals.get("locals") if frame is not None else None
    if not isinstance(local_names, dict):
        return None
    module = local_names.get(
        "self", getattr(local_names.get("fn"), "__self__", local_names.get("fn"))
    )
    is_module = any(c.__module__ == "torch.nn.modules.module" for c in type(module).__mro__)
    return type(module).__qualname__ if is_module else None


def _look(name: str) -> "dict[str, Any] | None":
    for start, tier in _LOOKS.items():
        if name.startswith(start) and name[len(start) :] in _STATES:
            return {"tier": tier, "outcome": name[len(start) :]}
    return None


def _of_look(payload: Any) -> "dict[str, Any]":
    """The facts of one look; its hundreds of key components stay here."""
    look = json.loads(payload) if isinstance(payload, str) else payload or {}
    saved = look.get("time_saved_ns")
    if saved is None and (saved_ms := look.get("time_saved_ms")) is not None:
        saved = saved_ms * 1e6
    taken = look.get("time_taken_ns")
    return {
        "key": look.get("key"),
        "reason": _cut(look.get("cache_bypass_reason")),
        "status": look.get("cache_status_detailed"),
        "stored_seconds": None if saved is None else saved / 1e9,
        "seconds": None if taken is None else taken / 1e9,
    }


def _of_metrics(metrics: "dict[str, Any]") -> "dict[str, Any]":
    backward = metrics.get("backward_cumulative_compile_time_us")
    return {
        "function": metrics.get("co_name"),
        "file": metrics.get("co_filename"),
        "line": metrics.get("co_firstlineno"),
        "began_at": metrics.get("start_time"),
        "seconds": (
            metrics.get("entire_frame_compile_time_s") if backward is None else backward / 1e6
        ),
        "backend_seconds": metrics.get("backend_compile_time_s"),
        "inductor_seconds": metrics.get("inductor_compile_time_s"),
        "failure": _cut(metrics.get("fail_reason") or metrics.get("fail_type")),
    }


def _reasons(payload: Any) -> "list[str]":
    """The guards that failed: torch gives a list, which the trace may have made text of."""
    if isinstance(payload, str):
        try:
            payload = json.loads(payload)
        except ValueError:
            payload = [payload]
    return [text for r in payload or () if (text := _cut(r))]


def _of_break(text: str) -> "dict[str, Any]":
    """Place and cause of a graph break, from the text that torch writes for people."""
    place = _BREAK_AT.search(text)
    reason = re.split(r"Reason: ", text, maxsplit=1)[-1].split("User code traceback:")[0].strip()
    if reason.startswith("Encountered graph break"):  # which instruction, then why
        reason = reason.partition("\n\n")[2].strip() or reason
    return {
        "file": place["file"] if place else None,
        "line": int(place["line"]) if place else None,
        "reason": reason.partition("\n")[0][:_TEXT_CHARACTERS],
        "detail": _cut(reason),
    }


def _compile_id(metadata: "dict[str, Any]") -> "str | None":
    """The id as torch writes it (``CompileId`` of ``torch/_guards.py``)."""
    frame = metadata.get("frame_id")
    inner = None if frame is None else f"{frame}/{metadata.get('frame_compile_id')}"
    autograd = metadata.get("compiled_autograd_id")
    if autograd is None:
        return inner
    return f"!{autograd}" + (f"/{inner}" if inner else "")


def _counters() -> "dict[str, int]":
    """Torch's own counters of its caches and of graph breaks."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None) or {}
    by_name = {
        name: int(count)
        for group in ("aot_autograd", "inductor")
        for name, count in dict(counters.get(group) or {}).items()
        if name.startswith(_COUNTED)
    }
    by_name["graph_break"] = sum(dict(counters.get("graph_break") or {}).values())
    return by_name


def _settings() -> "dict[str, Any]":
    settings = {}
    for module, names in _SETTINGS.items():
        config = sys.modules.get(module)
        for name in names if config is not None else ():
            value = getattr(config, name, None)
            if value is None or isinstance(value, bool | int | float | str):
                settings[name] = value
    return settings


def _rank() -> "int | None":
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else None


def _cut(text: Any) -> "str | None":
    """Return a text of torch's as one line; None if it is empty."""
    return " ".join(str(text).split())[:_TEXT_CHARACTERS] if text else None
