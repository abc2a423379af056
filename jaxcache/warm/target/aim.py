"""A target, and what children must be told to compile for it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxcache.cache.allowed import kept_flags
from jaxcache.warm.target.profile import CACHE_DIR, Profile, profile_bytes

#: With these a program runs on the CPU, and plugins load where their hardware is not.
WITHOUT_HARDWARE = {
    "JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "TPU_SKIP_MDS_QUERY": "1"
}  # fmt: skip
#: Settings of JAX that only say what is printed.
_HARMLESS = ("JAX_LOG", "JAX_DEBUG", "JAX_TRACEBACK", "JAX_DUMP")


@dataclass(frozen=True, slots=True)
class Aim:
    """A target, and how to compile for it."""

    profile: Profile
    gemm: str = "cublas"
    autotune_from: str | None = None
    """The autotune directory of a real host, absolute."""
    require_tuned: bool = False

    def write_request(self, folder: str, directory: str) -> str:
        """Write what children need to know into a folder of theirs; the path of the request.

        Args:
            directory: the cache that is filled.
        """
        profile = Path(folder, "profile.json")
        profile.write_bytes(profile_bytes(self.profile))
        wishes = {
            "gemm": self.gemm, "autotune_from": self.autotune_from,
            "require_tuned": self.require_tuned,
        }  # fmt: skip
        request = Path(folder, "request.json")
        document = {
            "profile": str(profile), "spool": folder, "directory": directory, "wishes": wishes
        }  # fmt: skip
        request.write_text(json.dumps(document), "utf-8")
        return str(request)

    def environment(self, *, devices: int | None) -> dict[str, str]:
        """What a program on the CPU needs to stand where the target's programs stand.

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
            # XLA says of every kernel that it cannot measure it; the report does so once.
            env["TF_CPP_MIN_LOG_LEVEL"] = "3"
        caches = str(profile.settings.get("jax_persistent_cache_enable_xla_caches"))
        hashes_path = caches == "all" or "xla_gpu_kernel_cache_file" in caches
        for name, value in profile.settings.items():
            if isinstance(value, str) and (name != CACHE_DIR or hashes_path):
                env[name.upper()] = value
        return env

    @staticmethod
    def unset(environ: Mapping[str, str]) -> tuple[str, ...]:
        """What of the caller's environment would enter keys that are the target's."""
        return tuple(n for n in environ if n.startswith("JAX_") and not n.startswith(_HARMLESS))
