"""``jaxcache warm``."""

from typing import Annotated

from jaxcache.cli.options import Output
from jaxcache.options import RunLocation
from jaxcache.options.declare import TEXT, TEXTS, option
from jaxcache.options.run import Assertions, CallOptions, ReportOptions, WarmOptions

EXAMPLE = "jaxcache warm train.py --steps 1"
EXIT_CODES = (0, 1, 2, 10, 13, 130)
MOST_USED = {
    "warm": (
        "--cache-dir",
        "--fail-on-miss",
        "--python",
        "-m",
        "--portable",
        "--jobs",
        "--no-write",
        "--timeout",
        "--all",
        "--json",
    )
}
#: What follows the script's name belongs to the script.
CONTEXT_SETTINGS = {"allow_interspersed_args": False}
COMMAND_CLASS = "panels:WarmCommand"


def command(
    script: Annotated[
        str | None,
        option(
            "script",
            TEXT,
            "The Python script to run, or a function to compile without running it.",
            metavar="[SCRIPT|MODULE:FUNCTION]",
            show_default=False,
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        option(
            "arguments", TEXTS, "Arguments of the script.", metavar="[ARG]...", show_default=False
        ),
    ] = None,
    module: Annotated[
        str | None,
        option(
            "-m",
            TEXT,
            "Run a module, as python -m does; the remaining words are its arguments.",
            metavar="NAME",
        ),
    ] = None,
    *,
    place: RunLocation,
    wanted: Assertions,
    options: WarmOptions,
    call: CallOptions,
    extent: ReportOptions,
    output: Output,
) -> int:
    """Fill the cache: run a script or compile a function, and report each compile.

    SCRIPT may also be a notebook, or a directory with a __main__.py.

    The script runs unchanged in its own Python, with its own input and output. JAX's
    thresholds are off, so that short compiles are cached, too. The report goes to standard error;
    with --json it goes to standard output, and the script's output to standard error.

    Where the script fails, warm ends with the script's exit code, or with 128 + N if signal N
    ended it: 139 is a crash, which Ctrl-C during a compile can cause.

    MODULE:FUNCTION (or FILE.py:FUNCTION) is compiled for the shapes of --arg, and not run.
    """
    from jaxcache.cli.running import checking, finish, import_report, place_run, program_of
    from jaxcache.warm.child.launch import RunCallbacks

    form = output.form
    wanted.check()
    runner, placed = place_run(options, place, form)
    program = program_of(script, arguments, call, module=module)
    if placed.jax_cache_dir is None and place.layout in (None, "jax"):
        from jaxcache.cli.output import note

        note(
            "note: this run fills nothing and exits with 1 unless the program sets a cache "
            "directory; export JAX_COMPILATION_CACHE_DIR=DIR before it, or add -C DIR"
        )
    check = options.check_contents
    with checking(wanted, options, extent):
        report = runner.warm(program, placed, RunCallbacks(import_report))
        return finish(report, wanted, form, runner, check=check, extent=extent, fills=True)
