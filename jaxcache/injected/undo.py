"""Undo one part of the key of a miss after the other, and look whether the cache has that entry.

A key is a hash over its parts. If it is another entry's with one part as it would be without a
flag, a setting or a device, then that alone is the cause of the miss: nothing need be recorded of
the program that wrote the entry. ``jaxcache explain`` wants this, of scripts and commands.

``JAXCACHE_UNDO`` is a JSON list of the paths that the cache has had. Whatever is not certain is
left out: first JAX's own key is made in the same way, and if that fails nothing is tried.
"""

import copy
import functools
import hashlib
import itertools
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..core import seams, wire
from ..core.seams import compiling
from . import undo_child
from .process_observer import CompileRequest, entry_file

_UNDO = "JAXCACHE_UNDO"
_MOST_KEYS = 32
#: For all keys of a process; one of a large program takes 50 ms.
_KEYS_SECONDS = 2.0
#: For the process that has other flags: 0.3 s, 1 s with settings, but on a busy machine.
_CHILD_SECONDS = 20.0
#: All subsets of so many flags are tried; of more, each alone and all of them.
_SUBSETS = 4
_DEVICE_FLAG = "--xla_force_host_platform_device_count"
_DEVICE_VARIABLE = "JAX_NUM_CPU_DEVICES"
_DEVICE_COUNTS = (1, 2, 4, 8, 16, 32)
_METADATA = "jax_compilation_cache_include_metadata_in_key"
_DIRECTORY = "jax_compilation_cache_dir"
_CODECS = ("zstandard", "zlib")

_Hasher = Callable[[Any], None]
_Part = dict[str, Any]
_Described = dict[tuple[str, str], dict[str, str]]
"""By XLA's flags and the setting that is undone: the options, and the topology of a CPU."""


class _Change(NamedTuple):
    """Parts of a key that are undone together."""

    parts: "tuple[_Part, ...]" = ()
    hashers: "Mapping[str, _Hasher]" = types.MappingProxyType({})
    """By the component of the key that they replace."""
    edits: "tuple[Callable[[Any], Any], ...]" = ()
    """Functions from compile options to others."""

    def __add__(self, other: "_Change") -> "_Change":  # type: ignore[override]
        hashers = {**self.hashers, **other.hashers}
        return _Change(self.parts + other.parts, hashers, self.edits + other.edits)


class Undo:
    """Looks for the entries that a process missed by one part of their keys."""

    def __init__(self, jax: Any) -> None:
        self._jax = jax
        self._paths: list[str] = json.loads(os.environ[_UNDO])
        self._seconds_left = _KEYS_SECONDS
        self._environment = _first_environment()

    def look(self, request: CompileRequest, directory: "str | None") -> None:
        """Note in a request that missed without which parts of its key there is an entry."""
        if directory is None or "://" in directory or self._seconds_left <= 0:
            return
        started = time.thread_time()
        try:
            self._find(request, directory, started + self._seconds_left)
        except Exception:  # a JAX that is not known: nothing is claimed
            self._seconds_left = 0.0
        self._seconds_left -= time.thread_time() - started

    def _find(self, request: CompileRequest, directory: str, deadline: float) -> None:
        attempt = _Attempt(request)
        if not attempt.is_understood():
            return
        for change in itertools.islice(self._changes(request), _MOST_KEYS):
            key = attempt.key_with(change)
            if key != request.key and entry_file(directory, key) is not None:
                request.add({"undone": change.parts, "undone_key": key})
                return
            if time.thread_time() > deadline:
                return

    def _changes(self, request: CompileRequest) -> "Iterator[_Change]":
        _, devices, options, backend = request.key_inputs
        flags, settings = self._by_environment(backend)
        settings = [*settings, *self._metadata(request)]
        counts = self._device_counts(backend, devices)
        yield from flags
        yield from settings
        yield from self._codecs(request)
        yield from self._cache_paths(options)
        yield from counts
        yield from self._overrides(options)
        together = [*flags[-1:], *settings, *counts[:1]]
        if len(together) > 1:
            yield functools.reduce(_Change.__add__, together)

    # Flags and settings -----------------------------------------------------------------------

    @functools.lru_cache(maxsize=4)  # noqa: B019 - one object a process
    def _by_environment(self, backend: Any) -> "tuple[list[_Change], list[_Change]]":
        """Flags, all of them last, and settings of the environment that are compile options."""
        tokens = seams.flags()
        hashed = [n for n, (_, flag) in enumerate(tokens) if seams.is_hashed(flag)]
        subsets = [*_subsets(hashed)]
        settings = self._settings_of_options()
        own = _of_xla(tokens)
        remaining = [[t for n, t in enumerate(tokens) if n not in gone] for gone in subsets]
        environments = [(own, ""), *((_of_xla(kept), "") for kept in remaining)]
        environments += [(own, name) for name in settings]
        described = self._describe(backend, settings, environments)
        flags = []
        for gone, kept, environment in zip(subsets, remaining, environments[1:]):  # noqa: B905
            if environment[0] != own and not described:
                continue  # what XLA makes of the others is not known
            text = "".join(sorted(flag.strip() for _, flag in kept if seams.is_hashed(flag)))
            parts = (
                self._flag_part(source, [tokens[n] for n in gone], kept)
                for source in dict.fromkeys(tokens[n][0] for n in gone)
            )
            change = self._in_environment(described, environments[0], environment)
            of_flags: _Hasher = functools.partial(_update, text.encode())
            hashers = {**change.hashers, "XLA flags": of_flags}
            flags.append(_Change((*parts,), hashers, change.edits))
        undone = []
        for name in settings if described else ():
            change = self._in_environment(described, environments[0], (own, name))
            part = self._variable_part("setting", name.upper(), os.environ[name.upper()])
            if described[own, name] != described[environments[0]]:
                undone.append(_Change((part,), {}, change.edits))
        return flags, undone

    def _in_environment(
        self, described: "_Described", own: "tuple[str, str]", other: "tuple[str, str]"
    ) -> _Change:
        """Return the change to the options and the topology of another environment."""
        if other == own or not described:
            return _Change()
        before, after = (bytes.fromhex(described[one]["options"]) for one in (own, other))
        hashers: dict[str, _Hasher] = {}
        if topology := described[other].get("topology"):
            hashers["accelerator_config"] = functools.partial(_update, bytes.fromhex(topology))
        return _Change((), hashers, (functools.partial(self._merge, before, after),))

    def _flag_part(self, source: str, gone: Any, kept: Any) -> _Part:
        value = " ".join(flag for variable, flag in gone if variable == source)
        restored = " ".join(flag for variable, flag in kept if variable == source)
        return _part("flag", source, value, "", restored if self._is_outside(source) else None)

    def _settings_of_options(self) -> "dict[str, Any]":
        """Return the settings of the environment that JAX makes compile options of."""
        return {
            name: value
            for name, value in seams.settings_of_options().items()
            if name.upper() in os.environ and isinstance(value, (bool, int, float, str))
        }

    def _metadata(self, request: CompileRequest) -> "Iterator[_Change]":
        """The setting that puts source lines into the key."""
        setting = seams.find_setting(_METADATA)
        if setting is None or not setting.value or _METADATA.upper() not in os.environ:
            return
        hash_computation = request.hashers["computation"]

        def without(digest: Any) -> None:
            with setting(False):
                hash_computation(digest)

        value = os.environ[_METADATA.upper()]
        part = self._variable_part("setting", _METADATA.upper(), value)
        yield _Change((part,), {"computation": without})

    def _describe(
        self,
        backend: Any,
        settings: "Mapping[str, Any]",
        environments: "Sequence[tuple[str, str]]",
    ) -> "_Described":
        """Return what processes have in other environments; empty where that is unknown.

        Args:
            environments: XLA's flags, and the name of a setting that is undone, if any.
        """
        wanted = [*dict.fromkeys(environments)]
        if len(wanted) < 2 or not sys.executable:
            return {}
        devices = backend.local_devices() if backend.platform == "cpu" else None
        request = {
            "path": sys.path,
            "devices": None if devices is None else len(devices),
            "settings": settings,
            "environments": wanted,
        }
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JAXCACHE_")}
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", undo_child.__file__],
                input=json.dumps(request).encode(),
                env={**environment, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_CHILD_SECONDS,
                check=False,
            )
            answers = [json.loads(line) for line in done.stdout.splitlines()]
        except (OSError, ValueError, subprocess.SubprocessError):
            return {}
        if len(answers) != len(wanted):
            return {}
        own = compiling.describe_topology(devices).hex() if devices else ""
        if answers[0].get("topology") != own:  # this process has more than flags
            answers = [{"options": answer["options"]} for answer in answers]
        return dict(zip(wanted, answers))  # noqa: B905 - Python 3.10

    def _merge(self, old: bytes, new: bytes, options: Any) -> Any:
        """Options with what differs between two others, but for what JAX has set itself."""
        merged = _merge(options.SerializeAsString(), old, new)
        return compiling.read_options(merged)

    # What else is in a key ----------------------------------------------------------------------

    def _codecs(self, request: CompileRequest) -> "Iterator[_Change]":
        own = hashlib.sha256()
        request.hashers["compression"](own)
        for value, other in (_CODECS, _CODECS[::-1]):
            if own.digest() == hashlib.sha256(value.encode()).digest():
                part = _part("codec", "zstandard", value, other, None)
                yield _Change((part,), {"compression": functools.partial(_update, other.encode())})

    def _cache_paths(self, options: Any) -> "Iterator[_Change]":
        """The paths that the cache has had, other spellings of its path, and none."""
        now = str(self._jax.config.jax_compilation_cache_dir or "")
        debug = options.executable_build_options.debug_options
        own = {
            name: getattr(debug, name) for name in compiling.PATH_OPTIONS if hasattr(debug, name)
        }
        used = [name for name in own if own[name]] or [*own][:1]
        spellings = (os.path.realpath(now), os.path.abspath(now), os.path.relpath(now))
        paths = dict.fromkeys((*self._paths, *spellings)) if now else {}
        for path in (*paths, ""):
            chosen = {name: os.path.join(path, name) if path else "" for name in used}
            if all(chosen[name] == own[name] for name in used):
                continue
            part = _part("path", _DIRECTORY, now if any(own.values()) else "", path)
            yield _Change((part,), edits=(functools.partial(_with_paths, chosen),))

    def _device_counts(self, backend: Any, devices: Any) -> "list[_Change]":
        """Other numbers of CPU devices, one first; in a program of several processes none."""
        own = len(backend.local_devices())
        if backend.platform != "cpu" or len(backend.devices()) != own or devices.size != 1:
            return []
        changes = []
        for count in _DEVICE_COUNTS:
            if count != own:
                hasher = functools.partial(_update, self._topology(count))
                part = self._device_part(own, count)
                changes.append(_Change((part,), {"accelerator_config": hasher}))
        return changes

    @functools.lru_cache(maxsize=8)  # noqa: B019 - one object a process
    def _topology(self, count: int) -> bytes:
        """What JAX hashes of a CPU that shows so many devices."""
        parts: list[bytes] = []
        compiling.hash_cpus(types.SimpleNamespace(update=parts.append), count)
        return b"".join(parts)

    def _device_part(self, own: int, count: int) -> _Part:
        flags = os.environ.get("XLA_FLAGS", "").split()
        others = [flag for flag in flags if flag.split("=")[0] != _DEVICE_FLAG]
        name = _DEVICE_VARIABLE
        restored: str | None = str(count) if count > 1 else ""
        if len(others) < len(flags):
            name = "XLA_FLAGS"
            restored = " ".join([*others, *([f"{_DEVICE_FLAG}={count}"] if count > 1 else [])])
        if own > 1 and not self._is_outside(name):
            restored = None
        return _part("devices", name, str(own), str(count), restored)

    def _overrides(self, options: Any) -> "Iterator[_Change]":
        """The ``compiler_options`` of one ``jit``: each alone, then all."""
        own = [*options.env_option_overrides]
        for gone in _subsets(range(len(own))):
            kept = [pair for n, pair in enumerate(own) if n not in gone]
            value = " ".join("=".join(map(str, own[n])) for n in gone)
            yield _Change(
                (_part("option", "compiler_options", value, ""),),
                edits=(functools.partial(_with_overrides, kept),),
            )

    def _variable_part(self, kind: str, name: str, value: str) -> _Part:
        return _part(kind, name, value, "", "" if self._is_outside(name) else None)

    def _is_outside(self, variable: str) -> bool:
        """Whether a variable has the value that the process began with."""
        if self._environment is None:
            return variable in os.environ
        return self._environment.get(variable) == os.environ.get(variable, "")


class _Attempt:
    """Makes the key of one request again, with parts that are replaced."""

    def __init__(self, request: CompileRequest) -> None:
        self._request = request
        self._computation = hashlib.sha256()
        request.hashers["computation"](self._computation)

    def is_understood(self) -> bool:
        """Whether JAX's own key comes out."""
        read = compiling.read_options
        unchanged = _Change(edits=(lambda options: read(options.SerializeAsString()),))
        return self.key_with(unchanged) == self._request.key

    def key_with(self, change: _Change) -> str:
        """The key with some of its parts undone."""
        _, _, options, backend = self._request.key_inputs
        hashers: dict[str, _Hasher] = {**self._request.hashers, **change.hashers}
        if change.edits:
            options = copy.deepcopy(options)
            for edit in change.edits:
                options = edit(options)
            hashers["compile_options"] = lambda digest: compiling.hash_options(
                digest, options, backend.platform
            )
        digest = self._computation.copy()
        if "computation" in change.hashers:
            digest = hashlib.sha256()
            hashers["computation"](digest)
        for name, hasher in hashers.items():
            if name != "computation":
                hasher(digest)
        return f"{self._request.module}-{digest.hexdigest()}"


def _part(kind: str, name: str, value: str, undone: str, restored: "str | None" = None) -> _Part:
    """See ``UndonePart`` of ``core/compile_event.py``."""
    return {"kind": kind, "name": name, "value": value, "undone": undone, "restored": restored}


def _update(data: bytes, digest: Any) -> None:
    digest.update(data)


def _subsets(items: "Sequence[int]") -> "Iterator[tuple[int, ...]]":
    """The subsets of some items that are tried, all of them last."""
    sizes = range(1, len(items)) if len(items) <= _SUBSETS else (1,)
    for size in sizes:
        yield from itertools.combinations(items, size)
    if items:
        yield tuple(items)


def _of_xla(tokens: "Sequence[tuple[str, str]]") -> str:
    """The value of ``XLA_FLAGS`` with these flags."""
    return " ".join(flag for variable, flag in tokens if variable == "XLA_FLAGS")


def _with_paths(chosen: "Mapping[str, str]", options: Any) -> Any:
    for name, path in chosen.items():
        setattr(options.executable_build_options.debug_options, name, path)
    return options


def _with_overrides(kept: Any, options: Any) -> Any:
    options.env_option_overrides = kept
    return options


def _first_environment() -> "dict[str, str] | None":
    """The environment that the process began with; None where the system does not tell."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return None
    return dict(os.fsdecode(pair).partition("=")[::2] for pair in pairs if pair)


# Messages of protobuf: CompileOptionsProto has ExecutableBuildOptionsProto as its field 3, and that
# has DebugOptions as its field 3 (xla/pjrt/proto/compile_options.proto).
_NESTED = 3
_LEVELS = 2


def _merge(own: bytes, old: bytes, new: bytes, levels: int = _LEVELS) -> bytes:
    """The fields of a message as in ``new`` where it has them as ``old`` has, and as ours else."""
    ours, before, after = (_read_fields(message) for message in (own, old, new))
    merged: list[wire.Field] = []
    for number in sorted({*ours, *before, *after}):
        fields = [side.get(number, []) for side in (ours, before, after)]
        contents = [next(wire.select(some, number), b"") for some in fields if len(some) == 1]
        if number == _NESTED and levels and len(contents) == len(fields):
            one, other, another = map(bytes, contents)
            inner = _merge(one, other, another, levels - 1)
            merged.append(wire.Field(number, wire.BYTES, memoryview(inner)))
            continue
        merged += fields[2] if fields[0] == fields[1] else fields[0]
    return b"".join(map(wire.write_field, merged))


def _read_fields(message: bytes) -> "dict[int, list[wire.Field]]":
    """The fields of a message by number."""
    fields: dict[int, list[wire.Field]] = {}
    for field in wire.walk(memoryview(message), wire.Budget()):
        fields.setdefault(field.number, []).append(field)
    return fields


def start(jax: Any) -> "Undo | None":
    """Return what undoes parts of keys, where that is wanted and this JAX is known."""
    if not os.environ.get(_UNDO):
        return None
    try:
        return Undo(jax)
    except ValueError:
        return None
