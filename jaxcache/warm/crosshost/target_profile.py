"""A target profile: one file with everything that a host's keys depend on. See docs/target.md.

The profile of this host is captured, and compared with that of a target.
"""

import base64
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from jaxcache.cache.allow_lists import (
    MOST_DEVICES,
    is_allowed_setting,
    is_allowed_variable,
    kept_flags,
)
from jaxcache.cache.bundle.compat import PORTABLE_FIX, Forecast
from jaxcache.cache.doctor.inputs import read_rules
from jaxcache.cache.ledger.record import LedgerRecord
from jaxcache.cache.untrusted_json import Base64, Text, build, parse_json
from jaxcache.core.machine import hashes_path
from jaxcache.core.names import XLA_CACHES
from jaxcache.core.system import open_regular
from jaxcache.errors import UsageError, system_errors_as
from jaxcache.units import rfc3339
from jaxcache.warm.child.child import find_python, query_once

FORMAT = "jaxcache-target"
VERSION = 1
CACHE_DIR = "jax_compilation_cache_dir"
#: A profile is some kilobytes; the topology of a large pod would be some hundred.
MAX_PROFILE_BYTES = 8 << 20
ProfilePlatform = Literal["cpu", "gpu", "cuda", "rocm", "tpu"]


class ProfileError(UsageError):
    """The file is not a target profile, or one that cannot be used."""

    code = "bad-profile"


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor of a host."""

    machine: Text | None = None
    name: Text | None = None
    features: tuple[Text, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetProfile:
    """The facts that keys of a host depend on, as the host itself reported them."""

    captured_at: Text
    platform: ProfilePlatform
    """``cpu``, ``gpu``, ``tpu``: what JAX puts into the key."""
    lowering_platform: ProfilePlatform
    """``cpu``, ``cuda``, ``rocm``, ``tpu``: what JAX lowers for."""
    platform_version: Text
    device_kinds: tuple[Text, ...]
    """One for each device, in the order of ``jax.devices()``."""
    device_ids: tuple[int, ...]
    device_processes: tuple[int, ...] = ()
    """The process of each device."""
    process_count: int = 1
    process_index: int = 0
    """The process of a pod that the profile is of."""
    topology: Base64 | None = None
    """``PjRtTopologyDescriptionProto``, from JAX 0.11 on."""
    topology_fingerprint: Text | None = None
    """64 bits in decimal; from JAX 0.10 on, in the key."""
    target_config: Text | None = None
    """``GpuTargetConfigProto`` as text, on GPU."""
    python_version: Text
    jax_version: Text
    jaxlib_version: Text
    jaxlib_digest: Text | None = None
    plugins: Mapping[Text, Text]
    """Versions by name of the package: PJRT plugins, libtpu, CUDA's libraries."""
    key_codec: Literal["zstandard", "zlib"]
    """As ``get_cache_key`` in jax/_src/compilation_cache.py names the codec."""
    codec: Literal["zstd", "zlib"]
    """The codec of entries there."""
    cpu: Cpu
    environment: Mapping[Text, Text]
    """``XLA_FLAGS``, ``LIBTPU_INIT_ARGS`` and JAX's settings, as set there."""
    settings: Mapping[Text, Any]
    """Settings of the cache that enter the compile options."""

    @property
    def device_count(self) -> int:
        """The number of devices that one process has there."""
        if self.process_count == 1:
            return len(self.device_ids)
        return self.device_processes.count(self.process_index)

    @property
    def is_complete(self) -> bool:
        """Whether the topology can be rebuilt elsewhere: from JAX 0.11 on."""
        return self.topology is not None and self.topology_fingerprint is not None

    @property
    def devices(self) -> str:
        """The devices in words: ``8 × NVIDIA H200``."""
        kinds = Counter(self.device_kinds)
        text = ", ".join(f"{count} × {kind}" for kind, count in kinds.items())
        if self.process_count == 1:
            return text
        return f"{text} of {self.process_count} processes"

    def to_json(self) -> dict[str, Any]:
        """The document that :func:`parse_profile` reads."""
        document = {"format": FORMAT, "version": VERSION, **asdict(self)}
        if self.process_count == 1:
            for name in ("device_processes", "process_count", "process_index"):
                del document[name]
        if self.topology is not None:
            document["topology"] = base64.b64encode(self.topology).decode()
        return document

    def to_bytes(self) -> bytes:
        """The contents of its file."""
        return json.dumps(self.to_json(), indent=1).encode() + b"\n"


_MAKE = "jaxcache target capture FILE makes one, on the host that it is about"


def read_profile(path: str) -> TargetProfile:
    """Read a profile.

    Raises:
        ProfileError: ``no-profile``, ``bad-profile``, or ``newer-profile``.
    """
    failure = f"cannot read {path}"
    with (
        system_errors_as(ProfileError, failure, code="no-profile", hint=_MAKE),
        open_regular(path) as file,
    ):
        data = file.read(MAX_PROFILE_BYTES + 1)
    if len(data) > MAX_PROFILE_BYTES:
        raise ProfileError(f"{path} is too large to be a target profile")

    def bad(_message: str) -> ProfileError:
        return ProfileError(f"{path} is not a target profile")

    return parse_profile(parse_json(data, bad, max_values=MAX_PROFILE_BYTES), path)


def read_profiles(path: str) -> tuple[TargetProfile, ...]:
    """Read the profile of a host, or the directory with those of all processes of a pod.

    Raises:
        ProfileError: as :func:`read_profile`; ``incomplete-pod``, ``mixed-pod``.
    """
    if not os.path.isdir(path):
        profile = read_profile(path)
        if profile.process_count > 1:
            raise ProfileError(
                f"{path} is of process {profile.process_index} of {profile.process_count}",
                code="incomplete-pod",
                hint="name the directory that has the profiles of all processes",
            )
        return (profile,)
    names = sorted(name for name in os.listdir(path) if name.endswith(".json"))[:MOST_DEVICES]
    profiles = [read_profile(os.path.join(path, name)) for name in names]
    profiles.sort(key=attrgetter("process_index"))
    if not profiles:
        raise ProfileError(f"no profile is in {path}", code="incomplete-pod", hint=_CAPTURE)
    count = profiles[0].process_count
    if [p.process_index for p in profiles] != list(range(count)):
        raise ProfileError(
            f"{path} has the profiles of {len(profiles)} processes, and the pod has {count}",
            code="incomplete-pod",
            hint=_CAPTURE,
        )
    differs = next(
        (n for n in _SHARED if any(getattr(p, n) != getattr(profiles[0], n) for p in profiles)), ""
    )
    if differs:
        raise ProfileError(
            f"the profiles in {path} are not of one pod: they differ in {differs}",
            code="mixed-pod",
            hint="remove them, and capture all profiles again, with one setup on all hosts",
        )
    if list(profiles[0].device_processes) != sorted(profiles[0].device_processes):
        raise ProfileError(
            "jax.devices() on the target interleaves the processes; CPU devices cannot reproduce "
            "that order",
            code="mixed-pod",
            hint="warm on the pod itself",
        )
    return tuple(profiles)


_CAPTURE = "on every host, as process of the pod: jaxcache target capture DIR/"
#: What all processes of a pod have in common.
_SHARED = (
    *("process_count", "device_ids", "device_processes", "device_kinds", "platform"),
    *("lowering_platform", "platform_version", "jax_version", "jaxlib_version", "key_codec"),
    *("codec", "environment", "settings"),
)


def pod_file(directory: str, profile: TargetProfile) -> str:
    """Return the file of one process of a pod, in a directory that all of them write to."""
    number = profile.process_index
    count = profile.process_count
    return os.path.join(directory, f"process-{number:0{len(str(count - 1))}}-of-{count}.json")


def make_profile(facts: Mapping[str, Any], *, now_ns: int) -> TargetProfile:
    """Make a profile of the answer of ``injected/describe.py``.

    Raises:
        ProfileError: it is something else.
    """
    return parse_profile(
        {
            **facts,
            "codec": facts.get("written_codec"),
            "format": FORMAT,
            "version": VERSION,
            "captured_at": rfc3339(now_ns),
        },
        "the answer of jax",
    )


def parse_profile(document: Any, origin: str) -> TargetProfile:
    """Check a document and make a profile of it; fields that are not known are left alone.

    Args:
        origin: what to call it in a message.

    Raises:
        ProfileError: ``bad-profile``, or ``newer-profile``.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ProfileError(f"{origin} is not a target profile")
    if document.get("version") != VERSION:
        raise ProfileError(
            f"{origin} is of version {document.get('version')!r}, and known is {VERSION}",
            code="newer-profile",
            hint="upgrade jaxcache, or capture the profile again",
        )

    def bad(message: str) -> ProfileError:
        return ProfileError(
            f"{origin} is not a target profile: {message}",
            hint=_MAKE,
        )

    try:
        profile = build(TargetProfile, document)
    except ValueError as error:
        raise bad(str(error)) from error
    fingerprint = profile.topology_fingerprint
    digits = re.fullmatch(r"\d{1,20}", "0" if fingerprint is None else fingerprint)
    if not digits or int(digits[0]) >= 1 << 64:
        raise bad(f"topology_fingerprint must be an unsigned 64-bit decimal (got {fingerprint!r})")
    count = len(profile.device_ids)
    ids = profile.device_ids
    if not 1 <= count <= MOST_DEVICES or count != len(profile.device_kinds) or min(ids) < 0:
        raise bad(
            f"device_ids must be 1 to {MOST_DEVICES} numbers from 0, one for each of device_kinds"
        )
    processes = profile.process_count
    index = profile.process_index
    if not 0 <= index < processes <= MOST_DEVICES:
        raise bad(
            f"process_index must be below process_count, at most {MOST_DEVICES} (got {index})"
        )
    if processes > 1 and (
        len(profile.device_processes) != count
        or set(profile.device_processes) != set(range(processes))
    ):
        raise bad(
            "device_processes must name a process for each device, and each process at least once"
        )
    if forbidden := next(_forbidden(profile), None):
        if "PGLE" in forbidden.partition("=")[0].upper():
            raise ProfileError(
                f"{origin} sets {forbidden[:200]}, which enables PGLE: its keys depend on profiles "
                "recorded on the target, and cannot be computed here",
                code="profile-guided",
                hint="unset it where the profile is captured; warm guided entries on the target",
            )
        raise ProfileError(
            f"{origin} sets {forbidden[:200]}, and a profile may only set XLA_FLAGS and "
            "LIBTPU_INIT_ARGS to known flags that name no file, and known settings of JAX",
            hint="unset it where the profile is captured, and capture it again",
        )
    return profile


def _forbidden(profile: TargetProfile) -> Iterator[str]:
    for name, value in profile.environment.items():
        if "\0" in value or not is_allowed_variable(name, value):
            yield f"{name}={value}"
    for name, value in profile.settings.items():
        is_path = isinstance(value, str) and len(value) < 4096 and value.isprintable()
        # The directory is hashed where XLA caches kernels below it.
        is_allowed = (name == CACHE_DIR and is_path) or value is None
        if not is_allowed and not is_allowed_setting(name, value):
            yield f"{name}={value}"


_CAPTURE_SECONDS = 300


def capture_profile(python: str | None = None, *, now_ns: int, pod: bool = False) -> TargetProfile:
    """The profile of this host, as the jax of one Python sees it.

    Args:
        python: an interpreter that has jax; our own by default.
        pod: join the processes on other hosts first, which capture at the same time.

    Raises:
        NoJaxError: it has none, cannot run, or finds no device.
        ProfileError: ``several-processes`` if hosts work together and ``pod`` is not set;
            ``no-pod`` if the other hosts cannot be determined.
    """
    python = find_python(python)
    facts = query_once(
        python, "describe.capture", *(["pod"] if pod else []), seconds=_CAPTURE_SECONDS
    )
    if "no_pod" in facts:
        raise ProfileError(
            f"this process could not join the others of its pod: {facts['no_pod']}",
            code="no-pod",
            hint="start it on every host as the program is started; without a cluster manager, "
            "set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID",
        )
    if facts.get("process_count", 1) != 1 and not pod:
        raise ProfileError(
            "several hosts work together here, and each needs a profile of its own",
            code="several-processes",
            hint=_CAPTURE,
        )
    return make_profile(facts, now_ns=now_ns)


@dataclass(frozen=True, slots=True)
class ProfileDifference:
    """One thing that is otherwise here."""

    component: str
    """The component of the key, as JAX names it, or what else it is about."""
    target: str
    here: str
    meaning: str
    fix: str | None = None
    """A remedy; None where nothing needs to be done."""
    prevents: bool = False
    """Whether nothing can be warmed for the target from here."""


def compare_profiles(target: TargetProfile, here: TargetProfile) -> tuple[ProfileDifference, ...]:
    """Every difference that matters when warming here for the target, what prevents it first."""
    return tuple(sorted(_differences(target, here), key=lambda d: not d.prevents))


def _differences(target: TargetProfile, here: TargetProfile) -> Iterator[ProfileDifference]:
    rules = read_rules(__file__)

    def differ(
        rule: str, there: str, own: str, differs: bool | None = None, **values: Any
    ) -> Iterator[ProfileDifference]:
        if there != own if differs is None else differs:
            row = rules[rule]
            fields: dict[str, Any] = {"fix": None, "prevents": False, **row}
            for name in ("meaning", "fix"):
                text = row.get(name)
                fields[name] = text and text.format(target=target, here=here, **values)
            yield ProfileDifference(target=there, here=own, **fields)

    yield from differ("jaxlib", target.jaxlib_version, here.jaxlib_version)
    same_jaxlib = target.jaxlib_version == here.jaxlib_version
    builds = same_jaxlib and target.jaxlib_digest != here.jaxlib_digest
    digests = (_short(target.jaxlib_digest), _short(here.jaxlib_digest))
    yield from differ("binaries", *digests, builds)
    yield from differ("jax", f"jax {target.jax_version}", f"jax {here.jax_version}")
    yield from differ("topology", "not recorded", "", not target.is_complete)
    # The compiler makes the fingerprint.
    comparable = same_jaxlib and target.topology_fingerprint is not None
    described = attrgetter("topology_fingerprint" if comparable else "devices")
    fingerprints = (target.topology_fingerprint or "?", here.topology_fingerprint or "?")
    yield from differ("devices", *fingerprints, described(target) != described(here))
    for name, version in target.plugins.items():
        if _compiles(name) and here.plugins.get(name) != version:
            own = here.plugins.get(name, "missing")
            for found in differ("plugin", f"{name} {version}", own, plugin=f"{name}=={version}"):
                yield replace(found, prevents=name not in here.plugins)
    yield from differ("backend", target.platform_version, here.platform_version)
    codecs = target.key_codec != here.key_codec or target.codec != here.codec
    yield from differ("compression", target.key_codec, here.key_codec, codecs)
    for name in sorted({*target.environment, *here.environment}):
        rule = "flags" if name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") else "environment"
        yield from differ(rule, _assigned(name, target), _assigned(name, here))
    releases = [p.python_version.split(".")[:2] for p in (target, here)]
    pythons = (target.python_version, here.python_version)
    yield from differ("python", *pythons, releases[0] != releases[1])


#: What a key is made of, in :class:`ProfileDifference`; packages and builds are not.
_IN_KEYS = (
    *("jax_lib version", "computation", "accelerator_config", "backend version"),
    *("compression", "XLA flags", "environment"),
)


@dataclass(frozen=True, slots=True)
class TargetCheck:
    """The entries of a cache that this host, as the target itself, would look up."""

    entries: int
    for_target: int
    """Entries that were made for the profile, as the ledger knows."""
    looked_up: int
    """Those of them whose keys this host makes, for the programs that they were made of."""
    differences: tuple[ProfileDifference, ...]
    """Parts of keys in which this host differs from the profile."""


def check_target(
    targets: Sequence[TargetProfile],
    here: TargetProfile,
    entries: int,
    records: Iterable[LedgerRecord],
    bound: Sequence[Forecast] = (),
) -> TargetCheck:
    """Count the entries that this host would look up, from their records in the ledger.

    Args:
        targets: one profile, or one for each process of a pod.
        entries: how many are there.
        records: of those that the ledger knows.
        bound: of the entries that miss here because of the cache's path in keys.

    Raises:
        ProfileError: ``mixed-pod`` where the pod here has another number of processes.
    """
    if here.process_count != len(targets):
        raise ProfileError(
            f"the profiles are of {len(targets)} processes, and here are {here.process_count}",
            code="mixed-pod",
            hint="capture the profiles again, and warm with them",
        )
    target = targets[here.process_index]
    here = replace(here, environment=_with_kept_flags(here))
    expected = replace(target, environment=_with_kept_flags(target))
    target_keys = {r.key for r in records if _is_made_for(r, target)}
    missing = [f for f in bound if f.key in target_keys]
    differences = tuple(
        replace(
            d,
            meaning="in the key: this host looks for other entries",
            fix="capture the profile again here, and warm with it; or use the same setting on both",
            prevents=True,
        )
        for d in _differences(expected, here)
        if d.component in _IN_KEYS and d.here
    )
    looked_up = 0 if differences else len(target_keys) - len(missing)
    for (reason, portable), count in Counter((f.reason or "", f.portable) for f in missing).items():
        meaning = f"so for {count:,} of the keys: this host looks for other entries"
        fix = PORTABLE_FIX if portable else None
        differences += (ProfileDifference("cache path", reason, "", meaning, fix),)
    return TargetCheck(entries, len(target_keys), looked_up, differences)


def _is_made_for(record: LedgerRecord, profile: TargetProfile) -> bool:
    return (
        record.jaxlib_version == profile.jaxlib_version
        and record.platform_version == profile.platform_version
        and record.extra.get("topology_fingerprint") == profile.topology_fingerprint
    )


def _with_kept_flags(profile: TargetProfile) -> dict[str, str]:
    """The environment with the flags that enter keys only, and without the path of caches."""
    environment = dict(profile.environment)
    if not hashes_path("0.11", environment.get(XLA_CACHES.upper())):  # entries show the others
        environment.pop(XLA_CACHES.upper(), None)
    flags = kept_flags(environment.pop("XLA_FLAGS", "").split())
    return environment | ({"XLA_FLAGS": " ".join(flags)} if flags else {})


def _assigned(name: str, profile: TargetProfile) -> str:
    value = profile.environment.get(name)
    return f"{name} is not set" if value is None else f"{name}={value}"


def _compiles(name: str) -> bool:
    """Whether a package is needed to compile for its platform; CUDA's libraries are not."""
    return name == "libtpu" or name.endswith(("-pjrt", "-plugin"))


def _short(digest: str | None) -> str:
    return "?" if digest is None else digest[:12]
