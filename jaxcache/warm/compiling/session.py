"""The state shared by the jobs of one ``compile``: the recipe, the cache, and their results."""

import io
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from jaxcache.cache.allow_lists import kept_flags
from jaxcache.cache.recipe.format import RecipeFile
from jaxcache.cache.recipe.model import Environment, Request
from jaxcache.core.machine import hashes_path
from jaxcache.options.run import CompileOptions
from jaxcache.units import format_count
from jaxcache.warm.compiling.plan import CompileResult, Job, result_of
from jaxcache.warm.compiling.worker import Answer, HostJax, Worker
from jaxcache.warm.crosshost.cross_target import CrossTarget, frame_payload
from jaxcache.warm.delivery import Delivery


class Session:
    """Hands out what a job needs, and takes what came of it; used from several threads."""

    def __init__(
        self,
        file: RecipeFile,
        delivery: Delivery,
        options: CompileOptions,
        used_at: str,
        cross: CrossTarget | None = None,
    ) -> None:
        self._file = file
        self._reading = threading.Lock()
        self.options = options
        self.used_at = used_at
        """The cache directory as JAX is going to be given it; it is part of some keys. Empty leaves
        it out of them."""
        self.cross = cross
        self.delivery = delivery
        self.jax: HostJax | None = None
        """The jax of the first children."""

    def blobs(self, job: Job) -> tuple[bytes, bytes]:
        """The module and the compile options of a job."""
        with self._reading:
            return self._file.blob(job.request.bytecode), self._file.blob(job.request.options)

    def attempt(self, worker: Worker, job: Job) -> Answer | CompileResult | None:
        """Have one job done on this machine; see :meth:`Worker.attempt`."""

        def is_wanted(key: str) -> bool:
            return not (self.options.check_only or self.delivery.has(key))

        return worker.attempt(job, self.blobs(job), self.used_at, is_wanted)

    def conclude(
        self, job: Job, answer: Answer | CompileResult, data: bytes | None = None
    ) -> CompileResult:
        """Take what came of one job, and bring what was written into the cache.

        Args:
            data: the entry, where its file is on another machine.

        Raises:
            JaxcacheError: the cache cannot be written.
        """
        if isinstance(answer, CompileResult):
            return answer
        description = self._describe(job, answer)
        if answer.file is None:
            return description
        digest = None
        is_here = data is None
        if self.cross is not None:
            framed = frame_payload(answer.file, answer.seconds or 0.0, self.cross.profile.codec)
            data = framed.frame
            digest = framed.payload_sha256
        with answer.file.open("rb") if data is None else io.BytesIO(data) as file:
            info = self.delivery.take(
                answer.file.name, file, answer.key, facts=_facts(job, answer), payload_sha256=digest
            )
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
