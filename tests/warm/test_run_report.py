"""The report of a run as people see it, made from the events of a listener."""

import json
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxcache.core.compile_event import Copies
from jaxcache.render.typeset import set_blocks
from jaxcache.render.warm import report_view
from jaxcache.warm.child.launch import RunResult
from jaxcache.warm.report.builder import ReportBuilder
from jaxcache.warm.report.events import parse_event
from jaxcache.warm.report.notes import advise
from jaxcache.warm.report.report import FunctionSeconds, Report

USER = {"function": "f", "file": "/u/train.py", "line": 3}
HELPER = {"function": "_normal", "file": "/v/jax/_src/random.py", "line": 1}


def event(number: int, place: dict[str, Any], kind: str = "module", **facts: Any) -> dict[str, Any]:
    module = f"jit_{place['function']}"
    key = f"{module}-{number:064x}"
    return {
        "event": kind,
        "number": number,
        "at": 1.0,
        "module": module,
        "key": key,
        **place,
        **facts,
    }


def made(*events: dict[str, Any], code: int = 0, interrupted: bool = False) -> Report:
    recorder = ReportBuilder("/cache")
    for sent in events:
        parsed = parse_event(json.dumps(sent).encode(), 0)
        assert parsed is not None
        recorder.add(parsed)
    ended = RunResult(code, timed_out=False, interrupted=interrupted, wall_seconds=9.0)
    return recorder.report(ended, {})


def screen(*events: dict[str, Any], code: int = 0, interrupted: bool = False) -> list[str]:
    view = report_view(made(*events, code=code, interrupted=interrupted))
    return [*set_blocks(view.page or (), width=100, color=False)]


def written(number: int, place: dict[str, Any], seconds: float) -> dict[str, Any]:
    return event(
        number, place, outcome="written", reason="not-in-cache", spans={"compile": [1.0, seconds]}
    )


def test_the_line_of_the_helpers_says_what_they_cost() -> None:
    other = {**HELPER, "function": "iota"}
    lines = screen(written(1, USER, 2.0), written(2, other, 1.5), written(3, HELPER, 4.0))
    told = "and 2 helpers of JAX: 2 written in 5.5 s, the longest jit__normal 4.0 s"
    assert f"{told} (--all lists them)" in lines


def test_helpers_share_a_line_where_no_function_of_the_program_missed() -> None:
    hit: dict[str, Any] = {"outcome": "hit", "reason": "hit", "spans": {"retrieve": [1.0, 0.1]}}
    skipped = {"outcome": "skipped", "reason": "compile-time", "spans": {"compile": [1.0, 0.5]}}
    helpers = [event(n, {**HELPER, "function": f"_h{n}"}, **skipped) for n in (2, 3)]
    lines = screen(event(1, USER, **hit, stored_seconds=6.0), *helpers)
    told = "and 2 helpers of JAX: 2 skipped (compile-time) in 1.0 s, the longest jit__h2 0.5 s"
    assert f"{told} (--all lists them)" in " ".join(lines)
    assert sum("jit__h" in line for line in lines) == 1, lines
    alone = screen(*helpers)  # nothing else would be in the table
    assert sum(line.startswith("jit__h") for line in alone) == 2, alone


def test_a_run_that_has_saved_time_saves_more_the_next_time() -> None:
    hit: dict[str, Any] = {"outcome": "hit", "reason": "hit", "spans": {"retrieve": [1.0, 0.1]}}
    new = written(1, USER, 2.0)
    assert "1 entry written: the next run saves up to 2.0 s" in screen(new)
    lines = screen(new, event(2, HELPER, **hit, stored_seconds=6.0))
    assert "1 entry written: the next run saves up to 2.0 s more" in lines


def test_helpers_that_cannot_be_written_share_a_line() -> None:
    failed: dict[str, Any] = {
        "outcome": "error",
        "reason": "write-error",
        "detail": "Permission denied",
    }
    events = [event(n, HELPER, **failed, spans={"compile": [1.0, 0.5]}) for n in (2, 3)]
    lines = screen(event(1, USER, **failed, spans={"compile": [1.0, 2.0]}), *events)
    assert sum("write-error" in line for line in lines) == 2, lines  # the row, and its cause
    assert "and 2 helpers of JAX: 2 errors in 1.0 s, the longest jit__normal 0.5 s" in "".join(
        lines
    )
    assert "write-error (3 compiles): Permission denied" in lines


def test_a_program_without_a_cache_directory_is_not_called_uncacheable() -> None:
    off: dict[str, Any] = {"outcome": "uncacheable", "reason": "no-directory"}
    off |= {"spans": {"compile": [1.0, 2.0]}}
    lines = screen(event(1, USER, **off), event(2, HELPER, **off))
    assert "no-directory" in next(line for line in lines if line.startswith("jit_f"))
    assert not any("uncacheable" in line for line in lines), lines


def test_the_longest_line_says_how_often_a_function_compiled() -> None:
    written_twice = [written(n, HELPER, 2.0) for n in (1, 2)]
    lines = screen(*written_twice, {"event": "phases", "at": 9.0, "spans": [[1.0, 4.0, "compile"]]})
    assert "longest: 2 compiles of _normal, with writing, took 4.0 s" in lines


def test_seconds_of_a_hit_have_no_digits_that_jax_did_not_store() -> None:
    hit: dict[str, Any] = {"outcome": "hit", "reason": "hit", "spans": {"retrieve": [1.0, 0.1]}}
    lines = screen(event(1, USER, **hit, stored_seconds=6.0))
    assert lines[2].split()[3:5] == ["6", "s"]


def test_a_hit_that_took_an_unknown_time_saved_its_whole_compile() -> None:
    hit = event(1, USER, outcome="hit", reason="hit", stored_seconds=6.0)
    timed = event(
        2, USER, outcome="hit", reason="hit", stored_seconds=6.0, spans={"retrieve": [1.0, 0.5]}
    )
    assert [m.saved_seconds for m in made(hit, timed).modules] == [6.0, 5.5]


def test_a_crash_after_an_interrupt_is_told_as_what_is_known() -> None:
    code = -signal.SIGSEGV
    told = "note: interrupted; the program then crashed with signal 11"
    assert screen(written(1, USER, 2.0), code=code, interrupted=True)[-1] == told
    begun = event(2, USER, kind="begin")
    lines = screen(written(1, USER, 2.0), begun, code=code, interrupted=True)
    assert "while JAX compiled" in " ".join(lines[-2:])


def test_notes_about_a_start_come_with_the_longest_first() -> None:
    """A trace that contains what is traced again stays before a shorter phase.

    A function of a library is named, too; importing jax, which nobody can shorten, and JAX's own
    functions that are traced again are not. Scans and shapes are advised where something repeats.
    """
    library = "/v/lib/python3.12/site-packages/flax/core/scope.py"
    retraced = SimpleNamespace(
        **{**USER, "traces": 3, "varies": (), "retrace_reasons": ("other types",)},
        repeated_seconds=3.0,
    )
    report = SimpleNamespace(
        wall_seconds=20.0,
        phase_seconds={"import": 8.0, "trace": 4.0, "lower": 2.1, "load": 5.8},
        functions=[retraced, SimpleNamespace(**{**vars(retraced), **HELPER})],
        modules=[],
        longest={
            "load": (FunctionSeconds("init", library, 5, 4.0), FunctionSeconds("f", "/u", 1, 0.8))
        },
        processes=[],
        hidden_seconds=0.0,
        compile_seconds=0.0,
        lasting=(),
    )
    findings = advise(cast(Report, report))
    assert [finding.trap for finding in findings] == ["retraced", "slow-trace", "slow-load"]
    assert findings[-1].seen.endswith(f"init ({library}:5) alone 4.0 s")
    assert "scan" not in findings[-1].fix
    assert "shapes" not in findings[-1].fix
    unrolled = {"copies": Copies(8, 0.5), "occurrences": 1, "module": "jit_f", "outcome": "hit"}
    times = {"trace_seconds": 2.0, "lower_seconds": 0.0, "size_bytes": 1}
    report.modules = [SimpleNamespace(**{**USER, **unrolled, **times})]
    retraced.varies = ("axis 0",)
    retraced.signatures = 2
    _, _, load = (f for f in advise(cast(Report, report)))
    assert "jax.lax.scan; call with fewer shapes" in load.fix
    # A short trace, and a long compile of the same copies.
    slow = {**unrolled, **times, "outcome": "written", "trace_seconds": 0.6, "compile_seconds": 9.0}
    report.modules = [SimpleNamespace(**{**USER, **slow})]
    named = {finding.trap: finding.seen for finding in advise(cast(Report, report))}
    retraced.traces = 0  # as JAX reports of one that is differentiated outside of jit
    assert {f.trap for f in advise(cast(Report, report))} == named.keys() - {"retraced"}
    assert named["unrolled"].endswith("; tracing, lowering and compiling it took 9.6 s")


@pytest.mark.parametrize(
    ("cause", "point"),
    [
        ("multiply, … → silu at train.py:1042 in `train_step.loss`", "train.py:1042"),
        ("first time in train_everything.py", "  first time in train_everything.py"),
        ("x float32[8,8] (weak) → float32[16,16] (weak)", "  x float32[8,8] (weak) → float32[1"),
    ],
)
def test_size_gives_way_before_why_is_cut_before_its_point(cause: str, point: str) -> None:
    report = made(written(1, {**USER, "function": "train_step", "size_bytes": 50_000}, 2.0))
    report = replace(report, modules=tuple(replace(m, cause=cause) for m in report.modules))

    def row(width: int) -> str:
        page = report_view(report).page or ()
        lines = set_blocks(page, width=width, color=False)
        return next(line for line in lines if line.startswith("jit_"))

    assert cause in row(140)
    assert "50.0 kB" in row(140)
    for width in (100, 90, 80):
        assert point in row(width)
        assert len(row(width)) <= width
