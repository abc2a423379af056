"""A target profile: one file that says what the keys of a host depend on. See docs/target.md."""

import base64
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from jaxcache.cache.allowed import MOST_DEVICES, is_allowed_setting, is_allowed_variable
from jaxcache.cache.untrusted_json import parse_json
from jaxcache.errors import UsageError
from jaxcache.units import rfc3339
from jaxcache.warm.typed_json import Base64, Text, build

FORMAT = "jaxcache-target"
VERSION = 1
CACHE_DIR = "jax_compilation_cache_dir"
#: A profile is some kilobytes; the topology of a large pod would be some hundred.
MAX_PROFILE_BYTES = 8 << 20
Platform = Literal["cpu", "gpu", "cuda", "rocm", "tpu"]


class ProfileError(UsageError):
    """The file is no target profile, or one that cannot be used."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor of a host."""

    machine: Text | None = None
    name: Text | None = None
    features: tuple[Text, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The facts that keys of a host depend on, as the host itself reported them."""

    captured_at: Text
    platform: Platform
    """``cpu``, ``gpu``, ``tpu``: what JAX puts into the key."""
    lowering_platform: Platform
    """``cpu``, ``cuda``, ``rocm``, ``tpu``: what JAX lowers for."""
    platform_version: Text
    device_kinds: tuple[Text, ...]
    """One for each device, in the order of ``jax.devices()``."""
    device_ids: tuple[int, ...]
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
        """The number of devices that a program sees there."""
        return len(self.device_ids)

    @property
    def is_complete(self) -> bool:
        """Whether the topology can be rebuilt elsewhere: from JAX 0.11 on."""
        return self.topology is not None and self.topology_fingerprint is not None

    @property
    def devices(self) -> str:
        """The devices in words: ``8 × NVIDIA H200``."""
        kinds = Counter(self.device_kinds)
        return ", ".join(f"{count} × {kind}" for kind, count in kinds.items())

    def to_json(self) -> dict[str, Any]:
        """The document that :func:`parse_profile` reads."""
        document = {"format": FORMAT, "version": VERSION, **asdict(self)}
        if self.topology is not None:
            document["topology"] = base64.b64encode(self.topology).decode()
        return document


def read_profile(path: str) -> Profile:
    """Read a profile.

    Raises:
        ProfileError: ``no-profile``, ``bad-profile``, or ``newer-profile``.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_PROFILE_BYTES + 1)
    except OSError as error:
        raise ProfileError(
            f"cannot read {path}: {os.strerror(error.errno or 0).lower()}",
            code="no-profile",
            hint="jaxcache target capture FILE makes one, on the host that it is about",
        ) from error
    if len(data) > MAX_PROFILE_BYTES:
        raise ProfileError(f"{path} is too large to be a target profile", code="bad-profile")

    def bad(_message: str) -> ProfileError:
        return ProfileError(f"{path} is no target profile", code="bad-profile")

    return parse_profile(parse_json(data, bad, max_values=MAX_PROFILE_BYTES), path)


def profile_bytes(profile: Profile) -> bytes:
    """The file's contents."""
    return json.dumps(profile.to_json(), indent=1).encode() + b"\n"


def make_profile(facts: Mapping[str, Any], *, now_ns: int) -> Profile:
    """Make a profile of the answer of ``jaxside/capture.py``.

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


def parse_profile(document: Any, origin: str) -> Profile:
    """Check a document and make a profile of it; fields that are not known are left alone.

    Args:
        origin: what to call it in a message.

    Raises:
        ProfileError: ``bad-profile``, or ``newer-profile``.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ProfileError(f"{origin} is no target profile", code="bad-profile")
    if document.get("version") != VERSION:
        raise ProfileError(
            f"{origin} is of version {document.get('version')!r}, and known is {VERSION}",
            code="newer-profile",
            hint="upgrade jaxcache, or capture the profile anew",
        )

    def bad(message: str) -> ProfileError:
        return ProfileError(
            f"{origin} is no target profile: {message}",
            code="bad-profile",
            hint="capture the profile anew: jaxcache target capture FILE",
        )

    try:
        profile: Profile = build(Profile, document)
    except ValueError as error:
        raise bad(str(error)) from error
    fingerprint = profile.topology_fingerprint
    if fingerprint is not None and not (fingerprint.isdecimal() and int(fingerprint) < 1 << 64):
        raise bad("topology_fingerprint is not what it should be")
    count, ids = len(profile.device_ids), profile.device_ids
    if not 1 <= count <= MOST_DEVICES or count != len(profile.device_kinds) or min(ids) < 0:
        raise bad("device_ids is not what it should be")
    if forbidden := next(_forbidden(profile), None):
        raise ProfileError(
            f"{origin} sets {forbidden[:200]}, and a profile may only set XLA_FLAGS and "
            "LIBTPU_INIT_ARGS to known flags that name no file, and known settings of JAX",
            code="bad-profile",
            hint="unset it where the profile is captured, and capture it anew",
        )
    return profile


def _forbidden(profile: Profile) -> Iterator[str]:
    for name, value in profile.environment.items():
        if not is_allowed_variable(name, value):
            yield f"{name}={value}"
    for name, value in profile.settings.items():
        is_path = isinstance(value, str) and len(value) < 4096 and value.isprintable()
        # The directory is hashed where XLA caches kernels below it.
        is_allowed = (name == CACHE_DIR and is_path) or value is None
        if not is_allowed and not is_allowed_setting(name, value):
            yield f"{name}={value}"
