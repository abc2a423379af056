"""``push`` and ``pull``: bring to one cache what it lacks of another, over any two stores.

:func:`plan_sync` compares two listings and reads no entry; :func:`execute` carries each entry over
after it has been checked whole. What is there is never replaced, so that a second run does the
rest of an interrupted one, and two at once end up with what each of them had.
"""

from jaxcache.cache.sync.execute import Failed, Synced, execute
from jaxcache.cache.sync.plan import SyncPlan, Transfer, plan_sync

__all__ = [
    "Failed",
    "SyncPlan",
    "Synced",
    "Transfer",
    "execute",
    "plan_sync",
]
