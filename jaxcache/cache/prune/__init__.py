"""What a cache can do without, and how it goes: for ``prune`` and ``rm``."""
