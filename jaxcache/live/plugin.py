"""The entry point in the group ``jax_plugins``: JAX imports it when its backends start.

An exception at import, other than ImportError, would reach the user at every compile
(``discover_pjrt_plugins`` in jax/_src/xla_bridge.py, 0.4.38 to 0.12), and every process with jax
pays for what is imported here. So this module imports nothing but the standard library's ``os``
until a setting switches the layer on.
"""

import os

_MAX_BYTES = 1 << 20


def config_files() -> "list[tuple[str, bytes]]":
    """The nearest pyproject.toml, then ``$XDG_CONFIG_HOME/jaxcache/config.toml``, with their text.

    Those that cannot be read are left out.
    """
    found = []
    folder = _working_directory()
    while folder:
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path):
            found.append(path)
            break
        parent = os.path.dirname(folder)
        folder = parent if parent != folder else ""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return [
        (path, text)
        for path in (*found, os.path.join(home, "jaxcache", "config.toml"))
        if (text := _read(path))
    ]


def may_have_live_table(path: str, text: bytes) -> bool:
    """Whether a table may be ours, so that mostly no parser has to be imported."""
    return b"live" in text and (b"jaxcache" in text or not path.endswith("pyproject.toml"))


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


def _may_be_on() -> bool:
    """Whether anything asks for the layer; cheap, because nearly always nothing does."""
    flag = os.environ.get("JAXCACHE_LIVE", "").strip().lower()
    if flag:
        return flag not in ("0", "false", "no", "off")
    return any(b"enabled" in text and may_have_live_table(p, text) for p, text in config_files())


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return ""


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _MAX_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)
