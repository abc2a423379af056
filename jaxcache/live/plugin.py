"""The entry point in the group ``jax_plugins``: JAX imports it when its backends start.

An exception at import, other than ImportError, would reach the user at every compile
(``discover_pjrt_plugins`` in jax/_src/xla_bridge.py, 0.4.38 to 0.12), and every process with jax
pays for what is imported here. So this module imports nothing but the standard library's ``os``
until a setting switches the layer on.
"""

try:
    import os
except Exception:  # pragma: no cover - a Python that is ending
    os = None  # type: ignore[assignment]


def _may_be_on() -> bool:
    """Whether anything asks for the layer; cheap, because nearly always nothing does."""
    flag = os.environ.get("JAXCACHE_LIVE", "").strip().lower()
    if flag:
        return flag not in ("0", "false", "no", "off")
    from .config import mentions_live

    return mentions_live()


def initialize() -> None:
    """Switch the layer on where the settings ask for it; never raises."""
    try:
        if _may_be_on():
            from .layer import start

            start()
    except Exception as error:
        try:
            import sys

            reason = f"{type(error).__name__}: {error}"
            print(f"jaxcache: live is off: {reason}", file=sys.stderr)
        except Exception:  # noqa: S110 - standard error is closed
            pass
