"""What runs inside a worker of a dask cluster: it has children of its own, as everywhere."""

import atexit
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Collection
from dataclasses import dataclass

from jaxcache.warm.process import find_python
from jaxcache.warm.replay.bench import Answer, Bench, Failure
from jaxcache.warm.replay.plan import Job
from jaxcache.warm.replay.worker import Team


@dataclass(frozen=True, slots=True)
class Wish:
    """One job as it travels to a cluster."""

    job: Job
    blobs: tuple[bytes, bytes]
    used_at: str
    cached: Collection[str]
    """Keys of this module that the cache has."""
    check: bool
    python: str | None
    devices: int | None


@dataclass(frozen=True, slots=True)
class Parcel:
    """What came of it, with the entry's bytes."""

    answer: Answer | Failure
    name: str | None = None
    data: bytes = b""


class _OfThread(threading.local):
    """The children of one thread of the dask worker, kept from job to job."""

    bench: Bench | None = None
    python: tuple[str | None, int | None] | None = None


_OF_THREAD = _OfThread()


def compile_wish(wish: Wish) -> Parcel:
    """Compile one request on this machine; children are started once and kept."""
    bench = _bench(wish.python, wish.devices)

    def is_wanted(key: str) -> bool:
        return not (wish.check or key in wish.cached)

    answer = bench.attempt(wish.job, wish.blobs, wish.used_at, is_wanted)
    if answer is None:
        return Parcel(Failure("worker-died", "the cluster's worker was stopped"))
    if isinstance(answer, Failure) or answer.file is None:
        return Parcel(answer)
    data = answer.file.read_bytes()
    answer.file.unlink(missing_ok=True)
    return Parcel(answer, answer.file.name, data)


def _bench(python: str | None, devices: int | None) -> Bench:
    if _OF_THREAD.bench is None or _OF_THREAD.python != (python, devices):
        if _OF_THREAD.bench is not None:
            _OF_THREAD.bench.clear()
        top = tempfile.mkdtemp(prefix="jaxcache-compile-")
        atexit.register(shutil.rmtree, top, ignore_errors=True)

        def make(job: Job) -> Team:
            return Team(find_python(python), job.environment, devices=devices, folder=top)

        _OF_THREAD.bench = Bench(make)
        _OF_THREAD.python = (python, devices)
        atexit.register(_clear, _OF_THREAD.bench)
    return _OF_THREAD.bench


def _clear(bench: Bench) -> None:
    with contextlib.suppress(Exception):
        bench.clear()
