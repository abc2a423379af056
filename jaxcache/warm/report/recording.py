"""Make a recipe of what the listener has recorded: the parent's side of ``--record``."""

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxcache.cache.archive import write_file
from jaxcache.cache.leftovers import scratch_directory
from jaxcache.cache.recipe.format import encode_recipe, is_recipe
from jaxcache.cache.recipe.model import KEY_SETTINGS, Environment, Recipe, Request
from jaxcache.core.compile_event import CompileFinished
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.units import format_count
from jaxcache.warm.child.launch import RunResult
from jaxcache.warm.report.builder import ReportBuilder
from jaxcache.warm.report.events import CompileStarted

#: JAX measures to less than that; more digits would only make the file larger.
_SECONDS_DIGITS = 3
#: The facts of an environment that other events have.
_TOLD = (
    *("jaxlib_digest", "platform_version", "device_kind"),
    *("topology_fingerprint", "key_settings"),
)


@dataclass(frozen=True, slots=True)
class RecordingDirectory:
    """The directory into which the listener puts modules and options, and its instructions.

    Args:
        collect: answer modules of more operations with zeros; None to run everything.
    """

    directory: Path
    path: str
    """The recipe to write."""
    collect: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make the listener record."""
        env = {"JAXCACHE_RECORD": str(self.directory)}
        return env if self.collect is None else {**env, "JAXCACHE_COLLECT": str(self.collect)}

    def save(
        self, recorder: ReportBuilder, recorded_seconds: Mapping[str, float], ended: RunResult
    ) -> tuple[int, list[str]]:
        """Write a recipe of what a run has recorded, atomically; no file if it recorded nothing.

        Args:
            recorded_seconds: exact compile seconds by key, for what was not compiled in this run.
            ended: how the run ended, for the notes.

        Returns:
            The number of modules in it, and the notes about it.

        Raises:
            JaxcacheError: ``io-error``.
        """
        recipe = self._recipe(recorder, recorded_seconds, ended)
        if not recipe.requests:
            return 0, [*recipe.notes, f"nothing was recorded, so {self.path} was not written"]
        write_file(
            self.path, encode_recipe(recipe, lambda digest: (self.directory / digest).read_bytes())
        )
        stubbed = sum(r.stubbed for r in recipe.requests)
        stubs = f", {stubbed} of them only collected" if stubbed else ""
        count = format_count(len(recipe.requests), "module")
        return len(recipe.requests), [*recipe.notes, f"recorded {count} in {self.path}{stubs}"]

    def _recipe(
        self, recorder: ReportBuilder, recorded_seconds: Mapping[str, float], ended: RunResult
    ) -> Recipe:
        done = {(e.process, e.number): e for e in recorder.modules}
        environments: list[Environment] = []
        groups: defaultdict[tuple[object, ...], list[Request]] = defaultdict(list)
        for place, begun in recorder.recorded.items():
            recorded = begun.recorded
            if (
                recorded
                and begun.environment
                and (self.directory / recorded.bytecode).is_file()
                and (self.directory / recorded.options).is_file()
            ):
                environment = _environment(recorder, begun, begun.environment)
                if environment not in environments:
                    environments.append(environment)
                request = replace(recorded, environment=environments.index(environment))
                if place in done:
                    request = _complete(request, done[place], recorded_seconds)
                groups[_identity(request)].append(request)
        requests = tuple(_fold(same) for same in groups.values())
        notes = dict.fromkeys([s.detail for s in recorder.heard("remark")] + [*_ends(ended)])
        return Recipe(tuple(environments), requests, tuple(notes))


def _environment(recorder: ReportBuilder, begun: CompileStarted, sent: Environment) -> Environment:
    """Return the environment of a process, with what other events told of it."""
    settings = {n: v for n, v in sent.settings.items() if type(v) is KEY_SETTINGS.get(n)}
    origin = recorder.origin(begun.process, begun.backend)
    return replace(sent, settings=settings, **{name: origin[name] for name in _TOLD})


def _ends(ended: RunResult) -> Iterator[str]:
    if ended.idle:
        yield "the program was stopped: it requested no new module"
    if ended.exit_code < 0 or ended.timed_out or ended.interrupted:
        yield "the program was stopped: later compiles are missing"
    elif ended.exit_code:
        yield f"the program exited with code {ended.exit_code}; earlier compiles are recorded"


def _complete(
    request: Request, done: CompileFinished, recorded_seconds: Mapping[str, float]
) -> Request:
    """Add what is known of a request when it has ended."""
    seconds = done.seconds_of("compile")
    if done.outcome == "hit":
        seconds = recorded_seconds.get(done.key or "", done.stored_seconds)
    names = ("key", "stubbed", "function", "file", "line")
    facts = {name: getattr(done, name) for name in names}
    return replace(request, components=done.components or {}, compile_seconds=seconds, **facts)


#: What is compiled, and for which devices.
_COMPILED = (
    *("bytecode", "options", "device_ids", "device_shape", "executable_device_ids"),
    "callbacks",
)


def _identity(request: Request) -> tuple[object, ...]:
    """Return the key or its substitute: requests for which this is equal are one compile."""
    if request.key:
        return request.environment, request.key, request.callbacks
    return request.environment, *(getattr(request, name) for name in _COMPILED)


def _fold(same: Sequence[Request]) -> Request:
    """One request for several of the same compile."""
    first = next((r for r in same if r.key), same[0])
    measured = [r.compile_seconds for r in same if r.compile_seconds is not None]
    return replace(
        first,
        compile_seconds=round(sum(measured) / len(measured), _SECONDS_DIGITS) if measured else None,
        doubts=tuple(dict.fromkeys(d for r in same for d in r.doubts)),
        stubbed=all(r.stubbed for r in same),
        occurrences=len(same),
    )


@contextlib.contextmanager
def open_recording(
    path: str | None, collect: int | None = None
) -> Iterator[RecordingDirectory | None]:
    """Give a directory to record into; None where no recipe is written, or no room is left.

    Args:
        collect: see :class:`RecordingDirectory`.

    Raises:
        UsageError: ``exists`` where something else than a recipe has that name: before the program
            runs, not after.
    """
    if path is None:
        yield None
        return
    if os.path.lexists(path) and not is_recipe(path):
        raise UsageError(
            f"{path} exists and is not a recipe",
            code="exists",
            hint="name another file, or remove it",
        )
    with contextlib.ExitStack() as stack:
        recording = None
        with contextlib.suppress(JaxcacheError):  # the program runs all the same
            directory = stack.enter_context(scratch_directory("record"))
            recording = RecordingDirectory(Path(directory), path, collect)
        yield recording
