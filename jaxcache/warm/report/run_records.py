"""Record the runs of the programs that a run has observed: see :mod:`jaxcache.core.runs`."""

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxcache.core import runs
from jaxcache.core.call_site import NamedProgram, is_library
from jaxcache.core.compile_event import CompileFinished
from jaxcache.core.machine import hashes_path
from jaxcache.core.names import XLA_CACHES
from jaxcache.core.runs import CompileRow, Run
from jaxcache.core.sketch import read_sketch
from jaxcache.warm.report.builder import ReportBuilder
from jaxcache.warm.report.events import ProcessStarted
from jaxcache.warm.report.report import Process

#: Lines after the first of a function, of its decorators, that are searched for its name.
_MAX_DECORATOR_LINES = 40
_MAX_ALL_SOURCE_BYTES = 16 << 20
#: Directories that the path of a source file may go up from that of the program.
_MAX_UPWARDS = 3
_MACHINE = ("platform", "device_kind", "device_count", "process_count")
#: What the path of a library's file has before the part that is the same everywhere.
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_DEFINITIONS = (b"def ", b"class ", b"async def ")


class DescribedRun(NamedTuple):
    """A program that was run, and the earlier runs of it."""

    directory: str
    identity: str
    run: Run
    history: tuple[Run, ...]
    compiles: tuple[CompileFinished, ...]
    sources: "Sources"


def record_runs(
    recorder: ReportBuilder,
    seconds: Mapping[str, float],
    own: ProcessStarted | None = None,
) -> frozenset[str]:
    """Record each program of a run in each local directory that it used.

    A directory that cannot be written learns nothing.

    Args:
        seconds: exact compile seconds by key, as the ledger has them.
        own: this process, if it is the one that compiles.

    Returns:
        The keys that were written by a program whose last runs made others for the same calls.
    """
    varying: frozenset[str] = frozenset()
    for one in describe_runs(recorder, seconds, own, records=True):
        with contextlib.suppress(OSError):
            runs.record_run(one.directory, one.identity, one.run, one.sources.complete)
            history = runs.read_history(one.directory, one.identity, one.run.program)
            varying |= find_varying(history)
    return varying


def describe_runs(
    recorder: ReportBuilder,
    seconds: Mapping[str, float],
    own: ProcessStarted | None = None,
    *,
    directory: str | None = None,
    records: bool = False,
) -> Iterator[DescribedRun]:
    """Yield each program of a run for each local directory that it used.

    Args:
        seconds: exact compile seconds by key, as the ledger has them.
        own: this process, if it is the one that compiles.
        directory: the cache whose records count, if the run wrote elsewhere.
        records: only to record them: the earlier runs are not read.
    """
    for (used, *_), compiles in _by_program(recorder, own, directory).items():
        first = min(compiles, key=lambda one: one.process_id)
        process = recorder.processes[first.process]
        started = own or process.started
        named = started.program or NamedProgram("", "")  # it has one, or would not be here
        sources = Sources(_directory_of(named), started.cwd, started.at)
        rows = tuple(_rows(compiles, sources, seconds))
        for done in compiles:
            if done.outcome != "hit" and (sketch := read_sketch(recorder.sketch_of(done))):
                for file in {line.file for line in sketch.lines}:
                    sources.add(file)
        facts = recorder.origin(first.process, first.backend)
        identity = runs.identify(named.place)
        with contextlib.suppress(OSError):
            run = Run(
                at=started.at,
                program=named.name,
                argv=runs.hide_values(started.argv[1:], runs.read_salt(used, make=records)),
                hash_seed=process.loaded.hash_seed,
                versions=_versions(facts, sources),
                machine={name: facts[name] for name in _MACHINE if facts[name] is not None},
                settings={name: list(value) for name, value in process.configured.changed.items()},
                xla_flags=tuple((process.loaded.xla_flags or "").split()),
                cache_path=hashed_path(process),
                sources=sources.digests,
                rows=rows,
            )
            history: tuple[Run, ...] = ()
            if not records:
                history = runs.read_history(used, identity, named.name, before=started.at)
                run = sources.complete(run, history)
            yield DescribedRun(used, identity, run, history, tuple(compiles), sources)


def _by_program(
    recorder: ReportBuilder, own: ProcessStarted | None, chosen: str | None
) -> dict[tuple[str, ...], list[CompileFinished]]:
    """Return the compiles by directory and program; the processes of one program count as one."""
    used = recorder.used_directory
    grouped: defaultdict[tuple[str, ...], list[CompileFinished]] = defaultdict(list)
    for done in recorder.modules:
        started = own or recorder.processes[done.process].started
        directory = chosen or done.local_directory or used
        if started.program is None or not directory or "://" in directory:
            continue
        count = recorder.origin(done.process, done.backend)["process_count"] or 1
        words = started.argv[1:] if count == 1 else ()
        grouped[directory, started.program.place, *words].append(done)
    return grouped


def _rows(
    compiles: Iterable[CompileFinished], sources: "Sources", seconds: Mapping[str, float]
) -> Iterator[CompileRow]:
    """Yield the first compile of each key, and each place where none was made."""
    known: set[tuple[Any, ...]] = set()
    for done in compiles:
        site = done.site
        place = (site, done.file, done.line) if done.key is None else ()
        distinct = (done.process_id, done.module, done.key, place)
        if distinct in known:
            continue
        known.add(distinct)
        took = None if done.outcome == "hit" else done.seconds_of("compile")
        took = seconds.get(done.key or "", 0.0) if took is None else took
        yield CompileRow(
            module=done.module,
            key=done.key or "",
            outcome=done.outcome,
            reason=done.reason,
            kind=site.kind if site else "",
            function=done.function or "",
            file=sources.add(done.file),
            line=done.line or 0,
            definition=sources.definition(done.file, done.line or 0),
            call_file=sources.add(site.file) if site else "",
            call_line=site.line if site else 0,
            call=sources.line(site.file, site.line) if site else "",
            signature=site.signature if site else "",
            process=done.process_id,
            seconds=round(took, 6),
        )


def _directory_of(program: NamedProgram) -> str:
    name, _, place = program.place.rpartition("\0")
    return place if name and os.path.isdir(place) else os.path.dirname(place)


def hashed_path(process: Process) -> str:
    """Return the path that the keys of a process contain, as it is set; empty where they do not."""
    settings = process.settings
    if process.jax and hashes_path(process.jax, settings.get(XLA_CACHES) or ""):
        return str(settings.get("jax_compilation_cache_dir") or "")
    return ""


def _versions(facts: Mapping[str, Any], sources: "Sources") -> dict[str, str]:
    named = {
        "jax": facts["jax_version"],
        "jaxlib": facts["jaxlib_version"],
        "platform_version": facts["platform_version"],
    }
    return {**sources.distributions(), **{n: str(v) for n, v in named.items() if v}}


class Sources:
    """The source files that the compiles of one run name.

    Args:
        directory: the program's.
        working_directory: where it was started.
        began_at: when the run began; a file that was edited since is not what it ran.
    """

    def __init__(self, directory: str, working_directory: str, began_at: float) -> None:
        self._directory = os.path.realpath(directory)
        self._working_directory = working_directory
        self._began_at = began_at
        self._names: dict[str, str] = {}
        self._lines: dict[str, list[bytes]] = {}
        self._left_bytes = _MAX_ALL_SOURCE_BYTES
        self._packages: dict[str, set[str]] = {}
        self.digests: dict[str, str] = {}
        """The digests of all lines of each file of the user's own, by its name here."""

    def add(self, file: str | None) -> str:
        """Return the name of a file, which says nothing of where the user keeps it."""
        if not file:
            return ""
        if file not in self._names:
            self._names[file] = self._read(file)
        return self._names[file]

    def complete(self, run: Run, earlier: Sequence[Run]) -> Run:
        """Take the files of the last run, too: only sketches name some, and hits have none."""
        for name in sorted({n for last in earlier[:1] for n in last.sources} - run.sources.keys()):
            if not name.startswith(("…", os.sep)):
                self.add(os.path.join(self._directory, name))
        return run._replace(sources=self.digests)

    def line(self, file: str | None, number: int) -> str:
        """Return the digest of one line; empty where it is not known."""
        lines = self._lines.get(file or "", [])
        return runs.digest_line(lines[number - 1]) if 0 < number <= len(lines) else ""

    def definition(self, file: str | None, number: int) -> str:
        """Return the digest of the line that names a function, which its decorators precede."""
        lines = self._lines.get(file or "", [])
        for at in range(number, min(number + _MAX_DECORATOR_LINES, len(lines) + 1)):
            if at and lines[at - 1].lstrip().startswith(_DEFINITIONS):
                return self.line(file, at)
            if at and not lines[number - 1].lstrip().startswith(b"@"):
                break
        return self.line(file, number)

    def distributions(self) -> dict[str, str]:
        """Return the version of each distribution that a file belongs to, by its directory."""
        found: dict[str, str] = {}
        for directory, packages in self._packages.items():
            with contextlib.suppress(OSError):
                for name in os.listdir(directory):
                    stem, dash, version = name.removesuffix(".dist-info").partition("-")
                    if name.endswith(".dist-info") and dash and stem.lower() in packages:
                        found[stem.lower()] = version
        return found

    def _read(self, file: str) -> str:
        if file.startswith("<ipython-input-") or f"{os.sep}ipykernel_" in file:
            return "cell"
        if is_library(file):
            return self._read_package(file)
        path = os.path.realpath(os.path.join(self._working_directory, file))
        name = os.path.relpath(path, self._directory)
        upwards = Path(name).parts.count(os.pardir)
        if upwards > _MAX_UPWARDS or upwards >= len(Path(self._directory).parts) - 1:
            name = os.path.join("…", *Path(path).parts[-2:])
        with contextlib.suppress(OSError):
            self._read_lines(file, path, name)
        return name

    def _read_package(self, file: str) -> str:
        for part in _PACKAGES:
            start, _, inner = file.rpartition(part)
            if start:
                package = inner.partition(os.sep)[0].lower()
                self._packages.setdefault(start + part, set()).add(package)
                return inner
        return file if file.startswith("<") else os.path.basename(file)

    def _read_lines(self, file: str, path: str, name: str) -> None:
        status = os.stat(path)
        is_fitting = status.st_size <= min(runs.MAX_SOURCE_BYTES, self._left_bytes)
        if status.st_mtime > self._began_at or not is_fitting or not os.path.isfile(path):
            return
        with open(path, "rb") as opened:
            data = opened.read(runs.MAX_SOURCE_BYTES)
        self._left_bytes -= len(data)
        self._lines[file] = data.splitlines()
        if len(self.digests) < runs.MAX_SOURCES:
            self.digests[name] = runs.digest_lines(data)


def find_varying(newest_first: Sequence[Run]) -> frozenset[str]:
    """Return the keys that the newest run wrote, and that nothing recorded explains.

    An earlier run had the same sources, command line, versions, machine and settings, and wrote
    the same call under another key: what the key is made of changes in each process.
    """
    run = next(iter(newest_first), None)
    if run is None:
        return frozenset()
    alike = [other for other in newest_first[1:] if runs.is_repeated(run, other)]
    keys = {row.key for other in alike for row in other.rows}
    calls = {_call_of(row) for other in alike for row in other.rows if row.outcome == "written"}
    written = (row for row in run.rows if row.outcome == "written" and row.key not in keys)
    return frozenset(row.key for row in written if _call_of(row) in calls)


def _call_of(row: CompileRow) -> tuple[object, ...]:
    """Return where and with what a function was called; its name may be new in each process."""
    place = (row.file, row.line, row.kind, row.call_file, row.call_line)
    return *place, row.signature, row.process
