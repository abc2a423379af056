"""Make a recipe of what the listener has recorded: the parent's side of ``--record``."""

import contextlib
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxcache.cache.archive import write_file
from jaxcache.cache.recipe.format import encode_recipe, is_recipe
from jaxcache.cache.recipe.manifest import KEY_SETTINGS
from jaxcache.cache.recipe.model import Environment, Recipe, Request
from jaxcache.errors import UsageError
from jaxcache.warm.inbox import Event
from jaxcache.warm.launch import Ended

#: JAX measures to less than that; more digits would only make the file larger.
_SECONDS_DIGITS = 3


@dataclass(slots=True)
class RecipeRecorder:
    """Takes the events of a run; :meth:`recipe` can be made of whatever has arrived.

    Args:
        folder: where the listener puts modules and options.
    """

    folder: Path
    collect: int | None = None
    """Answer modules of more operations with zeros; None to run everything."""
    _processes: dict[int, Event] = field(default_factory=dict)
    _backends: dict[tuple[int, Any], Event] = field(default_factory=dict)
    _begun: dict[tuple[int, Any], Event] = field(default_factory=dict)
    _ended: dict[tuple[int, Any], Event] = field(default_factory=dict)
    _notes: dict[str, None] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make the listener record."""
        env = {"JAXCACHE_RECORD": str(self.folder)}
        return env if self.collect is None else {**env, "JAXCACHE_COLLECT": str(self.collect)}

    def add(self, event: Event) -> None:
        """Take one event; kinds that are not known are left alone."""
        kind, place = event["event"], (event["process"], event.get("id"))
        if kind == "jax":
            self._processes[event["process"]] = event
        elif kind == "backend":
            self._backends[event["process"], event.get("backend")] = event
        elif kind == "begin" and "recorded" in event:
            self._begun[place] = event
        elif kind == "module":
            self._ended[place] = event
        elif kind == "remark":
            self._notes[str(event.get("detail"))] = None

    def recipe(self, known_seconds: Mapping[str, float], ended: Ended | None = None) -> Recipe:
        """Make the recipe.

        Args:
            known_seconds: exact compile seconds by key, for what was not compiled in this run.
            ended: how the run ended, for the notes.
        """
        environments: dict[str, int] = {}
        found: list[Environment] = []
        groups: defaultdict[tuple[object, ...], list[Request]] = defaultdict(list)
        for place, begun in self._begun.items():
            recorded = begun["recorded"]
            if not self._is_kept(recorded):
                continue
            environment = self._environment(place[0], recorded)
            number = environments.setdefault(repr(environment), len(found))
            if number == len(found):
                found.append(environment)
            request = _request(begun, self._ended.get(place, {}), number, known_seconds)
            groups[_identity(request)].append(request)
        requests = tuple(_fold(same) for same in groups.values())
        return Recipe(tuple(found), requests, tuple(self._all_notes(ended)))

    def blob(self, digest: str) -> bytes:
        """The bytes of a module or of options."""
        return (self.folder / digest).read_bytes()

    def _is_kept(self, recorded: Mapping[str, Any]) -> bool:
        return all((self.folder / str(recorded[n])).is_file() for n in ("bytecode", "options"))

    def _environment(self, process: int, recorded: Mapping[str, Any]) -> Environment:
        told = recorded["environment"]
        jax = self._processes.get(process, {})
        backend = self._backends.get((process, recorded.get("backend")), {})
        settings: dict[str, Any] = {
            name: value
            for name, value in told["settings"].items()
            if name in KEY_SETTINGS and type(value) is KEY_SETTINGS[name]
        }
        return Environment(
            jax_version=str(jax.get("jax")),
            jaxlib_version=str(jax.get("jaxlib")),
            platform=told["platform"],
            device_count=told["device_count"],
            process_count=told["process_count"],
            process_id=told["process_id"],
            xla_flags=tuple(told["xla_flags"]),
            libtpu_init_args=tuple(told["libtpu_init_args"]),
            argv_flags=tuple(told["argv_flags"]),
            settings=settings,
            cache_dir=told["cache_dir"],
            jaxlib_digest=jax.get("jaxlib_digest"),
            python_version=told["python_version"],
            platform_version=backend.get("platform_version"),
            device_kind=backend.get("device_kind"),
            topology_fingerprint=backend.get("topology_fingerprint"),
        )

    def _all_notes(self, ended: Ended | None) -> Iterator[str]:
        yield from self._notes
        if ended is not None and ended.idle:
            yield "the program was stopped: it asked for no new module any more"
        if ended is not None and (ended.exit_code < 0 or ended.timed_out or ended.interrupted):
            yield "the program was stopped: what it would have compiled later is missing"
        elif ended is not None and ended.exit_code:
            yield f"the program exited with code {ended.exit_code}; what it compiled is recorded"


def _request(
    begun: Event, module: Event, environment: int, known_seconds: Mapping[str, float]
) -> Request:
    recorded = begun["recorded"]
    executable = recorded.get("executable_device_ids")
    refusals = list(recorded["refusals"])
    if not all(f.startswith("--") for f in recorded["environment"]["xla_flags"]):
        refusals.append("flags-file")
    return Request(
        module=str(begun.get("module")),
        bytecode=recorded["bytecode"],
        options=recorded["options"],
        environment=environment,
        device_ids=tuple(recorded["device_ids"]),
        device_shape=tuple(recorded["device_shape"]),
        executable_device_ids=None if executable is None else tuple(executable),
        key=module.get("key"),
        components=module.get("components") or {},
        callbacks=recorded["callbacks"],
        refusals=tuple(refusals),
        doubts=tuple(recorded.get("doubts", ())),
        stubbed=bool(module.get("stubbed")),
        function=module.get("function"),
        file=module.get("file"),
        line=module.get("line"),
        compile_seconds=_seconds(module, known_seconds),
    )


def _seconds(module: Event, known_seconds: Mapping[str, float]) -> float | None:
    if module.get("outcome") == "hit":
        return known_seconds.get(module["key"], module.get("stored_seconds"))
    compile_ = module.get("compile")
    return float(compile_[1]) if compile_ else None


def _identity(request: Request) -> tuple[object, ...]:
    """The key, or what stands for it: two requests that are equal in this are one compile."""
    if request.key:
        return request.environment, request.key, request.callbacks
    return (
        request.environment,
        request.bytecode,
        request.options,
        request.device_ids,
        request.device_shape,
        request.executable_device_ids,
        request.callbacks,
    )


def _fold(same: Sequence[Request]) -> Request:
    """One request for several of the same compile."""
    first = next((r for r in same if r.key), same[0])
    known = [r.compile_seconds for r in same if r.compile_seconds is not None]
    return replace(
        first,
        compile_seconds=round(sum(known) / len(known), _SECONDS_DIGITS) if known else None,
        doubts=tuple(dict.fromkeys(d for r in same for d in r.doubts)),
        stubbed=all(r.stubbed for r in same),
        occurrences=len(same),
    )


@contextlib.contextmanager
def recording(path: str | None, collect: int | None = None) -> Iterator[RecipeRecorder | None]:
    """Give a recorder with a folder of its own, or None where there is no recipe to write.

    Args:
        collect: see :class:`RecipeRecorder`.

    Raises:
        UsageError: ``exists`` where something else than a recipe has that name, ``cannot-write``
            where its folder is none: before the program runs, not after.
    """
    if path is None:
        yield None
        return
    if os.path.lexists(path) and not is_recipe(path):
        raise UsageError(
            f"{path} exists and is no recipe", code="exists", hint="name another file, or remove it"
        )
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise UsageError(f"there is no folder for {path}", code="cannot-write")
    with tempfile.TemporaryDirectory(prefix="jaxcache-record-") as folder:
        yield RecipeRecorder(Path(folder), collect)


def save_recipe(
    recorder: RecipeRecorder, path: str, known_seconds: Mapping[str, float], ended: Ended
) -> tuple[int, list[str]]:
    """Write what was recorded, atomically; nothing recorded makes no recipe.

    Returns:
        How many modules there are in it, and what to say of it.

    Raises:
        JaxcacheError: ``io-error``.
    """
    recipe = recorder.recipe(known_seconds, ended)
    if not recipe.requests:
        return 0, [f"nothing was recorded, so {path} was not written"]
    write_file(path, encode_recipe(recipe, recorder.blob))
    noun = "module" if len(recipe.requests) == 1 else "modules"
    stubbed = sum(r.stubbed for r in recipe.requests)
    told = f", {stubbed} of them only collected" if stubbed else ""
    return len(recipe.requests), [
        *recipe.notes,
        f"recorded {len(recipe.requests)} {noun} in {path}{told}",
    ]
