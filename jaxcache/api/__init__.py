"""The Python interface: what the command line does, as functions that return data.

Whatever changes a cache is a plan first, which can be looked at, and then executed::

    cache = jaxcache.open("/path/to/cache")
    plan = cache.plan_prune(max_size="10GB", policy="cost")
    print(len(plan.removals), plan.size_bytes_after)
    cache.execute(plan)

Sizes are bytes, or text such as ``"10GB"``; durations are seconds, or text such as ``"30d"``.
"""

from jaxcache.api.cache import Cache, open  # noqa: A004

__all__ = ["Cache", "open"]
