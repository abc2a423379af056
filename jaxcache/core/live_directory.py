"""The directories that the live layer has for a bucket."""

import hashlib
import os


def live_directory(url: str) -> str:
    """Return the local directory of a bucket, where no setting (``local-dir``) names another."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    return os.path.join(base, "jaxcache", "live", name)


def spool_name(url: str) -> str:
    """Return the name of the directory, below ``live/spool/``, of what a tier still lacks."""
    return hashlib.sha256(url.encode()).hexdigest()[:12]
