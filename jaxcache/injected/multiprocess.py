"""Makes one process of a program of several, if ``--processes`` is given.

A script for several hosts calls ``jax.distributed.initialize()``, which finds its peers through
a cluster manager; other scripts do not call it. Here both get the same: their number and the
address of process 0. The script's own call then has nothing left to do.
"""

import functools
import os
from typing import Any

#: ``host:port,number of processes,this process``
_TOGETHER = "JAXCACHE_TOGETHER"


def join(jax: Any) -> int:
    """Join the other processes, as soon as jax is imported and before anything is computed.

    Returns:
        Which process this is; 0 where it is the only one.
    """
    place = os.environ.pop(_TOGETHER, None)  # children are not members themselves
    if not place:
        return 0
    address, count, number = place.split(",")
    original = jax.distributed.initialize
    original(coordinator_address=address, num_processes=int(count), process_id=int(number))

    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> None:
        """Done already, by ``jaxcache warm --processes``."""

    jax.distributed.initialize = initialize
    return int(number)


def join_pod(jax: Any) -> None:
    """Join the program of several hosts that a cluster manager or the environment describes.

    Raises:
        Exception: as ``jax.distributed.initialize``; a ValueError where nothing describes it.
    """
    count, number = (os.environ.get(n) for n in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    jax.distributed.initialize(
        num_processes=int(count) if count else None, process_id=int(number) if number else None
    )
