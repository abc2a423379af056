"""A name for the environment of a CI job: equal where JAX can hit, different where it cannot.

At its heart is the key that the job's own jax made for one trivial program
(``jaxcache/warm/child/query.py``): a SHA-256 over jaxlib, platform, XLA's flags, compile options,
accelerator and codec, by JAX's own hand (``jax/_src/cache_key.py``), so that nothing that enters
JAX's keys can be forgotten here. What that key leaves out is added: the directory, for those JAX
that hash it, the CPU, for those that do not, and the settings that act through the program, which a
trivial one does not show.
"""

import glob
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcache.cache.bundle.compat import Host
from jaxcache.core.machine import XLA_CACHES, hashes_path
from jaxcache.errors import UsageError, system_errors_as

#: Counted up when the same environment gets another name.
SCHEME = "v2"
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class KeyEnvironment:
    """The facts on which the keys of one job's JAX depend."""

    platform: str
    device: str
    """CPU name, ``sm_90a``, or the device's name."""
    device_kind: str
    platform_version: str
    jax_version: str
    jaxlib_version: str
    codec: str
    cpu_features: tuple[str, ...] | None
    """As LLVM names them, sorted; None on accelerators, and where they are unknown."""
    xla_flags: tuple[str, ...]
    xla_caches: str | None
    """``JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES``; None where it is not set."""
    cache_dir_in_key: str | None
    """None where the directory is not part of JAX's keys."""
    device_count: int
    """Devices of a process."""
    process_count: int
    """``JAX_NUM_PROCESSES``; 1 where it is not set."""
    settings: Mapping[str, Any]
    """Settings of JAX that act on keys and that the environment changes, by JAX's names."""
    jax_key: str
    """The hash that JAX gave to the trivial program."""

    @property
    def digest(self) -> str:
        """Over everything but the version of jax, which JAX does not hash."""
        parts = {
            "jax_key": self.jax_key,
            "cpu_features": self.cpu_features,
            "xla_caches": self.xla_caches,
            "cache_dir": self.cache_dir_in_key,
            "process_count": self.process_count,
            "settings": self.settings,
        }
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]


@dataclass(frozen=True, slots=True)
class HashedFiles:
    """The files that were hashed, and their digest."""

    digest: str
    """SHA-256 over names and contents, in the order of the names."""
    names: tuple[str, ...]


def hash_files(patterns: Sequence[str], root: str) -> HashedFiles:
    """Hash every file that one of the globs matches; ``**`` crosses directories; follows links.

    Args:
        patterns: relative to ``root``; one that begins with ``!`` takes files out again.

    Raises:
        UsageError: ``no-match`` where no file is left, ``io-error`` where one cannot be read.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        matches = glob.glob(pattern.removeprefix("!"), root_dir=root, recursive=True)
        files = {os.path.normpath(f) for f in matches if os.path.isfile(os.path.join(root, f))}
        chosen = chosen - files if pattern.startswith("!") else chosen | files
    if not chosen:
        raise UsageError(
            f"no file matches {' '.join(patterns)}",
            code="no-match",
            hint="quote the glob, so that it reaches jaxcache, and mind the current directory",
        )
    names = tuple(sorted(chosen))
    digest = hashlib.sha256()
    for name in names:
        digest.update(os.fsencode(name) + b"\0" + _digest(os.path.join(root, name)))
    return HashedFiles(digest.hexdigest(), names)


def _digest(path: str) -> bytes:
    failure = f"cannot read {path}"
    with system_errors_as(UsageError, failure, code="io-error"), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


@dataclass(frozen=True, slots=True)
class CiKey:
    """The name of a cache, and those under which an older one would do."""

    environment: KeyEnvironment
    files: HashedFiles | None
    prefix: str = "jaxcache"

    @property
    def key(self) -> str:
        """Letters, digits, ``.``, ``_`` and ``-``, from the loosest component to the tightest."""
        return "-".join(self._parts)

    @property
    def restore_keys(self) -> tuple[str, ...]:
        """Prefixes, from precise to loose.

        The loosest still names the environment: under another one JAX finds nothing, and
        downloading it would be for nothing.
        """
        parts = self._parts
        fewest = len(self._environment_parts)
        return tuple("-".join(parts[:n]) + "-" for n in range(len(parts) - 1, fewest - 1, -1))

    @property
    def _environment_parts(self) -> list[str]:
        environment = self.environment
        return [
            slug(self.prefix),
            SCHEME,
            environment.platform,
            slug(environment.device),
            f"jaxlib{slug(environment.jaxlib_version)}",
            environment.digest,
        ]

    @property
    def _parts(self) -> list[str]:
        parts = [*self._environment_parts, f"jax{slug(self.environment.jax_version)}"]
        return [*parts, self.files.digest[:_DIGITS]] if self.files else parts


def describe_environment(
    host: Host, environment: Mapping[str, str], *, cache_dir: str
) -> KeyEnvironment:
    """Put together what keys depend on.

    Args:
        host: probed with ``JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none``, so that the probe's own
            directory is not in its key.
        environment: of the job.
        cache_dir: as JAX is going to be given it, for that is how it enters the key.
    """
    origin = host.origin
    machine = host.machine
    version = machine.jax_version or ""
    caches = environment.get(XLA_CACHES.upper())
    if caches == "none" and not hashes_path(version):
        caches = None  # no key of this jax has a path to leave out
    return KeyEnvironment(
        platform=origin.platform,
        device=origin.target or origin.device_name or machine.device_kind or "unknown",
        device_kind=machine.device_kind or "",
        platform_version=machine.platform_version or "",
        jax_version=version,
        jaxlib_version=machine.jaxlib_version or "",
        codec=machine.codec or "",
        cpu_features=machine.cpu_features if origin.platform == "cpu" else None,
        xla_flags=machine.xla_flags or (),
        xla_caches=caches,
        cache_dir_in_key=cache_dir if hashes_path(version, caches) else None,
        device_count=machine.device_count or 1,
        process_count=machine.process_count or 1,
        settings=machine.changed_settings,
        jax_key=host.key[-64:],
    )


def slug(text: str) -> str:
    """A text in letters, digits, ``.`` and ``_``: what every CI system takes in a key."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_") or "unknown"
