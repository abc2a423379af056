"""A target profile: one file that says what the keys of a host depend on. See docs/target.md."""

import base64
import binascii
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jaxcache.cache.allowed import MOST_DEVICES, is_allowed_setting, is_allowed_variable
from jaxcache.cache.fields import Fields, parse_json
from jaxcache.errors import UsageError
from jaxcache.model import Codec
from jaxcache.units import rfc3339

FORMAT = "jaxcache-target"
VERSION = 1
CACHE_DIR = "jax_compilation_cache_dir"
#: A profile is some kilobytes; the topology of a large pod would be some hundred.
MAX_PROFILE_BYTES = 8 << 20
_MAX_TEXT = 256 << 10
_MAX_ID = 1 << 31
_MAX_ITEMS = 1 << 16
#: ``get_cache_key`` in jax/_src/compilation_cache.py names the codec so.
_PLATFORMS = ("cpu", "gpu", "cuda", "rocm", "tpu")
_KEY_CODECS = ("zstandard", "zlib")


class ProfileError(UsageError):
    """The file is no target profile, or one that cannot be used."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor of a host."""

    machine: str | None
    name: str | None
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """The facts that keys of a host depend on, as the host itself reported them."""

    captured_at: str
    platform: str
    """``cpu``, ``gpu``, ``tpu``: what JAX puts into the key."""
    lowering_platform: str
    """``cpu``, ``cuda``, ``rocm``, ``tpu``: what JAX lowers for."""
    platform_version: str
    device_kinds: tuple[str, ...]
    """One for each device, in the order of ``jax.devices()``."""
    device_ids: tuple[int, ...]
    topology: bytes | None
    """``PjRtTopologyDescriptionProto``, from JAX 0.11 on."""
    topology_fingerprint: str | None
    """64 bits in decimal; from JAX 0.10 on, in the key."""
    target_config: str | None
    """``GpuTargetConfigProto`` as text, on GPU."""
    python_version: str
    jax_version: str
    jaxlib_version: str
    jaxlib_digest: str | None
    plugins: Mapping[str, str]
    """Versions by name of the package: PJRT plugins, libtpu, CUDA's libraries."""
    key_codec: str
    """The codec's name in keys: ``zstandard`` or ``zlib``."""
    codec: Codec
    """The codec of entries there."""
    cpu: Cpu
    environment: Mapping[str, str]
    """``XLA_FLAGS``, ``LIBTPU_INIT_ARGS`` and JAX's settings, as set there."""
    settings: Mapping[str, Any]
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
    read = _ProfileReader(document, origin)
    profile = Profile(
        captured_at=read.required_text("captured_at"),
        platform=read.one_of("platform", _PLATFORMS),
        lowering_platform=read.one_of("lowering_platform", _PLATFORMS),
        platform_version=read.required_text("platform_version"),
        device_kinds=read.texts("device_kinds"),
        device_ids=read.wholes("device_ids", _MAX_ID),
        topology=read.base64("topology"),
        topology_fingerprint=read.text("topology_fingerprint", optional=True),
        target_config=read.text("target_config", optional=True),
        python_version=read.required_text("python_version"),
        jax_version=read.required_text("jax_version"),
        jaxlib_version=read.required_text("jaxlib_version"),
        jaxlib_digest=read.text("jaxlib_digest", optional=True),
        plugins=read.mapping("plugins"),
        key_codec=read.one_of("key_codec", _KEY_CODECS),
        codec=read.codec(),
        cpu=read.cpu(),
        environment=read.environment(),
        settings=read.settings(),
    )
    fingerprint = profile.topology_fingerprint
    if fingerprint is not None and not (fingerprint.isdecimal() and int(fingerprint) < 1 << 64):
        raise read.wrong("topology_fingerprint")
    count = len(profile.device_ids)
    if not 1 <= count <= MOST_DEVICES or count != len(profile.device_kinds):
        raise read.wrong("device_ids")
    return profile


class _ProfileReader(Fields):
    """Takes fields out of a document that anybody may have written."""

    def __init__(self, document: object, origin: str) -> None:
        self._origin = origin
        super().__init__(document, "the profile", self._bad)

    def _bad(self, message: str) -> ProfileError:
        return ProfileError(
            f"{self._origin} is no target profile: {message}",
            code="bad-profile",
            hint="capture the profile anew: jaxcache target capture FILE",
        )

    def wrong(self, name: str, *, missing: bool = False) -> ProfileError:
        """Make the exception for a value that is missing or nonsense."""
        return self._bad(f"{name} is missing" if missing else f"{name} is not what it should be")

    def _text(self, name: str, value: object) -> str:
        found = super()._text(name, value)
        if len(found) > _MAX_TEXT:
            raise self.wrong(name)
        return found

    def one_of(self, name: str, known: tuple[str, ...]) -> str:
        value = self.required_text(name)
        if value not in known:
            raise self.wrong(name)
        return value

    def codec(self) -> Codec:
        return "zstd" if self.one_of("codec", ("zstd", "zlib")) == "zstd" else "zlib"

    def base64(self, name: str) -> bytes | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(name)
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.wrong(name) from error

    def mapping(self, name: str) -> dict[str, str]:
        value = self.values.get(name)
        if not isinstance(value, dict) or len(value) > _MAX_ITEMS:
            raise self.wrong(name)
        if not all(isinstance(v, str) and "\0" not in v + k for k, v in value.items()):
            raise self.wrong(name)
        return value

    def environment(self) -> dict[str, str]:
        values = self.mapping("environment")
        for name, value in values.items():
            if not is_allowed_variable(name, value):
                raise self._forbidden(f"{name}={value}")
        return values

    def settings(self) -> dict[str, Any]:
        values = self.values.get("settings")
        if not isinstance(values, dict):
            raise self.wrong("settings")
        for name, value in values.items():
            is_path = isinstance(value, str) and len(value) < 4096 and value.isprintable()
            if name == CACHE_DIR and is_path:  # hashed where XLA caches kernels below it
                continue
            if value is not None and not is_allowed_setting(name, value):
                raise self._forbidden(f"{name}={value}")
        return values

    def _forbidden(self, what: str) -> ProfileError:
        return ProfileError(
            f"{self._origin} sets {what[:200]}, and a profile may only set XLA_FLAGS and "
            "LIBTPU_INIT_ARGS to known flags that name no file, and known settings of JAX",
            code="bad-profile",
            hint="unset it where the profile is captured, and capture it anew",
        )

    def cpu(self) -> Cpu:
        inner = _ProfileReader(self.any("cpu"), self._origin)
        return Cpu(
            inner.text("machine", optional=True),
            inner.text("name", optional=True),
            inner.texts("features"),
        )
