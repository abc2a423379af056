"""Several workers, here or on dask, each with one module at a time, longest first.

``compile --dask`` gives the same jobs to the workers of a dask.distributed cluster. A worker that
is lost is dask's to replace: the scheduler gives its jobs to others. Entries come back here and are
written here, so the cluster needs no access to the cache.
"""

import atexit
import contextlib
import io
import shutil
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxcache.cache.allow_lists import kept_flags
from jaxcache.cache.recipe import Environment, RecipeFile, Request
from jaxcache.core.machine import hashes_path
from jaxcache.core.system import resident_bytes
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.options.run import CompileOptions
from jaxcache.units import format_count, format_install
from jaxcache.warm.child.child import find_python
from jaxcache.warm.compiling.worker import (
    Answer,
    CompilePlan,
    CompileResult,
    HostJax,
    Job,
    Processes,
    Worker,
    failed,
    launch_kind,
    result_of,
)
from jaxcache.warm.crosshost.cross_target import CrossTarget, Delivery, frame_payload


@dataclass(slots=True)
class Session:
    """Hands out what a job needs, and takes what came of it; used from several threads."""

    file: RecipeFile
    delivery: Delivery
    options: CompileOptions
    used_at: str
    """The cache directory as JAX is going to be given it; it is part of some keys. Empty leaves it
    out of them."""
    cross: CrossTarget | None = None
    jax: HostJax | None = None
    """The jax of the first children."""
    progress: Callable[[int], None] = lambda _: None
    """Receives the number of jobs that are done, also when one begins."""
    _done: int = 0
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def blobs(self, job: Job) -> tuple[bytes, bytes]:
        """The module and the compile options of a job."""
        with self._reading:
            return self.file.blob(job.request.bytecode), self.file.blob(job.request.options)

    def attempt(self, worker: Worker, job: Job) -> Answer | CompileResult | None:
        """Have one job done on this machine; see :meth:`Worker.attempt`."""

        def is_wanted(key: str) -> bool:
            return not (self.options.check_only or self.delivery.has(key))

        with self._reading:
            self.progress(self._done)
        return worker.attempt(job, self.blobs(job), self.used_at, is_wanted)

    def conclude(
        self, job: Job, answer: Answer | CompileResult, data: bytes | None = None
    ) -> CompileResult:
        """Take what came of one job, count it, and bring what was written into the cache.

        Args:
            data: the entry, where its file is on another machine.

        Raises:
            JaxcacheError: the cache cannot be written.
        """
        result = self._conclude(job, answer, data)
        with self._reading:
            self._done += 1
            self.progress(self._done)
        return result

    def _conclude(
        self, job: Job, answer: Answer | CompileResult, data: bytes | None
    ) -> CompileResult:
        if isinstance(answer, CompileResult):
            return answer
        description = self._describe(job, answer)
        if answer.file is None:
            return description
        is_here = data is None
        is_cross = self.cross is not None
        if self.cross is not None:
            data = frame_payload(answer.file, answer.seconds or 0.0, self.cross.profile.codec)
        facts = _facts(job, answer)
        with answer.file.open("rb") if data is None else io.BytesIO(data) as file:
            name = answer.file.name
            info = self.delivery.take(name, file, answer.key, facts, records_digest=is_cross)
        if is_here:
            answer.file.unlink(missing_ok=True)
        return replace(
            description,
            outcome="already-cached" if info is None else "written",
            compile_seconds=answer.seconds,
            size_bytes=None if info is None else info.size_bytes,
            tuning=answer.tuning,
        )

    def _describe(self, job: Job, answer: Answer) -> CompileResult:
        """Return the result of a job that was not compiled."""
        self.jax = self.jax or answer.jax
        differs = _differing(job.request, answer)
        # Whether the directory is part of the key, and another one than where it was recorded.
        is_elsewhere = job.environment.cache_dir != self.used_at
        is_moved = is_elsewhere and hashes_path(answer.jax.jax_version)
        return result_of(
            job.request,
            "already-cached" if self.delivery.has(answer.key) else "missing",
            key=answer.key,
            compile_seconds=job.request.compile_seconds,
            differs=differs,
            moved=is_moved and differs == ("compile_options",),
            attempts=answer.attempts,
        )


def _differing(request: Request, answer: Answer) -> tuple[str, ...]:
    """The parts of a key that are not as recorded."""
    if request.key is None or answer.key == request.key:
        return ()
    here = answer.components
    requested = request.components
    names = tuple(n for n in dict.fromkeys([*here, *requested]) if here.get(n) != requested.get(n))
    return names or ("unknown",)


def _facts(job: Job, answer: Answer) -> dict[str, Any]:
    """The facts about one entry for the ledger."""
    e = job.environment
    flags = kept_flags((*e.xla_flags, *e.libtpu_init_args, *e.argv_flags))
    facts = {
        **asdict(answer.jax),
        "compile_options": None,
        "process_count": e.process_count,
        "key_settings": e.key_settings,
        "xla_flags": " ".join(sorted(flags)),
        "function": job.request.function,
        "components": dict(answer.components),
        "tuning": answer.tuning,
        "compile_seconds": None if answer.seconds is None else round(answer.seconds, 6),
    }
    return {name: value for name, value in facts.items() if value is not None}


def version_notes(environments: Sequence[Environment], jax: HostJax | None) -> Iterator[str]:
    """Say where this jax is not the one that recorded, and what follows from that."""
    if jax is None:
        return
    for name, shown in (("jax_version", "jax"), ("jaxlib_version", "jaxlib")):
        others = {getattr(e, name) for e in environments} - {getattr(jax, name)}
        if others:
            yield (
                f"recorded with {shown} {', '.join(sorted(others))}, compiled with "
                f"{shown} {getattr(jax, name)}: the keys are those of the latter"
            )
    builds = {e.jaxlib_digest for e in environments if e.jaxlib_version == jax.jaxlib_version}
    if builds - {None, jax.jaxlib_digest}:
        yield "this jaxlib is another build than the recorded one; keys do not distinguish builds"


def key_notes(done: Sequence[CompileResult]) -> Iterator[str]:
    """Say how many keys are not the recorded ones, and why."""
    if moved := sum(m.moved for m in done):
        yield (
            f"{format_count(moved, 'key')} not as recorded, because this jax hashes the cache's "
            "path, which is another one here or left out"
        )
    differing = [m for m in done if m.differs and not m.moved]
    if differing:
        parts = Counter(name for m in differing for name in m.differs)
        names = ", ".join(f"{name} ({count})" for name, count in parts.most_common())
        yield f"{format_count(len(differing), 'key')} not as recorded: they differ in {names}"


_SHARE = 0.8
#: What a compile is taken to need beyond what its worker holds already.
_RESERVE_BYTES = 256 << 20
_LOOK_SECONDS = 0.5


@dataclass(slots=True)
class Pool:
    """Works through jobs in threads, each of which feeds a worker of its own.

    Args:
        make_processes: starts children for a job.
    """

    session: Session
    make_processes: Callable[[Job], Processes]
    workers: int
    memory_bytes: int | None = None
    results: dict[int, CompileResult] = field(default_factory=dict)
    """By position of the job in what :meth:`run` was given."""
    _left: list[tuple[int, Job]] = field(default_factory=list)
    refusals: dict[tuple[object, ...], JaxcacheError] = field(default_factory=dict)
    """Errors of children that could not be started, by the kind of their environment."""
    _processes: set[Processes] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False
    _crash: BaseException | None = None

    def run(self, jobs: Sequence[Job]) -> bool:
        """Do all jobs, or as many as an interrupt leaves time for.

        Returns:
            Whether it was interrupted.
        """
        self._left = list(enumerate(jobs))
        limiter = MemoryLimiter(self.memory_bytes, self._pids)
        threads = [
            threading.Thread(target=self._guarded, args=(limiter,), daemon=True)
            for _ in range(min(self.workers, len(jobs)))
        ]
        interrupted = False
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._stop()
            for thread in threads:
                thread.join()
        if self._crash is not None:
            raise self._crash
        return interrupted

    def _pids(self) -> list[int]:
        with self._lock:
            return [pid for processes in self._processes for pid in processes.pids]

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            running = list(self._processes)
        for processes in running:
            processes.kill()

    def _guarded(self, limiter: "MemoryLimiter") -> None:
        try:
            self._work(limiter)
        except BaseException as error:
            self._crash = error
            self._stop()

    def _work(self, limiter: "MemoryLimiter") -> None:
        worker = Worker(self._start, self._end, lambda: self._stopped)
        try:
            while (taken := self._take(worker.kind)) is not None:
                position, job = taken
                with limiter.admitted(give_back=worker.clear):
                    answer = self.session.attempt(worker, job)
                if answer is None:
                    return
                self.results[position] = self.session.conclude(job, answer)
        finally:
            worker.clear()

    def _take(self, kind: tuple[object, ...] | None) -> tuple[int, Job] | None:
        """The longest job that the children at hand can do, else the longest of all."""
        with self._lock:
            if self._stopped or not self._left:
                return None
            for number, (_, job) in enumerate(self._left):
                if kind is None or launch_kind(job.environment) == kind:
                    return self._left.pop(number)
            return self._left.pop(0)

    def _start(self, job: Job) -> Processes:
        """Start children for a job; a kind that could not be started once is not tried again.

        Raises:
            JaxcacheError
        """
        kind = launch_kind(job.environment)
        with self._lock:
            refusal = self.refusals.get(kind)
        if refusal is not None:
            raise refusal
        try:
            processes = self.make_processes(job)
        except JaxcacheError as error:
            with self._lock:
                self.refusals.setdefault(kind, error)
            raise
        with self._lock:
            self._processes.add(processes)
            stopped = self._stopped
        if stopped:
            processes.kill()
        return processes

    def _end(self, processes: Processes) -> None:
        with self._lock:
            self._processes.discard(processes)
        processes.stop()


def available_bytes() -> int | None:
    """Memory that this host, or our control group, can still give; None if unknown."""
    limits = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits.append(next(int(x.split()[1]) << 10 for x in lines if x.startswith("MemAvailable")))
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text())
        limits.append(most - int((group / "memory.current").read_text()))
    return min(limits, default=None)


class MemoryLimiter:
    """Lets a module begin only where the workers' memory allows it; one may always run.

    Args:
        limit_bytes: of all workers together; None for four fifths of what is available now.
        pids: the workers that live.
    """

    def __init__(self, limit_bytes: int | None, pids: Callable[[], Iterable[int]]) -> None:
        free = available_bytes()
        self._limit = limit_bytes or (None if free is None else int(free * _SHARE))
        self._pids = pids
        self._changed = threading.Condition()
        self._running = 0

    @contextlib.contextmanager
    def admitted(self, give_back: Callable[[], None]) -> Iterator[None]:
        """Wait for memory, and hold a place while a module compiles.

        Args:
            give_back: called before waiting; lets go of what the caller itself holds.
        """
        with self._changed:
            waited = False
            while self._running and not self._fits():
                if not waited:
                    give_back()
                waited = True
                self._changed.wait(_LOOK_SECONDS)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _fits(self) -> bool:
        if self._limit is None:
            return True
        return resident_bytes(*self._pids()) + _RESERVE_BYTES <= self._limit


_CONNECT_SECONDS = 30


def compile_on_cluster(
    address: str, plan: CompilePlan, session: Session
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
        except KeyboardInterrupt:
            interrupted = True
            client.cancel(list(futures), force=True)
    return [results[i] for i in sorted(results)], [], interrupted


def _submit(client: Any, plan: CompilePlan, session: Session) -> dict[Any, tuple[int, Job]]:
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
            cached.get(job.request.module, []),
            session.options,
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
        answer = failed(job.request, "worker-died", detail)
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
    cached: Collection[str],
    options: CompileOptions,
) -> tuple[Answer | CompileResult, bytes]:
    """Compile one request on this machine; children are started once and kept.

    Args:
        cached: keys of its module that the cache has.

    Returns:
        The answer, and the bytes of the entry that it names.
    """

    def is_wanted(key: str) -> bool:
        return not (options.check_only or key in cached)

    answer = _worker(options).attempt(job, blobs, used_at, is_wanted)
    if answer is None:
        return failed(job.request, "worker-died", "the cluster's worker was stopped"), b""
    if isinstance(answer, CompileResult) or answer.file is None:
        return answer, b""
    data = answer.file.read_bytes()
    answer.file.unlink(missing_ok=True)
    return answer, data


def _worker(options: CompileOptions) -> Worker:
    kind = (options.python, options.devices)
    if _OF_THREAD.worker is None or _OF_THREAD.python != kind:
        if _OF_THREAD.worker is not None:
            _OF_THREAD.worker.clear()
        top = tempfile.mkdtemp(prefix="jaxcache-compile-")
        atexit.register(shutil.rmtree, top, ignore_errors=True)

        def make(job: Job) -> Processes:
            python = find_python(options.python)
            return Processes(python, job.environment, devices=options.devices, directory=top)

        _OF_THREAD.worker = Worker(make)
        _OF_THREAD.python = kind
        atexit.register(_OF_THREAD.worker.clear)
    return _OF_THREAD.worker
