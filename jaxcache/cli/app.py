"""The Typer application: commands are imported when they run, so that starting stays cheap."""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from jaxcache import __version__

#: Command name to the module in this package that holds it, in the order of ``--help``.
COMMANDS: dict[str, str] = {
    "ls": "ls",
    "show": "show",
    "stats": "stats",
    "warm": "warm",
    "run": "run",
    "compile": "compile",
    "where": "where",
    "verify": "verify",
    "seal": "seal",
    "prune": "prune",
    "rm": "rm",
    "pin": "pin",
    "unpin": "unpin",
    "explain": "explain",
    "doctor": "doctor",
    "export": "export",
    "import": "import_",
    "diff": "diff",
    "copy": "copy",
    "trust": "trust",
}

#: What each exit code says in help and manual; see jaxcache.errors.ExitCode.
EXIT_CODES = {
    0: "done",
    1: "problems found",
    2: "usage",
    3: "finished in part",
    10: "no cache there",
    11: "lock not obtained",
    12: "untrusted",
    13: "jax missing or unusable",
    130: "interrupted",
}


SUMMARY = "Inspect, verify, prune, warm and move JAX's persistent compilation cache."


class LazyGroup(TyperGroup):
    """A command group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Every command's name, in the order of ``--help``."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The command of that name, or None."""
        return load_command(cmd_name) if cmd_name in COMMANDS else None


def load_command(name: str) -> Any:
    """Import one command's module and build its parser.

    A command module has a function ``command``, an ``EXAMPLE`` line and the ``EXIT_CODES`` that
    it can return; the last two end its ``--help``. It may have ``CONTEXT_SETTINGS`` and a
    ``COMMAND_CLASS`` of its own.
    """
    module = import_module(f"jaxcache.cli.{COMMANDS[name]}")
    codes = "\n".join(f"  {code:<3} {EXIT_CODES[code]}" for code in module.EXIT_CODES)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(
        name=name,
        cls=getattr(module, "COMMAND_CLASS", None),
        epilog=f"\b\nExample:\n  {module.EXAMPLE}\n\n\b\nExit codes:\n{codes}",
        context_settings=getattr(module, "CONTEXT_SETTINGS", None),
        no_args_is_help=False,
    )(module.command)
    return typer.main.get_command(app)


app = typer.Typer(
    name="jaxcache",
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jaxcache {__version__}")
        raise typer.Exit


@app.callback(help=SUMMARY)
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where a failure of jaxcache itself happened.")
    ] = False,
) -> None:
    """Take the options before the command; the help is SUMMARY, which the manual shows too."""
