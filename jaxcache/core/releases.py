"""Releases of JAX between which keys, or what JAX does with its cache, have changed.

Each was read in JAX's source at the release named and at the one before, and is asked of every JAX
of the test matrix (``tests/integration/test_releases.py``). ``tools/generate/releases.py`` has the
words for each, and the changes that nothing here depends on.
"""

import re
from functools import lru_cache
from typing import NamedTuple

Release = tuple[int, ...]


@lru_cache(maxsize=64)
def read_release(version: str) -> Release:
    """Read the leading numbers of a version: ``0.12.0.dev1`` is (0, 12, 0), ``main`` is ()."""
    # A bundle may hold any text, and Python refuses to read numbers of thousands of digits.
    match = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


class Rule(NamedTuple):
    """A rule that some releases of JAX follow."""

    since: Release
    """The first release that follows it; () for all before."""
    before: Release
    """The first release that no longer does; () for none so far."""

    def holds(self, version: str) -> bool:
        """Whether this version follows it; an unreadable version counts as the oldest."""
        release = read_release(version)
        return self.since <= release and not (self.before and self.before <= release)


#: A key holds the source files and lines of Pallas kernels for a TPU.
MOSAIC_PATHS = Rule((), (0, 11, 0))
#: A key holds the path of the cache directory, through XLA's autotune directory.
CACHE_PATH = Rule((0, 4, 36), (0, 11, 0))
#: A key holds the path of the cache directory where XLA's kernel cache is on.
KERNEL_CACHE_PATH = Rule((0, 4, 36), ())
#: With a size cap, an entry without its ``-atime`` file stops all writes.
ATIME_REQUIRED = Rule((), (0, 11, 2))
