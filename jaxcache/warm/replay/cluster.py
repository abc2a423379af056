"""``compile --dask``: the same jobs on the workers of a dask.distributed cluster.

A worker that is lost is dask's to replace: the scheduler gives its jobs to others. Entries come
back here and are written here, so the cluster needs no access to the cache.
"""

import io
from collections import defaultdict
from typing import Any

from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.warm.replay.bench import Failure
from jaxcache.warm.replay.plan import CompilePlan, Job
from jaxcache.warm.replay.pool import Watcher
from jaxcache.warm.replay.remote import Parcel, Wish, compile_wish
from jaxcache.warm.replay.report import Compiled
from jaxcache.warm.replay.session import Session, failed

_CONNECT_SECONDS = 30


def compile_on_cluster(
    address: str, plan: CompilePlan, session: Session, watcher: Watcher | None
) -> tuple[list[Compiled], list[JaxcacheError], bool]:
    """Do all jobs of a plan, or as many as an interrupt leaves time for.

    Returns:
        What came of them in the order of the plan, nothing, and whether it was interrupted.

    Raises:
        UsageError: ``no-dask``.
        JaxcacheError: ``no-cluster``.
    """
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise UsageError(
            "--dask needs dask.distributed", code="no-dask", hint="pip install 'jaxcache[dask]'"
        ) from error
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise JaxcacheError(
            f"no dask scheduler answers at {address}: {error}",
            code="no-cluster",
            hint="the address is what dask scheduler prints, such as tcp://10.0.0.1:8786",
        ) from error
    results: dict[int, Compiled] = {}
    interrupted = False
    with client, client.as_current():
        futures = _submit(client, plan, session)
        try:
            for future in as_completed(futures):
                position, job = futures[future]
                results[position] = _conclude(future, job, session)
                future.release()
                if watcher:
                    watcher.end(job, results[position])
        except KeyboardInterrupt:
            interrupted = True
            client.cancel(list(futures), force=True)
    return [results[i] for i in sorted(results)], [], interrupted


def _submit(client: Any, plan: CompilePlan, session: Session) -> dict[Any, tuple[int, Job]]:
    options = session.options
    cached: defaultdict[str, list[str]] = defaultdict(list)
    for key in session.delivery.known_keys():
        cached[key.rpartition("-")[0]].append(key)
    futures = {}
    for position, job in enumerate(plan.jobs):
        wish = Wish(
            job, session.blobs(job), options.used_at, cached.get(job.request.module, []),
            options.check, options.python, options.devices,
        )  # fmt: skip
        # Longest first: what has the higher priority runs earlier.
        future = client.submit(compile_wish, wish, priority=job.seconds, pure=False)
        futures[future] = (position, job)
    return futures


def _conclude(future: Any, job: Job, session: Session) -> Compiled:
    try:
        parcel: Parcel = future.result()
    except Exception as error:  # the cluster's own: a worker lost too often, no jaxcache there
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return failed(job, Failure("worker-died", f"{type(error).__name__}: {lines[0][:500]}"))
    answer = parcel.answer
    if isinstance(answer, Failure):
        return failed(job, answer)
    if parcel.name is None:
        return session.describe(job, answer)
    return session.deliver(job, answer, parcel.name, io.BytesIO(parcel.data))
