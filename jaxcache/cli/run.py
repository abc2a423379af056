"""``jaxcache run``."""

from typing import Annotated

from jaxcache.cli.options import Output
from jaxcache.options import RunLocation
from jaxcache.options.declare import TEXTS, option
from jaxcache.options.run import Assertions, ReportOptions, RunOptions

EXAMPLE = "jaxcache run --fail-on-miss -- ./train.sh"
EXIT_CODES = (0, 1, 2, 10, 13, 130)
MOST_USED = {
    "run": (
        "--cache-dir",
        "--fail-on-miss",
        "--portable",
        "--no-write",
        "--live",
        "--guard",
        "--timeout",
        "--all",
        "--json",
    )
}
CONTEXT_SETTINGS = {"allow_interspersed_args": False}
COMMAND_CLASS = "panels:OptionalValueCommand"


def command(
    command_line: Annotated[
        list[str], option("command_line", TEXTS, "The command, after --.", metavar="CMD...")
    ],
    place: RunLocation,
    wanted: Assertions,
    options: RunOptions,
    extent: ReportOptions,
    output: Output,
) -> int:
    """Run any command with the cache on, and report each compile.

    JAX's thresholds stay in effect: JAX does not write compiles shorter than 1 s (jaxcache warm
    does). With --processes the command runs N times; in each, the first Python that imports jax
    is one of the N processes. The exit code is the command's own (128 + N if signal N ended
    it), or 1 where an assertion such as --fail-on-miss fails.
    """
    from jaxcache.cli.running import checking, finish, import_report, place_run
    from jaxcache.warm.child.launch import RunCallbacks

    form = output.form
    wanted.check()
    runner, placed = place_run(options, place, form)
    with checking(wanted, options, extent):
        report = runner.run(command_line, placed, RunCallbacks(import_report))
        return finish(report, wanted, form, runner, check=options.check_contents, extent=extent)
