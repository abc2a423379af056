"""What ``warm`` and ``run`` have in common: options, live lines, the report, the exit code."""

import os
import sys
from collections.abc import Callable

import typer

from jaxcache.cli.options import locate_cache
from jaxcache.cli.output import note, print_json, print_json_lines
from jaxcache.entry.names import printable
from jaxcache.errors import ExitCode, UsageError
from jaxcache.units import format_duration, parse_duration_seconds
from jaxcache.warm.launch import Event
from jaxcache.warm.report import Report
from jaxcache.warm.run import WarmOptions


def warm_options(
    cache_dir: str | None,
    *,
    timeout: str | None,
    force_cache_dir: bool,
    document: bool,
    python: str | None = None,
    platform: str | None = None,
    devices: int | None = None,
) -> WarmOptions:
    """Make the options of a run; a local cache directory need not exist yet.

    Raises:
        UsageError: the duration cannot be read, or the directory is a file.
    """
    path = locate_cache(cache_dir).path
    if "://" not in path:
        path = os.path.abspath(path)
        if os.path.exists(path) and not os.path.isdir(path):
            raise UsageError(f"{path} is a file, not a cache directory", code="not-a-directory")
    return WarmOptions(
        cache_dir=path,
        python=python,
        platform=platform,
        devices=devices,
        force_cache_dir=force_cache_dir,
        timeout_seconds=parse_duration_seconds(timeout) if timeout else None,
        stdout_to_stderr=document,
    )


def announce() -> Callable[[Event], None] | None:
    """On a terminal, say of each compile that takes a while that it has ended, as it does."""
    if not sys.stderr.isatty():
        return None

    def show(event: Event) -> None:
        if event["event"] == "module" and float(event.get("seconds") or 0) >= _SLOW_SECONDS:
            shown = format_duration(float(event["seconds"]))
            note(f"jaxcache: {printable(str(event.get('module')))} {event['outcome']}, {shown}")

    return show


_SLOW_SECONDS = 0.5


def finish(report: Report, *, json: bool, jsonl: bool, fail_on_miss: str | None) -> None:
    """Print the report and exit: as the program did, or 1 for an assertion that failed.

    Raises:
        UsageError: ``fail_on_miss`` is neither a number nor a duration.
        typer.Exit: with any code but 0.
    """
    from jaxcache.cli.output import terminal_width, wants_color
    from jaxcache.render.warm import module_document, report_document, report_page

    limit = _parse_limit(fail_on_miss) if fail_on_miss is not None else None
    if json:
        print_json(report_document(report))
    elif jsonl:
        print_json_lines(module_document(m) for m in report.modules)
    else:
        page = report_page(report, width=terminal_width(), color=wants_color())
        note(page)
    if report.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if report.script_exit_code:
        code = report.script_exit_code
        raise typer.Exit(code if code > 0 else _SIGNALLED - code)
    if limit is not None and limit(report):
        raise typer.Exit(ExitCode.PROBLEMS)


#: What a shell adds to the number of the signal that ended a program.
_SIGNALLED = 128


def _parse_limit(text: str) -> Callable[[Report], bool]:
    if text.isdigit():
        most = int(text)
        return lambda report: report.compile_requests - report.count("hit") > most
    seconds = parse_duration_seconds(text)
    return lambda report: report.compile_seconds > seconds
