"""Plan and execute removals, for ``prune`` and ``rm``."""
