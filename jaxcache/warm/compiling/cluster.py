"""``compile --dask``: the same jobs on the workers of a dask.distributed cluster.

A worker that is lost is dask's to replace: the scheduler gives its jobs to others. Entries come
back here and are written here, so the cluster needs no access to the cache.
"""

import atexit
import contextlib
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.units import format_install
from jaxcache.warm.child.interpreter import find_python
from jaxcache.warm.compiling.plan import CompilePlan, Job
from jaxcache.warm.compiling.pool import CompileWatcher
from jaxcache.warm.compiling.report import CompileResult
from jaxcache.warm.compiling.session import Session
from jaxcache.warm.compiling.worker import Answer, JobFailure, Processes, Worker

_CONNECT_SECONDS = 30


def compile_on_cluster(
    address: str, plan: CompilePlan, session: Session, watcher: CompileWatcher | None
) -> tuple[list[CompileResult], list[JaxcacheError], bool]:
    """Do all jobs of a plan, or as many as an interrupt leaves time for.

    Returns:
        The results in the order of the plan, nothing, and whether it was interrupted.

    Raises:
        UsageError: ``no-dask``.
        JaxcacheError: ``no-cluster``.
    """
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise UsageError(
            "--dask needs jaxcache[dask]", code="no-dask", hint=format_install("dask")
        ) from error
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise JaxcacheError(
            f"no dask scheduler answers at {address}: {error}",
            code="no-cluster",
            hint="use the address that dask scheduler prints, such as tcp://10.0.0.1:8786",
        ) from error
    results: dict[int, CompileResult] = {}
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
        future = client.submit(
            compile_job,
            job,
            session.blobs(job),
            session.used_at,
            cached=cached.get(job.request.module, []),
            check=options.check_only,
            python=options.python,
            devices=options.devices,
            priority=job.seconds,  # longest first: what has the higher one runs earlier
            pure=False,
        )
        futures[future] = (position, job)
    return futures


def _conclude(future: Any, job: Job, session: Session) -> CompileResult:
    try:
        answer, data = future.result()
    except Exception as error:  # the cluster's own: a worker lost too often, no jaxcache there
        lines = str(error).strip().splitlines() or [type(error).__name__]
        detail = f"{type(error).__name__}: {lines[0][:500]}"
        answer = JobFailure("worker-died", detail)
        data = b""
    return session.conclude(job, answer, data)


class _OfThread(threading.local):
    """The children of one thread of the dask worker, kept from job to job."""

    worker: Worker | None = None
    python: tuple[str | None, int | None] | None = None


_OF_THREAD = _OfThread()


def compile_job(
    job: Job,
    blobs: tuple[bytes, bytes],
    used_at: str,
    *,
    cached: Collection[str],
    check: bool,
    python: str | None,
    devices: int | None,
) -> tuple[Answer | JobFailure, bytes]:
    """Compile one request on this machine; children are started once and kept.

    Args:
        cached: keys of its module that the cache has.

    Returns:
        The answer, and the bytes of the entry that it names.
    """

    def is_wanted(key: str) -> bool:
        return not (check or key in cached)

    answer = _worker(python, devices).attempt(job, blobs, used_at, is_wanted)
    if answer is None:
        return JobFailure("worker-died", "the cluster's worker was stopped"), b""
    if isinstance(answer, JobFailure) or answer.file is None:
        return answer, b""
    data = answer.file.read_bytes()
    answer.file.unlink(missing_ok=True)
    return answer, data


def _worker(python: str | None, devices: int | None) -> Worker:
    if _OF_THREAD.worker is None or _OF_THREAD.python != (python, devices):
        if _OF_THREAD.worker is not None:
            _OF_THREAD.worker.clear()
        top = tempfile.mkdtemp(prefix="jaxcache-compile-")
        atexit.register(shutil.rmtree, top, ignore_errors=True)

        def make(job: Job) -> Processes:
            return Processes(find_python(python), job.environment, devices=devices, directory=top)

        _OF_THREAD.worker = Worker(make)
        _OF_THREAD.python = (python, devices)
        atexit.register(_clear, _OF_THREAD.worker)
    return _OF_THREAD.worker


def _clear(worker: Worker) -> None:
    with contextlib.suppress(Exception):
        worker.clear()
