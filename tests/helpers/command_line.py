"""Runs ``jaxcache`` in this process as if it had one of its own."""

import gc
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from unittest import mock

from conftest import PYTHONPATH, clean_environment, find_jax_pythons
from plain_jax import run_plain
from schemas import check_output

from jaxcache.cache.bundle.compat import Host
from jaxcache.cli import main, metering, terminal
from jaxcache.cli.terminal import Color
from jaxcache.warm.child import query
from tools.oracle.world import Counts, World

#: Handlers that a command may change.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)

#: Variables that change what a probe answers; the last is of ``tests/integration/broken``.
_PROBED = ("JAX", "XLA", "PYTHON", "LACKING")


class _Terminal(io.TextIOWrapper):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def run_in_process(
    arguments: Sequence[str | Path],
    *,
    env: dict[str, str],
    cwd: Path,
    input: str | None = None,  # noqa: A002
    on_terminal: bool = False,
    one_stream: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """Run one command line; children that it starts write into the same output.

    Args:
        env: the whole environment.
        on_terminal: standard output claims to be a terminal, as wide as ``COLUMNS``.
        one_stream: so does standard error, and both go to the output, as a person sees them.
    """
    words = [str(a) for a in arguments]
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write((input or "").encode())
        files[0].seek(0)
        stack.enter_context(_state(env, cwd))
        streams = [*files[:2], files[1]] if one_stream else files
        with _streams(streams, on_terminal=on_terminal, one_stream=one_stream):
            try:
                code = int(main.run(words))
            except KeyboardInterrupt:
                code = -signal.SIGINT
            except Exception:
                traceback.print_exc()
                code = 1
        texts = []
        for file in files[1:]:
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace").replace("\r\n", "\n"))
    check_output(words, *texts)
    return subprocess.CompletedProcess(["jaxcache", *words], code, *texts)


def show_on_terminal(
    arguments: Sequence[str | Path], *, home: Path, width: int, env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run one command line as on a terminal of a width, where a real one is not under test."""
    given = clean_environment(home) | {"TERM": "xterm-256color", "COLUMNS": str(width)}
    return run_in_process(arguments, env=given | (env or {}), cwd=home, one_stream=True)


@contextmanager
def _streams(files: Sequence[IO[bytes]], *, on_terminal: bool, one_stream: bool) -> Iterator[None]:
    """Put files in the place of the three standard streams, for children too."""
    kept = sys.stdin, sys.stdout, sys.stderr
    for stream in kept[1:]:
        stream.flush()
    copies = [os.dup(number) for number in range(3)]
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
    terminals = (False, on_terminal or one_stream, one_stream)
    kinds = [_Terminal if claims else io.TextIOWrapper for claims in terminals]
    made: list[Any] = [
        kind(
            os.fdopen(os.dup(number), mode),
            "utf-8",
            write_through=one_stream or number == 2,
            # As in a process of its own: a child that shares the stream writes after us.
            line_buffering=number == 2 and not one_stream,
        )
        for number, (kind, mode) in enumerate(zip(kinds, ("rb", "wb", "wb"), strict=True))
    ]
    sys.stdin, sys.stdout, sys.stderr = made
    try:
        yield
    finally:
        for stream in made:
            with suppress(OSError, ValueError):
                stream.close()
        sys.stdin, sys.stdout, sys.stderr = kept
        for number, copy in enumerate(copies):
            os.dup2(copy, number)
            os.close(copy)


_probe = query.probing
_hosts: dict[tuple[str | None, bool, frozenset[tuple[str, str]]], Host] = {}


@contextmanager
def _probing_once(
    python: str | None, environment: Mapping[str, str], *, features: bool = False
) -> Iterator[Callable[[], Host]]:
    """Probe a Python of the tests once for all commands under the same settings: it imports jax."""
    own = {**environment, "JAX_COMPILATION_CACHE_DIR": ""}  # a probe has its own directory
    settings = frozenset(i for i in own.items() if i[0].startswith(_PROBED))
    features = features or python is None
    key = (python, features, settings)
    # An answer with features is the same, whether they were asked for or are in the entry.
    plain = _hosts.get((python, False, settings))
    if known := _hosts.get(key) or (plain if plain and plain.machine.cpu_features else None):
        yield lambda: known
        return
    with _probe(python, environment, features=features) as answer:

        def remember() -> Host:
            host = answer()
            if python is None or python in find_jax_pythons():
                _hosts[key] = host
            return host

        yield remember


@contextmanager
def _state(env: dict[str, str], cwd: Path) -> Iterator[None]:
    """Put back what a command may change in the process it runs in."""
    environment, place, mask = dict(os.environ), os.getcwd(), os.umask(0o22)
    os.umask(mask)
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    with warnings.catch_warnings(), mock.patch.object(query, "probing", _probing_once):
        warnings.simplefilter("error")
        os.environ.clear()
        os.environ.update(env)
        time.tzset()
        os.chdir(cwd)
        _forget()
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(environment)
            time.tzset()
            os.chdir(place)
            os.umask(mask)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            gc.enable()
            _forget()


def _forget() -> None:
    """Reset what modules keep from one command to the next; in a process there is only one."""
    terminal._wanted, terminal.debugging = Color.AUTO, False
    metering._wanted = False
    if traffic := sys.modules.get("jaxcache.store.object.retry"):
        traffic.TRAFFIC.__init__()  # type: ignore[misc]


def error_of(done: "subprocess.CompletedProcess[str]") -> str:
    """The code of the error that a command with ``--json`` ended with."""
    return str(json.loads(done.stderr)["error"]["code"])


class WorldInProcess(World):
    """A world whose commands run in this process."""

    def plain(self, *command: str) -> Counts:
        """Run the program as a user would, without jaxcache, and return what JAX counted."""
        if command:
            return super().plain(*command)
        env = self.environment(plain=True)
        done = run_plain([self.python, "program.py"], env=env, cwd=self.directory)
        counts = json.loads(done.stdout.rpartition("counted ")[2])
        return Counts(counts["cache_hits"], counts["cache_misses"])

    def run_jaxcache(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run ``jaxcache ARG…`` in the directory of the program."""
        env = self.environment(plain=False) | {"PYTHONPATH": PYTHONPATH} | self.extra
        return run_in_process(arguments, env=env, cwd=self.directory)
