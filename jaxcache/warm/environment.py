"""The environment of a program that is run: its cache, JAX's thresholds, and what to observe.

JAX does not write a compile of less than a second, or a small entry, unless settings demand it.
``warm`` fills a cache, so it lifts these thresholds; ``run`` shows what the program does by itself,
so it leaves them as the user has them, unless the run writes nothing that stays.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from jaxcache.core.configuration import JAX_DEFAULTS, read_jax_setting
from jaxcache.options.run import RunOptions, WarmOptions
from jaxcache.store import is_remote
from jaxcache.store.location import absolute_location
from jaxcache.warm.child.child import LIFTED

if TYPE_CHECKING:
    from jaxcache.cache.doctor.inputs import Finding
    from jaxcache.warm.crosshost.cross_target import CrossTarget

#: JAX's settings of whether it caches, and where.
ENABLED = "jax_enable_compilation_cache"
DIRECTORY = "jax_compilation_cache_dir"
#: The path is in the options of XLA's own caches (jax/_src/compiler.py, 0.4.36 to 0.10).
_PORTABLE = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
PORTABLE_NOTE = (
    "portable keys: set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none where this cache is used, too; "
    "on a GPU XLA's autotune results are then not kept between compiles"
)
#: The settings that decide what is written.
_THRESHOLDS = (
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_compilation_cache_max_size",
)


def lifted_thresholds(options: RunOptions) -> Mapping[str, str]:
    """The settings that lift JAX's thresholds, for ``warm`` and for a run into ``scratch``."""
    return LIFTED if isinstance(options, WarmOptions) or options.scratch else {}


def effective_thresholds(options: RunOptions) -> dict[str, float]:
    """The thresholds that hold in the program of a run, unless it sets them itself."""
    env = {**os.environ, **lifted_thresholds(options)}
    thresholds = {name: float(JAX_DEFAULTS[name]) for name in _THRESHOLDS}
    for name in thresholds:
        with contextlib.suppress(KeyError, ValueError):
            thresholds[name] = float(env[name.upper()])
    with contextlib.suppress(KeyError, ValueError):
        if not read_jax_setting(ENABLED, env[ENABLED.upper()]):
            thresholds[ENABLED] = 0.0
    return thresholds


def find_overridden(options: RunOptions) -> "Iterator[Finding]":
    """Say what plain JAX does with the settings of this environment that a run overrides."""
    from jaxcache.cache.doctor.inputs import Finding

    for variable, value in lifted_thresholds(options).items():
        text = os.environ.get(variable)
        if text is None:
            continue
        cost = "plain JAX neither reads nor writes the cache"
        try:
            read = read_jax_setting(variable.lower(), text)
        except ValueError:
            cost = "plain JAX refuses it: import jax ends with ValueError"
        else:
            if variable.lower() != ENABLED or read:
                continue
        yield Finding(
            "overridden",
            "problem",
            f"{variable}={text} is set here, and this run had {variable}={value}",
            cost,
            f"unset {variable} where the program runs",
        )


def run_environment(
    options: RunOptions, cross: "CrossTarget | None", devices: int | None = None
) -> dict[str, str]:
    """The variables that the options of a run put into the environment of its program."""
    # Where the variable names the directory already, this is its value, byte for byte.
    directory = options.jax_cache_dir
    env = {**lifted_thresholds(options)}
    if directory:
        env["JAX_COMPILATION_CACHE_DIR"] = directory
    if cross:
        env |= cross.environment(devices=devices)
    if options.force_cache_dir:
        env["JAXCACHE_FORCE_CACHE_DIR"] = directory or options.cache_dir
    if options.portable:
        env |= _PORTABLE
    if options.scratch:
        env["JAXCACHE_SCRATCH"] = options.scratch
    if options.undo is not None:
        env["JAXCACHE_UNDO"] = json.dumps(options.undo)
    if options.no_write:
        env["JAXCACHE_NO_WRITE"] = "1"
    if _has_live_layer(options):
        env["JAXCACHE_LIVE"] = "1"
        env["JAXCACHE_LIVE_LEDGER"] = "totals"  # the run records uses by itself
    if options.tiers:
        tiers = (absolute_location(tier) for tier in options.tiers)
        env["JAXCACHE_LIVE_TIERS"] = "".join(f"{tier}\n" for tier in tiers)
    if options.components:
        env["JAXCACHE_COMPONENTS"] = "1"
    if options.guard:
        env["JAXCACHE_GUARD"] = options.guard
    return env


def live_modules(launched: Mapping[str, str]) -> tuple[str, ...]:
    """Return the modules that the live layer needs in a program's Python to do what was asked.

    Args:
        launched: what a run puts into the environment of its program.
    """
    env = {**os.environ, **launched}
    tiers = re.split(r"[,\s]+", env.get("JAXCACHE_LIVE_TIERS", ""))
    is_signed = _is_on(env, "JAXCACHE_LIVE_REQUIRE_SIGNED") or "JAXCACHE_LIVE_SIGNING_KEY" in env
    is_in_bucket = any(map(is_remote, (env.get("JAX_COMPILATION_CACHE_DIR", ""), *tiers)))
    needed = {"obstore": is_in_bucket, "cryptography": is_signed and (is_in_bucket or any(tiers))}
    return tuple(n for n in needed if needed[n] and _is_on(env, "JAXCACHE_LIVE"))


def _is_on(env: Mapping[str, str], variable: str) -> bool:
    return env.get(variable, "").strip().lower() in ("1", "true", "yes", "on")


def _has_live_layer(options: RunOptions) -> bool:
    """Whether the live layer is on: a bucket needs it, unless the user has switched it off."""
    is_off = os.environ.get("JAXCACHE_LIVE", "1").strip().lower() in ("0", "false", "no", "off")
    return bool(options.live or options.tiers) or (is_remote(options.cache_dir) and not is_off)
