"""The local directory behind which the live layer puts a bucket that JAX was given as its cache."""

import hashlib
import os


def live_directory(url: str) -> str:
    """Return the local directory of a bucket, where no setting (``local-dir``) names another."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    return os.path.join(base, "jaxcache", "live", name)
