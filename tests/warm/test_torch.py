"""The account of torch's caches: events as the listener sends them, and the command line."""

import json
from pathlib import Path

import pytest
from conftest import RunCli

from jaxcache.render.torch import report_view
from jaxcache.render.typeset import set_blocks
from jaxcache.render.view import to_document
from jaxcache.warm.child.launch import RunResult
from jaxcache.warm.report.events import parse_event
from jaxcache.warm.torch.run import TorchReport, TorchReportBuilder

KEY = "a" * 51
TORCH = {
    "event": "torch",
    "version": "2.13.0",
    "rank": None,
    "directory": "/c",
    "settings": {"fx_graph_cache": True, "enable_autograd_cache": True},
}
FRAME = {
    "event": "torch-compiled",
    "compile_id": "0/0",
    "direction": "forward",
    "function": "step",
    "file": "/x/train.py",
    "line": 7,
    "began_at": 10.0,
    "seconds": 5.0,
    "backend_seconds": 4.0,
    "inductor_seconds": 3.0,
}


def report_of(*events: dict[str, object], exit_code: int = 0) -> TorchReport:
    """The report of events; ``process`` of an event is not 1 where it says so."""
    recorder = TorchReportBuilder("/c")
    for event in events:
        line = json.dumps({"at": 12.0, **event}).encode()
        parsed = parse_event(line, int(str(event.get("process", 1))))
        assert parsed is not None
        recorder.add(parsed)
    return recorder.report(RunResult(exit_code, False, False, 6.0))


def page_of(report: TorchReport) -> str:
    return "\n".join(set_blocks(report_view(report).page or (), width=120, color=False))


def look(tier: str, outcome: str, **others: object) -> dict[str, object]:
    key = {"aotautograd": "a", "fxgraph": "f"}[tier] + KEY
    event = {"event": "torch-graph", "compile_id": "0/0", "tier": tier, "outcome": outcome}
    return {**event, "key": key, **others}


def test_a_miss_counts_its_own_seconds_and_what_it_wrote() -> None:
    report = report_of(
        TORCH,
        look("aotautograd", "miss", status="full_miss"),
        {"event": "torch-saved", "tier": "fxgraph", "key": "f" + KEY, "size_bytes": 9},
        look("fxgraph", "miss", status="guard_miss", seconds=3.0),
        FRAME,
    )
    aot, fx = report.modules
    assert (aot.compile_seconds, aot.saved, aot.size_bytes) == (1.0, False, None)
    assert (fx.compile_seconds, fx.saved, fx.size_bytes) == (3.0, True, 9)
    assert (fx.function, fx.file, fx.line) == ("step", "/x/train.py", 7)
    assert [g.key for g in (aot, fx)] == [f"aotautograd-a{KEY}", f"fxgraph-f{KEY}"]
    assert report.fxgraph.guard_misses == 1
    assert report.compile_seconds == 5.0
    assert report.trace["traceEvents"][0]["dur"] == 5e6


def test_looks_of_a_compile_that_did_not_end_are_reported() -> None:
    """As where the process is killed, or torch compiles a graph that it did not trace itself."""
    end = {"event": "torch-end", "counters": {"autograd_cache_miss": 1, "fxgraph_cache_miss": 1}}
    for number in ("0/0", None):
        looks = [look(tier, "miss", compile_id=number) for tier in ("fxgraph", "aotautograd")]
        report = report_of(TORCH, *looks, end, exit_code=-9)
        assert [g.outcome for g in report.modules] == ["miss", "miss"]
        assert report.compiles == () and report.unobserved == ()
        assert "0 of 1 hit" in page_of(report)


def test_a_restarted_compile_writes_once() -> None:
    """Torch looks twice for one key, and writes after the second look."""
    saved = {"event": "torch-saved", "tier": "aotautograd", "key": "a" + KEY, "size_bytes": 9}
    looks = [look("aotautograd", "miss", status="full_miss")] * 2
    report = report_of(TORCH, *looks, saved, FRAME)
    assert [g.saved for g in report.modules] == [False, True]
    assert report.aotautograd.saved == 1


def test_graph_breaks_are_counted_as_torch_counts_them() -> None:
    """Torch reports the break at a GRU again for the function that it then skips."""
    found = {"event": "torch-break", "reason": "GRU", "detail": "GRU", "compile_id": "0/0"}
    end = {"event": "torch-end", "counters": {"graph_break": 1}}
    report = report_of(TORCH, {**found, "file": "/x/a.py", "line": 3}, found, FRAME, end)
    document = to_document(report_view(report).document)
    assert len(document["graph_breaks"]) == 2
    assert document["summary"]["graph_breaks"] == 1


def test_a_run_of_hits_compiles_nothing() -> None:
    for outcome, told in (("hit", "5.0 s tracing and loading"), ("miss", "5.0 s compiling")):
        assert told in page_of(report_of(TORCH, look("aotautograd", outcome), FRAME))


def test_processes_of_a_distributed_program_are_named_by_their_rank() -> None:
    events = [
        {**event, "process": process}
        for process, rank in ((1, 1), (2, 0))
        for event in ({**TORCH, "rank": rank}, look("aotautograd", "miss"), FRAME)
    ]
    page = page_of(report_of(*events))
    assert "RANK" in page and "PROCESS" not in page


def test_a_hit_saves_what_it_took_less_the_retrieval() -> None:
    """What was only read is no part of what a bypass took."""
    fx = look("fxgraph", "hit", stored_seconds=30.0)
    report = report_of(TORCH, fx, look("aotautograd", "hit", stored_seconds=36.0), FRAME)
    assert [g.compile_seconds for g in report.modules] == [30.0, 6.0]
    assert (report.saved_seconds, report.count("hit")) == (32.0, 2)
    report = report_of(TORCH, look("aotautograd", "bypass", key=None, reason="no"), fx, FRAME)
    assert [g.compile_seconds for g in report.modules] == [4.0, 30.0]


@pytest.mark.parametrize(
    ("settings", "off"),
    [
        ({"force_disable_caches": True}, {"aotautograd", "fxgraph"}),
        ({"fx_graph_cache": True, "enable_autograd_cache": False}, {"aotautograd"}),
        ({}, set()),
    ],
)
def test_a_graph_without_a_look_has_a_row_where_the_cache_is_off(
    settings: dict[str, object], off: set[str]
) -> None:
    report = report_of({**TORCH, "settings": settings}, FRAME)
    assert {g.tier for g in report.modules if g.outcome == "off"} == off
    assert report.uncacheable == len(off)
    assert bool(report.notes) == bool(off)


def test_a_module_is_named_by_its_class() -> None:
    for name, shown in (("forward", "Net.forward"), ("inner", "Net")):
        report = report_of(
            TORCH, look("fxgraph", "miss"), {**FRAME, "owner": "Net", "function": name}
        )
        assert [g.function for g in report.modules] == [shown]
        assert [c.function for c in report.compiles] == [shown]


def test_what_torch_counts_beyond_the_rows_is_unobserved() -> None:
    counters = {"autograd_cache_hit": 1, "autograd_cache_bypass": 1}
    report = report_of(TORCH, look("aotautograd", "hit"), FRAME, {**FRAME, "counters": counters})
    assert report.unobserved == ("torch counts 1 of autograd_cache_bypass, and 0 were observed",)


def test_the_page_says_why() -> None:
    breaks = {"event": "torch-break", "compile_id": "0/0", "reason": "print", "line": 3}
    report = report_of(
        TORCH,
        look("aotautograd", "bypass", key=None, reason="Unsupported call_function target f."),
        {**breaks, "file": "/x/train.py", "detail": "print in full"},
        {"event": "torch-recompile", "compile_id": "0/0", "guards": ["tensor 'x' size mismatch"]},
        FRAME,
    )
    text = page_of(report)
    assert "AOTAutograd: 0 of 1 hit" in text
    assert "graph break at train.py:3" in text and "print in full" not in text
    assert "recompiled step (train.py:7)" in text
    unfolded = "\n".join(str(block) for block in report_view(report, unfolded=True).page or ())
    assert "print in full" in unfolded


def test_options_of_jax_are_refused(run_cli: RunCli, tmp_path: Path) -> None:
    for options in (["--portable"], ["--record", "x"], ["--tier", "/x"], ["--target", "x"]):
        done = run_cli("run", "--layout", "torch", "-C", tmp_path, *options, "--", "true")
        assert done.returncode == 2
        assert f"{options[0]} is for JAX's cache, not for torch's" in done.stderr
    done = run_cli("warm", "--layout", "torch", "-C", tmp_path, "m:f", "--arg", "f32[8]")
    assert done.returncode == 2


def test_a_python_without_torch_is_no_run(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("print('ran')")
    done = run_cli("warm", "--layout", "torch", "-C", tmp_path / "c", tmp_path / "x.py")
    assert done.returncode == 13
    assert "has no torch" in done.stderr and "ran" not in done.stdout
    done = run_cli("explain", "--layout", "torch", "-C", tmp_path / "c", tmp_path / "x.py")
    assert done.returncode == 13 and not (tmp_path / "c").exists()


def test_a_run_that_nobody_heard_fails_an_assertion(run_cli: RunCli, tmp_path: Path) -> None:
    command = ("run", "--layout", "torch", "-C", tmp_path / "c", "--json")
    done = run_cli(*command, "--fail-on-miss", "--", "true")
    assert done.returncode == 1
    assert "no torch activity was observed" in json.loads(done.stdout)["unobserved"][0]
    assert run_cli(*command, "--", "true").returncode == 0
