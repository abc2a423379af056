"""Common parts of ``warm`` and ``run``: options, the report, the exit code."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from jaxcache.cli.options import Format, locate_cache
from jaxcache.cli.output import note, print_json, print_json_lines
from jaxcache.errors import ExitCode, UsageError
from jaxcache.units import format_count, parse_duration_seconds
from jaxcache.warm.report import Report
from jaxcache.warm.run import Program, WarmOptions

if TYPE_CHECKING:
    from jaxcache.warm.arguments import Words
    from jaxcache.warm.crosshost.cross import Cross

#: What a shell adds to the number of the signal that ended a program.
_SIGNALLED = 128


def warm_options(
    cache_dir: str | None,
    *,
    timeout: str | None,
    form: Format,
    collect: str | None = None,
    patience: str | None = None,
    live: bool = False,
    tiers: Sequence[str] | None = None,
    **others: Any,
) -> WarmOptions:
    """Make the options of a run; a local cache directory need not exist yet.

    Args:
        form: of the report; JSON leaves standard output to it.
        others: fields of :class:`WarmOptions`.

    Raises:
        UsageError: the duration cannot be read, or the directory is a file.
    """
    if collect is not None and not collect.isdigit():
        raise UsageError(f"{collect!r} is no number of operations")
    if collect is not None and not others.get("record"):
        raise UsageError(
            "--collect-only runs nothing large, so it is of use only for a recipe",
            hint="say where to write it with --record",
        )
    if patience is not None:
        others["patience_seconds"] = parse_duration_seconds(patience)
    path = locate_cache(cache_dir).path
    if "://" not in path:
        path = os.path.abspath(path)
        if os.path.exists(path) and not os.path.isdir(path):
            raise UsageError(f"{path} is a file, not a cache directory", code="not-a-directory")
    return WarmOptions(
        cache_dir=path,
        timeout_seconds=parse_duration_seconds(timeout) if timeout else None,
        stdout_to_stderr=form.is_json,
        live=live or bool(tiers),
        tiers=tuple(
            t if "://" in t else os.path.abspath(os.path.expanduser(t)) for t in tiers or ()
        ),
        collect=None if collect is None else int(collect),
        **others,
    )


def read_cross(
    target: str | None,
    *,
    gemm: str,
    autotune_from: str | None,
    require_tuned: bool,
    **others: Any,
) -> "Cross | None":
    """The target that the options describe, if any.

    Args:
        others: options that make no sense with a target, by name.

    Raises:
        UsageError: they do not go together, or there is no such profile or directory.
    """
    if target is None:
        if autotune_from or require_tuned or gemm != _GEMM[0]:
            raise UsageError("--gemm, --autotune-from and --require-tuned are for --target")
        return None
    if gemm not in _GEMM:
        raise UsageError(f"{gemm!r} is none of {', '.join(_GEMM)}")
    if given := [name for name, value in others.items() if value]:
        raise UsageError(f"--target excludes --{given[0].replace('_', '-')}")
    if autotune_from is not None and not os.path.isdir(autotune_from):
        raise UsageError(f"there is no directory {autotune_from}", code="no-directory")
    from jaxcache.warm.crosshost.cross import Cross
    from jaxcache.warm.crosshost.profile import read_profile

    directory = autotune_from and os.path.abspath(autotune_from)
    return Cross(read_profile(target), gemm, directory, require_tuned)


_GEMM = ("cublas", "cost-model", "triton")


def is_function(program: str) -> bool:
    """Whether it means MODULE:FUNCTION; a file of that name is a script."""
    from jaxcache.warm.arguments import names_function

    return names_function(program) and not os.path.exists(program)


def programs(
    program: str | None,
    arguments: Sequence[str] | None,
    file: str | None,
    call: "Words",
    *,
    module: str | None = None,
) -> Sequence[Program]:
    """The one script, module or function of the command line, or those of a warm list.

    Args:
        call: how the function is called, if it is one.
        module: to be run as ``python -m`` does; all else is arguments.

    Raises:
        UsageError: neither or both were given, or the list or the call cannot be read.
    """
    if module is not None and not (file or call):
        return [
            Program(module=module, arguments=(*([program] if program else ()), *(arguments or ())))
        ]
    if (program is None) == (file is None) or module:
        raise UsageError(
            "name a script, a module with -m, or a list of scripts with --file",
            hint="jaxcache warm --help shows what it takes",
        )
    if program is not None and is_function(program):
        from jaxcache.warm.arguments import read_call

        if arguments:
            raise UsageError(
                f"{program} is a function, and {arguments[0]!r} no option",
                hint="write its arguments as --arg 'f32[8,128]'",
            )
        return [Program(call=read_call(program, call))]
    if call:
        raise UsageError("--arg, --static, --args and --committed are for MODULE:FUNCTION")
    if file is not None:
        from jaxcache.warm.programs import read_programs

        return read_programs(file)
    return [Program(program or "", tuple(arguments or ()))]


#: Reasons of ``--check`` that say that the entry was there.
_IN = ("verified", "not-deterministic")
#: Reasons that ``--except`` allows: no cache could serve these. A cache that is off, or cannot be
#: opened, is not among them.
_EXCEPTED = {
    "uncacheable": ("host-callbacks", "not-process-0", "shared-by-process-0", "name-too-long"),
    "skipped": ("compile-time", "size", "over-cap"),
}


class Verdict:
    """The caller's assertions about the run.

    Args:
        excepted: names in :data:`_EXCEPTED`.

    Raises:
        UsageError: ``fail_on_miss`` is neither a number nor a duration, or there is no such name.
    """

    def __init__(
        self,
        fail_on_miss: str | None,
        excepted: Sequence[str] = (),
        *,
        strict: bool = False,
        check: bool = False,
    ) -> None:
        if excepted and fail_on_miss is None:
            raise UsageError("--except is for --fail-on-miss")
        if unknown := [name for name in excepted if name not in _EXCEPTED]:
            raise UsageError(f"{unknown[0]!r} is neither of {' and '.join(_EXCEPTED)}")
        self._allowed = {reason for name in excepted for reason in _EXCEPTED[name]}
        self._most_misses = self._most_seconds = None
        self._strict, self._check = strict, check
        if fail_on_miss is not None and fail_on_miss.isdigit():
            self._most_misses = int(fail_on_miss)
        elif fail_on_miss is not None:
            self._most_seconds = parse_duration_seconds(fail_on_miss)

    def complaints(self, report: Report) -> list[str]:
        """Say which assertions failed, one sentence each."""
        found = []
        bounds = (self._most_misses, self._most_seconds)
        if report.unobserved and (self._strict or self._check or bounds != (None, None)):
            found.append(f"not every compile could be observed: {report.unobserved[0]}")
        if report.recorded == 0:
            found.append("nothing was recorded")
        misses = [
            m
            for m in report.modules
            if m.outcome != "hit" and m.reason not in _IN and m.reason not in self._allowed
        ]
        missed = sum(m.occurrences for m in misses)
        seconds = sum((m.compile_seconds or 0.0) * m.occurrences for m in misses)
        if self._most_misses is not None and missed > self._most_misses:
            found.append(f"{format_count(missed, 'compile')} not served by the cache")
        if self._most_seconds is not None and seconds > self._most_seconds:
            found.append(f"{seconds:.1f} s of compiling was not served by the cache")
        if self._strict and (count := report.count("uncacheable")):
            found.append(f"{format_count(count, 'compile')} cannot be cached")
        reasons = [m.reason for m in report.modules for _ in range(m.occurrences)]
        if self._check and (count := reasons.count("not-deterministic")):
            found.append(f"{format_count(count, 'executable')} not the same as in the cache")
        if self._check and not {"verified", "not-deterministic"} & {*reasons} and reasons:
            found.append(
                "nothing was verified: no compile had an entry to be compared with, "
                "or JAX is older than 0.9.1"
            )
        return found


def finish(report: Report, verdict: Verdict, form: Format, *, trace: str | None) -> None:
    """Print the report and exit: as the program did, or 1 for an assertion that failed.

    Raises:
        UsageError: the trace cannot be written.
        typer.Exit: with any code but 0.
    """
    from jaxcache.cli.output import terminal_width, wants_color
    from jaxcache.render.warm import module_document, report_document, report_page

    if form is Format.JSON:
        print_json(report_document(report))
    elif form is Format.JSONL:
        print_json_lines(module_document(m) for m in report.modules)
    else:
        note(report_page(report, width=terminal_width(), color=wants_color()))
    if trace is not None:
        _write_trace(report, trace)
    if report.script_exit_code:
        code = report.script_exit_code
        raise typer.Exit(code if code > 0 else _SIGNALLED - code)
    if complaints := verdict.complaints(report):
        if form is not Format.JSON:
            note("\n".join(f"failed: {complaint}" for complaint in complaints))
        raise typer.Exit(ExitCode.PROBLEMS)


def _write_trace(report: Report, path: str) -> None:
    import json

    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(report.trace, file)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {os.strerror(error.errno or 0).lower()}", code="cannot-write"
        ) from error
