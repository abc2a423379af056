"""The entry point: run a command and exit with its code.

Everything is imported after completion has had its turn: at Tab half of the time would be imports.
"""

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


def main() -> "NoReturn":
    """Run the command line of this process and exit."""
    if not any(finder.find_spec("typer", None) for finder in sys.meta_path):
        _run_next_on_path()
    # A scan makes millions of small objects and no cycles; collecting them costs a third of it.
    gc.disable()
    sys.unraisablehook = _interrupt_again
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before the command began; then it ends with a message of its own
        sys.stderr.write("jaxcache: interrupted [interrupted]\n")
        code = 130
    gc.freeze()  # or the interpreter looks for cycles several times more before it ends
    sys.exit(code)


def _interrupt_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Repeat an interrupt that came during a callback, such as that of a weak reference.

    No exception leaves a callback, so the command would go on as if there had been no interrupt.
    """
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    import signal
    import threading

    timer = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()


def _run_next_on_path() -> None:
    """Replace this process by the next ``jaxcache`` of PATH, if it has one.

    ``pip install --no-deps`` beside jax puts a command before the one that was installed as a tool.
    """
    own, name = os.path.split(sys.argv[0])
    directories = os.environ.get("PATH", "").split(os.pathsep)
    if own in directories:
        for directory in directories[directories.index(own) + 1 :]:
            if directory != own and os.access(path := os.path.join(directory, name), os.X_OK):
                try:
                    os.execv(path, [path, *sys.argv[1:]])  # noqa: S606
                except OSError:  # its interpreter is not for this user
                    continue


def _read(argv: list[str]) -> "Callable[[], Any]":
    """Return the call that a command line means.

    Raises:
        MissingPackageError: it needs a package that is not installed.
    """
    from importlib.machinery import PathFinder

    try:
        if PathFinder.find_spec("typer") is None:  # else a plain command line does not import it
            import typer  # noqa: F401
        from jaxcache.cli.plain import read_plain

        if (command := read_plain(argv)) is not None:
            return command
        from jaxcache.cli.app import app, find_help

        if (help_call := find_help(argv)) is not None:
            return help_call
    except ModuleNotFoundError as error:
        from jaxcache.errors import MissingPackageError

        raise MissingPackageError(error.name or str(error)) from error
    return lambda: app(argv, prog_name="jaxcache", standalone_mode=False)


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code; see :class:`jaxcache.errors.ExitCode`."""
    if argv[:1] == ["--complete"]:
        from jaxcache.cli.complete import complete

        print("\n".join(complete(argv[1:])))
        return 0
    from jaxcache.cli import metering, terminal
    from jaxcache.core.configuration import forget_reported
    from jaxcache.errors import ExitCode

    ours = argv[: argv.index("--")] if "--" in argv else argv  # what follows is a program's
    terminal.prepare_streams()
    forget_reported()
    metering.want(False)
    terminal.named_cache = None
    code = None
    try:
        code = _read(argv)()
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):
        # The reader has gone (| head): the parser makes a SystemExit of that, and of nothing
        # else. Nothing more can be printed.
        terminal.silence(sys.stdout)
    except Exception as error:
        from jaxcache.cli.failures import report

        return report(error, ours)
    finally:
        metering.report()
    return code if isinstance(code, int) else ExitCode.DONE
