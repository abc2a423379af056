"""The command line in a forked process: started at once, supervised, with a clock of its own."""

import importlib
import os
import pkgutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.faults.intercept import Decide, Supervised, go_on, start

DAY_NS = 86_400 * 10**9
#: The time in the world: that of the machine, because files get theirs from it.
NOW_NS = time.time_ns()
#: How long a command waits for JAX's lock here, instead of ten seconds.
_LOCK_SECONDS = 0.2
#: Segments that the ledger may have here; more are compacted.
COMPACT_ABOVE = 6
Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class CompileFinished:
    """How a command ended."""

    code: int
    """As subprocess has it."""
    stderr: str
    calls: tuple[str, ...]
    reads: int = 0
    """The number of calls that read a file of the world."""
    stdout: str = ""
    seconds: float = 0.0


def preload() -> None:
    """Import everything, so that a forked process need not."""
    import jaxcache

    for module in pkgutil.walk_packages(jaxcache.__path__, "jaxcache."):
        if ".injected" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("filelock", "cryptography.hazmat.primitives.asymmetric.ed25519", "rich.console"):
        importlib.import_module(name)


@dataclass
class Running:
    """A command that was started in a world."""

    process: Supervised
    _output: int
    _errors: int
    _started: float

    def run(self, signal_at: tuple[float, int] | None = None) -> CompileFinished | None:
        """Serve it until it ends, or waits: then None.

        Args:
            signal_at: after how many seconds which signal is sent to it.
        """
        code = self.process.run(signal_at=signal_at)
        if code is None:
            return None
        seconds = time.monotonic() - self._started
        stderr = _read_and_close(self._errors)
        stdout = _read_and_close(self._output)
        process = self.process
        return CompileFinished(code, stderr, tuple(process.calls), process.reads, stdout, seconds)


def _read_and_close(memory_file: int) -> str:
    text = os.pread(memory_file, 1 << 20, 0).decode(errors="replace")
    os.close(memory_file)
    return text


def start_cli(
    root: Path,
    argv: Sequence[str],
    decide: Decide = go_on,
    *,
    clock: Clock | None = None,
    is_family: bool = False,
) -> Running:
    """Start ``jaxcache ARG…`` in a world."""
    output = os.memfd_create("stdout")
    errors = os.memfd_create("stderr")

    def prepare() -> None:
        _move_in(root, output, errors)
        time.time_ns = clock or _shifted(0)
        time.time = lambda: time.time_ns() / 1e9
        _scale_down()

    def child() -> int:
        from jaxcache.cli.main import main

        sys.argv = ["jaxcache", *argv]
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        return code

    process = start(child, decide, prepare=prepare, root=root, is_family=is_family)
    return Running(process, output, errors, time.monotonic())


def run_cli(
    root: Path,
    argv: Sequence[str],
    decide: Decide = go_on,
    *,
    clock: Clock | None = None,
    is_family: bool = False,
    signal_at: tuple[float, int] | None = None,
) -> CompileFinished:
    """Run ``jaxcache ARG…`` in a world from start to end."""
    done = start_cli(root, argv, decide, clock=clock, is_family=is_family).run(signal_at)
    assert done is not None
    return done


def later(hours: float) -> Clock:
    """The clock of a process that starts so much later."""
    return _shifted(int(hours * 3600 * 10**9))


_real_time_ns = time.time_ns


def _shifted(by_ns: int) -> Clock:
    return lambda: _real_time_ns() + by_ns


def _move_in(root: Path, output: int, errors: int) -> None:
    os.environ.clear()
    os.environ.update(
        {
            "HOME": str(root / "home"),
            "TMPDIR": str(root / "tmp"),
            "PATH": os.defpath,
            "XDG_CONFIG_HOME": str(root / "home" / "config"),
            "XDG_CACHE_HOME": str(root / "home" / "cache"),
        }
    )
    os.chdir(root)
    nothing = os.open(os.devnull, os.O_RDWR)
    for source, target in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(source, target)


def _scale_down() -> None:
    """Shorter waits and smaller bounds, so that a small world reaches them."""
    from jaxcache.cache.ci import save
    from jaxcache.cache.move import stores
    from jaxcache.cache.prune import execute
    from jaxcache.core import ledger
    from jaxcache.store.local import LocalStore
    from jaxcache.warm.child import query

    for module in (save, ledger, stores, execute):
        assert "COMPACT_ABOVE" in vars(module)
        vars(module)["COMPACT_ABOVE"] = COMPACT_ABOVE
    query.has_jax = lambda python: False  # its start takes longer than everything else

    lock = LocalStore.lock

    def impatient(self: LocalStore, *, timeout_seconds: float) -> object:
        return lock(self, timeout_seconds=min(timeout_seconds, _LOCK_SECONDS))

    LocalStore.lock = impatient  # type: ignore[method-assign,assignment]
