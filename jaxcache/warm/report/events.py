"""The events of a run: what the listener in the user's Python sends, parsed and bounded once.

That Python runs the user's program, so nothing it sends is trusted: a value of the wrong type makes
the event one of trouble, and long texts are cut. ``injected/`` writes these events; their fields
have the same names there.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from jaxcache.cache.recipe import Environment, Request
from jaxcache.cache.untrusted_json import Scalar, build
from jaxcache.core.call_site import NamedProgram
from jaxcache.core.compile_event import CompileFinished, FunctionCompiled, RunEvent
from jaxcache.entry.names import TorchTier

#: Longer lines are dropped: nothing that the listener sends comes near.
MAX_LINE_BYTES = 4 << 20


@dataclass(slots=True, kw_only=True)
class ProcessStarted(RunEvent):
    """A Python has imported jax, or is about to."""

    pid: int
    executable: str = ""
    argv: tuple[str, ...] = ()
    cwd: str = ""
    program: NamedProgram | None = None


@dataclass(slots=True, kw_only=True)
class JaxLoaded(RunEvent):
    """The jax of a process."""

    jax: str | None = None
    jaxlib: str | None = None
    jaxlib_digest: str | None = None
    xla_flags: str | None = None
    key_settings: Mapping[str, Scalar] | None = None
    """The settings of the environment that act on keys."""
    hash_seed: str = ""
    """``PYTHONHASHSEED``; ``random`` where Python chose it."""


@dataclass(slots=True, kw_only=True)
class LiveSetting:
    """A setting of the live layer that is not the default."""

    value: Scalar = None
    origin: str


@dataclass(slots=True, kw_only=True)
class Configured(RunEvent):
    """The settings of the cache, where they are new or have changed."""

    opened_directory: str | None = None
    opened_setting: str | None = None
    """The setting that JAX opened it with, perhaps a relative path."""
    next_directory: str | None = None
    """The opened directory, or the one that JAX would have opened then."""
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    changed: Mapping[str, tuple[Scalar, str]] = field(default_factory=dict)
    """Value and origin of each setting that acts on keys and is not JAX's default."""
    live: Mapping[str, LiveSetting] | None = None
    """None where the live layer is off."""


@dataclass(slots=True, kw_only=True)
class Hardware(RunEvent):
    """A backend with one kind of device, as keys know it."""

    backend: int
    platform: str | None = None
    platform_version: str | None = None
    device_kind: str | None = None
    topology_fingerprint: str | None = None
    device_count: int | None = None
    process_count: int | None = None


@dataclass(slots=True, kw_only=True)
class CompileStarted(RunEvent):
    """A compile request has begun."""

    number: int
    module: str
    function: str | None = None
    file: str | None = None
    line: int | None = None
    backend: int | None = None
    recorded: Request | None = None
    """The inputs needed to compile it again; bytes are named by their SHA-256."""
    environment: Environment | None = None


class PhaseSpan(NamedTuple):
    """A span of time that belongs to one phase of a start."""

    start: float
    end: float
    phase: Literal["import", "backend", "trace", "lower", "key", "load", "compile"]


@dataclass(slots=True, kw_only=True)
class GuardPassed(RunEvent):
    """A guard that only warns or counts has met a step that it does not expect."""

    step: Literal["trace", "load", "compile"]
    function: str
    file: str | None = None
    line: int | None = None


@dataclass(slots=True, kw_only=True)
class PhasesMeasured(RunEvent):
    """The phases of one process since its last such event."""

    spans: tuple[PhaseSpan, ...]


@dataclass(slots=True, kw_only=True)
class EntryFetched(RunEvent):
    """The live layer is about to write an entry of a tier, perhaps before JAX requests it."""

    key: str


@dataclass(slots=True, kw_only=True)
class SketchSent(RunEvent):
    """The sketch of a program that is compiled; it may arrive after the compile has ended."""

    number: int
    key: str
    sketch: str


@dataclass(slots=True, kw_only=True)
class Message(RunEvent):
    """A sentence for the reader, or the reason why nothing can be done here."""

    event: str
    """``trouble``, ``unobserved``, ``remark``, ``jax-failed``, ``no-module``, ``no-function``,
    ``refused``, ``marker``, ``guarded`` or ``no-tier``."""
    detail: str = ""
    executable: str | None = None
    code: str | None = None
    hint: str | None = None


@dataclass(slots=True, kw_only=True)
class ProcessExited(RunEvent):
    """A process has ended in good order."""

    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class TorchLoaded(RunEvent):
    """The torch of a process with the settings of its caches, where they are new or changed."""

    version: str
    directory: str | None = None
    rank: int | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class TorchEvent(RunEvent):
    """Something that happened while torch compiled."""

    compile_id: str | None = None
    """``FRAME/COMPILE``, as torch numbers them in one process."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Torch's own counters of its caches by then."""


@dataclass(slots=True, kw_only=True)
class TorchGraph(TorchEvent):
    """One look into a cache of torch's has ended."""

    tier: TorchTier
    outcome: Literal["hit", "miss", "bypass"]
    key: str | None = None
    reason: str | None = None
    """The cause of a bypass, in torch's words."""
    status: str | None = None
    """The kind of a miss: ``full_miss`` or ``guard_miss``."""
    stored_seconds: float | None = None
    """Compile time of a hit, from when it was written."""
    seconds: float | None = None
    """Compile time of a miss."""


@dataclass(slots=True, kw_only=True)
class TorchSaved(RunEvent):
    """An entry was written."""

    tier: TorchTier
    key: str
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class TorchCompiled(TorchEvent):
    """Torch has compiled a frame, or its backward pass when that first ran."""

    direction: Literal["forward", "backward"]
    owner: str | None = None
    """The class of the module whose method it is."""
    function: str | None = None
    file: str | None = None
    line: int | None = None
    began_at: float | None = None
    seconds: float | None = None
    backend_seconds: float | None = None
    """The part spent in the backend: AOTAutograd and Inductor, or loading what they had kept."""
    inductor_seconds: float | None = None
    failure: str | None = None


@dataclass(slots=True, kw_only=True)
class TorchBreak(TorchEvent):
    """A graph break."""

    reason: str
    detail: str | None = None
    file: str | None = None
    line: int | None = None


@dataclass(slots=True, kw_only=True)
class TorchRecompile(TorchEvent):
    """A frame is compiled again: none of its compiled codes fits."""

    guards: tuple[str, ...] = ()
    """The guard that failed of each, in torch's words."""


@dataclass(slots=True, kw_only=True)
class TorchExited(RunEvent):
    """A process with torch has ended in good order."""

    counters: Mapping[str, int] = field(default_factory=dict)


_KINDS: dict[str, type] = {
    "start": ProcessStarted,
    "jax": JaxLoaded,
    "settings": Configured,
    "backend": Hardware,
    "begin": CompileStarted,
    "module": CompileFinished,
    "fetched": EntryFetched,
    "guard-passed": GuardPassed,
    "sketch": SketchSent,
    "phases": PhasesMeasured,
    "colocated": FunctionCompiled,
    "end": ProcessExited,
    "torch": TorchLoaded,
    "torch-graph": TorchGraph,
    "torch-saved": TorchSaved,
    "torch-compiled": TorchCompiled,
    "torch-break": TorchBreak,
    "torch-recompile": TorchRecompile,
    "torch-end": TorchExited,
    **dict.fromkeys(("guarded", "no-tier"), Message),
    **dict.fromkeys(("trouble", "unobserved", "remark", "jax-failed"), Message),
    **dict.fromkeys(("no-module", "no-function", "refused", "marker"), Message),
}


def parse_event(line: bytes, process: int) -> RunEvent | None:
    """Read one line of the listener; None if it is not an event, or of an unknown kind."""
    try:
        wire = json.loads(line)
    except (ValueError, RecursionError):
        return None
    name = wire.get("event") if isinstance(wire, dict) else None
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        return None
    at = wire.get("at")
    at = at if isinstance(at, int | float) else 0.0
    wire |= {"process": process, "at": at}
    if kind is Configured:
        wire["settings"] = {n: v for n, v in wire.items() if n.startswith("jax_")}
    try:
        event: RunEvent = build(kind, wire)
    except ValueError as error:
        detail = f"an event {name!r} of the listener cannot be read: {error}"
        return Message(process=process, at=0.0, event="trouble", detail=detail)
    return event
