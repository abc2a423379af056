"""JAX's settings of the cache: their defaults, and who made them."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcache.cache.doctor.inputs import Setting, SettingValue

#: Every setting that decides what is cached, and JAX's default (jax/_src/config.py, 0.4.30 to
#: 0.12). The environment's name is the same in upper case.
DEFAULTS: dict[str, SettingValue] = {
    "jax_enable_compilation_cache": True,
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 1.0,
    "jax_persistent_cache_min_entry_size_bytes": 0,
    "jax_compilation_cache_max_size": -1,
    "jax_persistent_cache_enable_xla_caches": "xla_gpu_per_fusion_autotune_cache_dir",
    "jax_raise_persistent_cache_errors": False,
    "jax_compilation_cache_include_metadata_in_key": False,
    "jax_compilation_cache_check_contents": False,
    "jax_compilation_cache_expect_pgle": False,
    "jax_remove_custom_partitioning_ptr_from_cache_key": False,
    "jax_share_binary_between_hosts": False,
    "jax_enable_pgle": False,
    "jax_explain_cache_misses": False,
}
_FALSE = frozenset({"n", "no", "f", "false", "off", "0"})


def settings_of_jax(values: Mapping[str, Any], environment: Mapping[str, str]) -> list[Setting]:
    """The settings that a jax reports, with their origins.

    A jax older than a setting does not tell it, and it is left out.
    """
    return [_origin(n, values[n], environment) for n in DEFAULTS if n in values]


#: Before the name of a setting of the live layer.
LIVE = "live."


def settings_of_live(values: Mapping[str, Any]) -> list[Setting]:
    """The settings of the live layer, as that Python resolves them.

    Without ``enabled`` there is only the reason why they cannot be read.
    """
    settings = [Setting(f"{LIVE}installed", bool(values.get("installed")), "default")]
    if "error" in values:
        return [*settings, Setting(f"{LIVE}error", str(values["error"]), "script")]
    for name, value in values.get("values", {}).items():
        shown = ", ".join(map(str, value)) or None if isinstance(value, list) else value
        settings.append(Setting(f"{LIVE}{name}", shown, str(values["origins"][name])))
    return settings


def settings_of_environment(environment: Mapping[str, str]) -> list[Setting]:
    """The settings that a jax would find here, judged without one."""
    return [
        _origin(name, _read(environment.get(name.upper()), default), environment)
        for name, default in DEFAULTS.items()
    ]


def with_script(settings: Sequence[Setting], values: Mapping[str, Any]) -> list[Setting]:
    """Settings as a script left them: those that it changed are its own."""
    return [
        Setting(s.name, values[s.name], "script")
        if s.name in values and values[s.name] != s.value
        else s
        for s in settings
    ]


def _origin(name: str, value: SettingValue, environment: Mapping[str, str]) -> Setting:
    from_environment = environment.get(name.upper())
    if from_environment is not None and _read(from_environment, DEFAULTS[name]) == value:
        return Setting(name, value, "environment")
    return Setting(name, value, "default" if value == DEFAULTS[name] else "script")


def _read(text: str | None, default: SettingValue) -> SettingValue:
    """A variable's text as JAX reads it for a setting with that default."""
    if text is None:
        return default
    try:
        if isinstance(default, bool):
            return text.lower() not in _FALSE
        if isinstance(default, int):
            return int(text)
        return float(text) if isinstance(default, float) else text
    except ValueError:
        return text
