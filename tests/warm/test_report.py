"""The report of a run: events of the listener are read once and never trusted, then folded."""

import json
import math
import socket
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from jaxcache.cache.explain.sides import Cause, Comparison, Compile, Difference
from jaxcache.cache.recipe import Environment
from jaxcache.core.compile_event import Argument, CompileFinished
from jaxcache.errors import JaxcacheError
from jaxcache.injected.process_observer import CompileRequest
from jaxcache.options.run import Assertions
from jaxcache.render.typeset import set_blocks
from jaxcache.render.view import to_document
from jaxcache.render.warm import failed_assertions, report_view
from jaxcache.warm.child.launch import EventServer, RunResult, socket_directory
from jaxcache.warm.report.builder import ReportBuilder, saved_in_series, trace_document
from jaxcache.warm.report.causes import describe_comparison, path_note
from jaxcache.warm.report.events import (
    CompileStarted,
    Configured,
    Message,
    ProcessStarted,
    parse_event,
)
from jaxcache.warm.report.notes import advise, per_process_key_notes
from jaxcache.warm.report.report import Report, require_observed

DIGEST = "ab" * 32
ENVIRONMENT = {"jax_version": "0.12.0.1", "jaxlib_version": "0.12.0", "platform": "cpu"}
RECORDED = {
    "module": "jit_f",
    "environment": 0,
    "bytecode": DIGEST,
    "options": DIGEST,
    "device_ids": [0],
    "device_shape": [1, 1],
}


USER = {"function": "f", "file": "/u/train.py", "line": 3}
HELPER = {"function": "_normal", "file": "/v/jax/_src/random.py", "line": 1}
HIT: dict[str, Any] = {"outcome": "hit", "reason": "hit", "spans": {"retrieve": [1.0, 0.1]}}


def event(number: int, place: dict[str, Any], kind: str = "module", **facts: Any) -> dict[str, Any]:
    module = f"jit_{place['function']}"
    names = {"number": number, "at": 1.0, "module": module, "key": f"{module}-{number:064x}"}
    return {"event": kind, **names, **place, **facts}


def written(number: int, place: dict[str, Any], seconds: float) -> dict[str, Any]:
    new = {"outcome": "written", "reason": "not-in-cache"}
    return event(number, place, **new, spans={"compile": [1.0, seconds]})


NEW = written(1, USER, 2.0)
BEGUN = event(1, USER, "begin")


def parse(value: Any, process: int = 7) -> Any:
    return parse_event(json.dumps(value).encode(), process)


def test_events_become_what_they_are() -> None:
    begun = parse({**BEGUN, "recorded": RECORDED, "environment": ENVIRONMENT})
    assert isinstance(begun, CompileStarted)
    assert begun.recorded and begun.recorded.device_shape == (1, 1)
    assert begun.environment == Environment("0.12.0.1", "0.12.0", "cpu")
    configured = parse({"event": "settings", "opened_directory": "/c", "jax_x": True, "at": 1})
    settings = {"jax_x": True}
    assert configured == Configured(process=7, at=1, opened_directory="/c", settings=settings)
    assert parse({"event": "of the future"}) is None
    assert parse(["event"]) is None
    assert parse_event(b"\xff{", 1) is None
    assert parse_event(b"[" * 100_000, 1) is None
    assert len(parse({**NEW, "detail": "x" * 1_000_000}).detail) == 1 << 16


def test_the_parent_reads_every_fact_that_the_listener_sends() -> None:
    request = CompileRequest(number=3, at=2.0, module="jit_f", key="jit_f-00", seconds=1.5)
    argument = {"name": "x", "dtype": "float32", "shape": [8, "b"]}
    request.add({"function": "f", "arguments": [argument], "spans": {"lower": (1.0, 0.5)}})
    request.spans["compile"] = (2.0, 0.25)
    request.jax_counts = {"requests", "misses"}
    request.components = {"computation": DIGEST}
    request.compile_seconds = 0.25
    request.errno = 13
    request.conclude("memory://c", refuses_callbacks=True)
    done = parse(request.wire())
    assert isinstance(done, CompileFinished)
    assert (done.outcome, done.reason, done.counted) == ("written", "not-in-cache", "miss")
    assert (done.process, done.arguments) == (7, (Argument("x", "float32", (8, "b")),))
    for name in {f.name for f in fields(CompileFinished)} - {"process", "arguments"}:
        assert getattr(done, name) == getattr(request, name), name
    assert done.spans == {"lower": (1.0, 0.5), "compile": (2.0, 0.25)}


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "splendid"},
        {"number": "1"},
        {"number": True},
        {"module": 3},
        {"spans": {"compile": [1.0]}},
        {"spans": {"compile": [1.0, "long"]}},
        {"spans": {"pondering": [1.0, 2.0]}},
        {"seconds": 1e400},
        {"components": {"computation": 1}},
        {"components": [1]},
        {"arguments": [{"name": "x"}]},
        {"counted": "often"},
        {"counted": [""] * 70_000},
        {"size_bytes": 1 << 70},
        # A recorded module is named by its digest alone.
        *(
            {**BEGUN, "recorded": {**RECORDED, "bytecode": name}}
            for name in ("../../etc/passwd", "/etc/passwd", DIGEST.upper(), DIGEST + "0")
        ),
    ],
)
def test_an_event_of_the_wrong_shape_is_trouble(change: dict[str, Any]) -> None:
    said = parse({**NEW, **change})
    assert isinstance(said, Message)
    assert (said.event, "cannot be read" in said.detail) == ("trouble", True)


# The socket on which a program sends them.


def test_a_hostile_writer_disturbs_no_other() -> None:
    """Nor does a program that removes the socket."""
    with socket_directory() as directory, EventServer(directory) as inbox:
        for lines in (
            b'{"event": {}}\n\x00\xff\n{"event": "start", "pid": {}}\n',
            b'{"event": "start", "pid": 5, "argv": ["a"]}\n',
        ):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as writer:
                writer.connect(inbox.address)
                writer.sendall(lines)
        found = [*inbox.drain(5.0)]
        Path(inbox.address).unlink()
        assert [*inbox.drain(5.0)] == []
    assert [e.event for e in found if isinstance(e, Message)] == ["trouble"]
    assert [e.argv for e in found if isinstance(e, ProcessStarted)] == [("a",)]


def test_a_run_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())  # of a test that took a socket away, one waits for ever
    with socket_directory() as directory, EventServer(directory) as inbox:
        (accepting,) = set(threading.enumerate()) - before
        assert list(inbox.drain(5.0)) == []
    accepting.join(5.0)
    assert not accepting.is_alive()


# What the report says of them.


JAX = {"event": "jax", "jax": "0.10.2"}
FOUND = event(2, USER, **HIT)
QUICK = event(3, HELPER, outcome="skipped", reason="compile-time", spans={"compile": [1.0, 0.5]})
DENIED: dict[str, Any] = {"outcome": "error", "reason": "write-error"}
DENIED |= {"detail": "Permission denied", "spans": {"compile": [1.0, 0.5]}}
UNWRITABLE = [event(n, place, **DENIED) for n, place in enumerate((USER, HELPER, HELPER))]
NOWHERE: dict[str, Any] = {"outcome": "uncacheable", "reason": "no-directory"}
NOWHERE |= {"spans": {"compile": [1.0, 2.0]}}
CALLBACK = event(4, USER, outcome="uncacheable", reason="host-callbacks")


def start(*spans: tuple[float, float, str]) -> dict[str, Any]:
    return {"event": "phases", "at": 9.0, "spans": [*spans]}


def made(*events: dict[str, Any], code: int = 0, interrupted: bool = False) -> Report:
    recorder = ReportBuilder("/cache", asked={SECONDS: 5.0})
    for sent in events:
        recorder.add(parse(sent))
    ended = RunResult(code, False, interrupted, wall_seconds=9.0, ended_at=8.0)
    return recorder.report(ended, {})


def screen(*events: dict[str, Any], **ended: Any) -> list[str]:
    return [*set_blocks(report_view(made(*events, **ended)).page or (), width=100, color=False)]


def test_what_could_not_be_read_is_unobserved() -> None:
    assert made(JAX, NEW).unobserved == ()
    (why,) = made(JAX, NEW, {**NEW, "number": None}).unobserved
    assert why.startswith("an event 'module' of the listener cannot be read: number")


@pytest.mark.parametrize(
    ("events", "line"),
    [
        (UNWRITABLE, "and 2 helpers of JAX: 2 errors in 1.0 s, the longest jit__normal 0.5 s "),
        (UNWRITABLE, "write-error (3 compiles): Permission denied"),
        (
            [NEW, written(2, {**HELPER, "function": "iota"}, 1.5), written(3, HELPER, 4.0)],
            "and 2 helpers of JAX: 2 written in 5.5 s, the longest jit__normal 4.0 s (--all lists "
            "them)",
        ),
        ([NEW], "1 entry written: the next run saves up to 2.0 s"),
        # Helpers share a line where no function of the program missed; a hit's seconds, of which
        # JAX has stored no digits, have none.
        (
            [event(1, USER, **HIT, stored_seconds=6.0), QUICK, QUICK],
            "jit_f   train.py:3  hit          6 s        retrieved in 0.1 s\n"
            "and 2 helpers of JAX: 2 skipped (compile-time) in 1.0 s, the longest jit__normal",
        ),
        # Nothing else would be in the table.
        (
            [QUICK],
            "WHY\njit__normal          skipped    0.5 s        compile-time\n"
            "note: 1 module compiled faster than JAX's threshold and was not written; jaxcache w",
        ),
        (
            [event(1, HELPER, **HIT), written(2, {**HELPER, "function": "kron"}, 1.5)],
            "WHY\njit_kron          written    1.5 s        unknown\n"
            "and 1 helper of JAX: 1 hit (--all lists them)\n",
        ),
        # A program without a cache directory is not called uncacheable.
        (
            [event(n, place, **NOWHERE) for n, place in enumerate((USER, HELPER))],
            "jit_f   train.py:3  no-directory    2.0 s        no cache directory\n"
            "and 1 helper of JAX: 1 no-directory in 2.0 s, the longest",
        ),
        (
            [NEW, event(2, HELPER, **HIT, stored_seconds=6.0)],
            "1 entry written: the next run saves up to 2.0 s more",
        ),
        (
            [written(1, HELPER, 2.0), written(2, HELPER, 2.0), start((1.0, 4.0, "compile"))],
            "longest: 2 compiles of _normal, with writing, took 4.0 s",
        ),
    ],
)
def test_the_screen_sums_up(events: list[dict[str, Any]], line: str) -> None:
    assert line in "\n".join(screen(*events))


def test_hits_save_their_compile_less_what_they_took_and_at_the_same_time_once() -> None:
    unknown = event(1, USER, outcome="hit", reason="hit", stored_seconds=6.0)
    timed = event(2, USER, **HIT, stored_seconds=6.0)
    assert [m.saved_seconds for m in made(unknown, timed).modules] == [6.0, 5.9]
    together = [{**timed, "thread": number, "seconds": 0.5} for number in range(8)]
    assert made(*together).saved_seconds == 5.9
    assert made(*together, NEW).compile_seconds == 2.0
    assert saved_in_series([(n / 100, 1.0, 3.5) for n in range(8)]) == 3.5
    assert saved_in_series([(0, 1, 3.0), (1, 2, 4.0)]) == 7
    assert saved_in_series([(0, 1, 3.0), (0.5, 2, 4.0), (2, 3, 1.0)]) == 5
    assert saved_in_series([(0, 5, 1.0), (1, 2, 3.0), (2.5, 4, 3.0)]) == 6
    assert saved_in_series([(0, 1, -1.0)]) == saved_in_series([]) == 0


@pytest.mark.parametrize(
    ("code", "interrupted", "sent", "told"),
    [
        (-11, True, [], "note: interrupted; the program then crashed with signal 11"),
        (-11, True, [event(2, USER, kind="begin")], "while JAX compiled"),
        (0, True, [], "note: interrupted; the program went on, and exited with 0"),
        (-11, False, [], "note: the program was ended by signal 11"),
        (-11, False, [event(2, USER, **HIT)], "remove those of its modules with jaxcache rm"),
        (-15, False, [event(2, USER, **HIT)], "note: the program was ended by signal 15"),
    ],
)
def test_the_end_of_a_program_is_told_as_what_is_known(
    code: int, interrupted: bool, sent: list[dict[str, Any]], told: str
) -> None:
    lines = screen(written(1, USER, 2.0), *sent, code=code, interrupted=interrupted)
    assert told in " ".join(lines[-2:])


@pytest.mark.parametrize(("code", "seconds"), [(-9, 7.0), (0, 0.0)])
def test_a_compile_in_which_the_program_is_killed_counts(code: int, seconds: float) -> None:
    report = made(event(1, USER, kind="begin"), code=code)
    assert report.phases.compile_seconds == seconds


def test_what_two_processes_trace_at_once_is_no_retrace() -> None:
    builder = ReportBuilder()
    for process in (1, 2):
        builder.add(parse({**NEW, "function": "f", "spans": {"trace": [1.0, 3.0]}}, process))
    (function,) = builder.report(RunResult(0, False, False, 9.0), {}).functions
    assert (function.traces, function.repeated_seconds) == (1, 0.0)


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
        lines = set_blocks(report_view(report).page or (), width=width, color=False)
        return next(line for line in lines if line.startswith("jit_"))

    assert cause in row(140) and "50.0 kB" in row(140)
    for width in (100, 90, 80):
        assert point in row(width)
        assert len(row(width)) <= width


@pytest.mark.parametrize(
    ("signatures", "varies"),
    [
        ([[("x", "float32", [3])], [("x", "float32", [4])]], ["axis 0 of x (3, 4)"]),
        ([[("x", "float32", [n])] for n in range(8)], ["axis 0 of x (0, 1, 2, 3, 4, 5, …)"]),
        ([[("x", "float32", [3])], [("x", "int8", [3])]], ["dtype of x (float32, int8)"]),
        ([[("x", "float32", [3])], [("x", "float32", [3, 1])]], ["rank of x (1, 2)"]),
        (
            [[("x", "int8", []), ("", "int8", [2, n])] for n in (5, 6)],
            ["axis 1 of argument 1 (5, 6)"],
        ),
        ([[("x", "int8", [])] * n for n in (1, 2)], ["the number of arguments (1, 2)"]),
        ([[("x", "int8", [])]] * 2, []),
    ],
)
def test_what_varies_between_the_signatures_of_a_function_is_named(
    signatures: list[list[tuple[str, str, list[int]]]], varies: list[str]
) -> None:
    names = ("name", "dtype", "shape")
    events = [
        {**written(n, USER, 2.0), "arguments": [dict(zip(names, a, strict=True)) for a in each]}
        for n, each in enumerate(signatures)
    ]
    (function,) = made(*events).functions
    assert function.varies == tuple(varies)
    assert function.compile_seconds == 2.0 * len(events)


def test_the_cache_of_a_run_is_the_one_that_most_compiles_used(tmp_path: Path) -> None:
    local = [{**NEW, "cache_dir": str(tmp_path)}] * 2
    elsewhere = {**NEW, "cache_dir": "s3://b/c"}
    assert made(NEW).cache_dir == made({**NEW, "cache_dir": "/gone"}).cache_dir == "/cache"
    assert made(*local, elsewhere).cache_dir == str(tmp_path)
    assert made(*local, *[{**QUICK, "cache_dir": "s3://b/c"}] * 3).cache_dir == str(tmp_path)
    assert made(*local, *[elsewhere] * 3).cache_dir == "s3://b/c"


def test_the_trace_has_the_phases_of_each_process_and_the_steps_of_its_threads() -> None:
    recorder = ReportBuilder()
    for process, at in ((1, 3.0), (2, 1.5)):
        begun = {"event": "start", "pid": 9, "argv": ["a.py", "x"]}
        step = {**NEW, "spans": {"key": [at, 0.1], "compile": [at, 0.25]}, "thread": 5}
        for sent in (begun, JAX, start((at, at + 1, "lower")), step):
            recorder.add(parse(sent, process))
    names, spans = [], []
    for traced in trace_document(recorder)["traceEvents"]:
        if traced["ph"] == "M":
            names.append((traced["pid"], traced["args"]["name"]))
        else:
            spans.append([traced[name] for name in ("pid", "tid", "name", "ts", "dur")])
    assert names == [(1, "a.py x (pid 9)"), (2, "a.py x (pid 9)")]
    assert spans == [
        [1, 0, "lower", 1.5e6, 1e6],
        [2, 0, "lower", 0.0, 1e6],
        [1, 5, "compile jit_f", 1.5e6, 0.25e6],
        [2, 5, "compile jit_f", 0.0, 0.25e6],
    ]


# Why a run fails.


CACHED_NOW = " missed. All is cached now, so the next run with this cache hits; with --no-write it"
CACHED_NOW += " would fail again."


def failed(reason: str, **facts: Any) -> dict[str, Any]:
    return event(5, USER, outcome="error", reason=reason, **facts)


@pytest.mark.parametrize(
    ("events", "wanted", "told"),
    [
        ([FOUND], {"fail_on_miss": 0, "strict": True}, ""),
        ([NEW, FOUND], {"fail_on_miss": 0}, f"1 compile{CACHED_NOW}"),
        ([NEW, FOUND], {"fail_on_miss": 1}, ""),
        ([NEW, FOUND], {"fail_on_miss": 1.9}, f"compiles of 2.0 s{CACHED_NOW}"),
        ([NEW, FOUND], {"fail_on_miss": 2.0}, ""),
        (
            [NEW, QUICK],
            {"fail_on_miss": 0},
            "2 compiles missed; 1 are under JAX's threshold for writing (--except skipped allows "
            "them)",
        ),
        ([QUICK, FOUND], {"fail_on_miss": 0, "excepted": ("skipped",)}, ""),
        ([QUICK], {"fail_on_miss": 0, "excepted": ("uncacheable",)}, "1 compile missed; 1 are"),
        ([CALLBACK], {"fail_on_miss": 0, "excepted": ("uncacheable",)}, ""),
        ([CALLBACK, NEW], {"strict": True}, "1 compile cannot be cached"),
        ([], {"strict": True}, "not every compile could be observed: no use of jax was seen."),
        ([CALLBACK], {"check": True}, "nothing was verified: no compile had an entry to be comp"),
        ([failed("not-deterministic")], {"check": True}, "1 executable not the same as in the c"),
        ([event(1, USER, outcome="skipped", reason="same-hlo")], {"check": True}, ""),
        ([failed("write-error"), NEW], {}, "1 compile not cached, because JAX could not write /c"),
        (
            [failed("write-error", errno=13)],
            {},
            "1 compile not cached, because this user may not use /cache",
        ),
        (
            [failed("read-error")],
            {},
            "JAX could not read the entry of 1 compile; where one is damaged: "
            "jaxcache verify --fix -C /cache",
        ),
        ([failed("cache-not-opened")], {}, "nothing was cached, because JAX could not open /cache"),
        (
            [event(1, USER, **NOWHERE)],
            {},
            "nothing was cached, because JAX has no cache directory",
        ),
    ],
)
def test_what_a_run_was_to_do_and_did_not_is_one_sentence(
    events: list[dict[str, Any]], wanted: dict[str, Any], told: str
) -> None:
    options = dict(wanted)
    check = options.pop("check", False)
    report = made(*([JAX] if events else []), *events)
    found = failed_assertions(report, Assertions(**options), check=check, fills=not wanted)
    assert [sentence.startswith(told) for sentence in found] == ([True] if told else [])


# Causes of misses, and notes.


DIRECTORY = "jax_compilation_cache_dir"
SECONDS = "jax_persistent_cache_min_compile_time_secs"
OPENED = {"opened_directory": "/cache", "opened_setting": "/cache", DIRECTORY: "/cache"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (OPENED, ""),
        (
            {"opened_directory": "/other"},
            "the program used /other, not /cache; --force-cache-dir would win over it",
        ),
        ({"next_directory": "/other", DIRECTORY: "/other"}, "the program used /other, not /cache"),
        (
            {**OPENED, DIRECTORY: "/late"},
            "JAX keeps the cache directory that it opened first, /cache; the program set "
            f"{DIRECTORY} to /late after its first compile, which had no effect: set it before",
        ),
        (
            {"opened_directory": "/later/c", "opened_setting": "c", DIRECTORY: "c"},
            "the cache directory c is relative, and the program changed its working directory: "
            "JAX used /later/c instead of /work/c. ",
        ),
        (
            {DIRECTORY: None},
            "the program runs with no cache directory; jaxcache.enable() in it, or "
            "--force-cache-dir, would set one",
        ),
        (
            {**OPENED, "jax_enable_compilation_cache": False},
            "the program turned the compilation cache off",
        ),
        (
            {**OPENED, "jax_compilation_cache_include_metadata_in_key": True},
            "jax_compilation_cache_include_metadata_in_key is on: files and line numbers",
        ),
        ({**OPENED, SECONDS: 5.0}, ""),
        ({**OPENED, SECONDS: 7.5}, f"the program set {SECONDS} to 7.5, which was 5"),
        ({**OPENED, SECONDS: math.inf}, f"the program set {SECONDS} to inf, which was 5"),
    ],
)
def test_what_the_program_has_set_is_noted(settings: dict[str, Any], told: str) -> None:
    start = {"event": "start", "pid": 5, "cwd": "/work"}
    report = made(start, JAX, {"event": "settings", **settings})
    assert json.dumps(to_document(report_view(report).document), allow_nan=False)
    assert [note.startswith(told) for note in report.notes] == ([True] if told else [])


@pytest.mark.parametrize(
    ("code", "events", "error", "told"),
    [
        (0, [JAX], "", ""),
        (3, [], "program-failed", "exit code 3: the program failed before any use of jax was seen"),
        (-11, [JAX], "program-failed", "signal 11: the program failed before its first compile"),
        (
            0,
            [{"event": "trouble", "detail": word} for word in ("first", "second")],
            "unknown-jax",
            "first",
        ),
    ],
)
def test_a_run_of_which_nothing_was_observed_explains_nothing(
    code: int, events: list[dict[str, Any]], error: str, told: str
) -> None:
    report = made(*events, code=code)
    try:
        require_observed(report, "jax")
    except JaxcacheError as raised:
        assert raised.code == error and raised.message.startswith(told)
    else:
        assert not error


PATHS = {"component": "compile_options", "cause": Cause.PATH, "title": ""}
DEVICES = {"component": "devices", "cause": Cause.DEVICE, "title": "number of devices"}


@pytest.mark.parametrize(
    ("facts", "left", "right", "shown"),
    [
        (PATHS, "/ci/n1/.cache/jax", "/ci/n1/elsewhere", "cache path: .cache/jax → elsewhere"),
        (PATHS, "/a/jax", "/a/jax/new", "cache path: jax → jax/new"),
        (PATHS, "/h/ann/.cache/x", "/h/bob/.cache/x", "cache path: ann/.cache/x → bob/.cache/x"),
        (PATHS, "/far/jax", "none (--portable)", "cache path: /far/jax → none (--portable)"),
        (DEVICES, "8", "16", "number of devices: 8 → 16"),
        # Neither long values nor hashes.
        (DEVICES, "8", "9" * 41, "number of devices"),
        (DEVICES, "sha256 12ab", "sha256 34cd", "number of devices"),
        (DEVICES, None, "16", "number of devices"),
    ],
)
def test_of_two_values_the_part_that_differs_is_shown(
    facts: dict[str, Any], left: str | None, right: str, shown: str
) -> None:
    apart = Difference(left=left, right=right, meaning="", fix=None, **facts)
    one, other = Compile("jit_f", "ab"), Compile("jit_f", "cd")
    assert describe_comparison(Comparison(one, other, (apart,))) == shown


def test_where_the_entries_hit_is_said_by_the_run_that_began_the_cache(corpus: Path) -> None:
    directory = corpus / "0.10.2-cpu-zstd"
    key = min(directory.glob("*-cache")).name.removesuffix("-cache")
    own = parse({**NEW, "key": key, "size_bytes": 1, "cache_dir": str(directory)})
    hit = replace(own, outcome="hit")
    for others, is_told in (([], True), ([hit], True), ([replace(hit, key="jit_g-0")], False)):
        assert bool([*path_note([own, *others], "0.10.2")]) is is_told
    assert not [*path_note([own], "0.12.0.1")]  # whose keys have no path


LOCAL = {"cache_dir": "/cache"}


def capped(size_bytes: int) -> list[dict[str, Any]]:
    """A run under a cap, which has written one entry of 11 bytes."""
    cap = {"event": "settings", **OPENED, "jax_compilation_cache_max_size": size_bytes}
    return [cap, {**NEW, **LOCAL, "size_bytes": 11}]


def passed(step: str, line: int) -> dict[str, Any]:
    return {"event": "guard-passed", "step": step, "function": "f", "file": "/u/a.py", "line": line}


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (
            [{**NEW, "tuning": "untuned"}, {**NEW, "tuning": "tuned", "key": "jit_g-0"}],
            "1 of 2 entries are untuned: the target will use them as they are",
        ),
        (
            [event(1, USER, outcome="skipped", reason="platform-asked", detail="a.py:5")],
            "jit_f is not made for the target: a.py:5 asks which hardware it runs on while it is",
        ),
        ([QUICK, QUICK], "2 modules compiled faster than JAX's threshold and were not written; "),
        ([{**NEW, **LOCAL}, {**FOUND, **LOCAL}], ""),
        (
            [{**NEW, **LOCAL}, {**FOUND, "cache_dir": "/other"}],
            "the program used several cache directories: /cache (1 compile), /other (1 compile)",
        ),
        (
            [passed("compile", 3), passed("compile", 3), passed("compile", 5)],
            "the guard let 3 compiles pass: f (a.py:3) ×2, f (a.py:5)",
        ),
        (
            [passed("load", n) for n in range(7)],
            "the guard let 7 loads pass: f (a.py:0), f (a.py:1), f (a.py:2), f (a.py:3), "
            "f (a.py:4), 2 other places",
        ),
        (
            capped(10),
            "jax_compilation_cache_max_size is 10 bytes, and the 1 entry of this run has 11; "
            "without room after the run: jit_f. The next run misses, too; a larger cap keeps them",
        ),
        (capped(11), ""),
        (
            [{**NEW, "number": n, "key": f"jit_f-{n}"} for n in range(9)],
            "`f` has 9 programs: its arguments keep their shapes, so something else varies",
        ),
        ([{**NEW, "number": n, "key": f"jit_f-{n}"} for n in range(8)], ""),
    ],
)
def test_what_a_run_met_is_noted(events: list[dict[str, Any]], told: str) -> None:
    notes = made(JAX, *events).notes
    assert [note.startswith(told) for note in notes] == ([True] if told else []), notes


def test_processes_with_other_keys_are_named_once() -> None:
    modules = [
        replace(parse(NEW, process), module=name, key=f"{name}-{process}", process_id=process)
        for name in ("jit_f", "jit_g")
        for process in (0, 1, 2)
    ]
    said = "processes 1, 2 made another key than process 0 for each of 2 modules, such as jit_f"
    assert list(per_process_key_notes(modules)) == [said]


LIBRARY = {"function": "init", "file": "/v/site-packages/flax/scope.py", "line": 5}
LOADED = HIT | {"spans": {"retrieve": [1.0, 4.0]}}


def traced(number: int, seconds: float, rows: int = 3, **facts: Any) -> dict[str, Any]:
    argument = {"name": "x", "dtype": "float32", "shape": [rows]}
    spans = {"trace": [1.0, seconds], **facts.pop("spans", {})}
    facts = {"outcome": "hit", "reason": "in-cache", **facts}
    return event(number, USER, spans=spans, arguments=[argument], **facts)


COPIES = {"count": 8, "share": 0.5, "file": "/u/train.py", "line": 7}
UNROLLED = traced(1, 3.0, copies=COPIES)


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([start((1.0, 9.0, "import"))], []),  # which nobody can shorten
        ([start((1.0, 1.9, "trace"))], []),
        (
            [start((1.0, 6.0, "load")), event(1, LIBRARY, **LOADED)],
            [("slow-load", "took 5.0 s of 9.0 s, init (/v/site-packages/flax/scope.py:5)")],
        ),
        (
            [start((1.0, 6.0, "load")), event(1, USER, **HIT, size_bytes=5000)],
            [("slow-load", "took 5.0 s of 9.0 s")],  # no function took a tenth of it
        ),
        (
            [
                start((1.0, 3.0, "backend"), (3.0, 6.0, "key")),
                event(1, USER, **(HIT | {"spans": {"key": [3, 3]}}), constant_bytes=5000),
            ],
            [
                ("slow-key", "took 3.0 s of 9.0 s, f (/u/train.py:3) (5.0 kB of constants) alone"),
                ("slow-backend", "starting the devices took 2.0 s of 9.0 s"),
            ],
        ),
        (
            [start((1.0, 4.0, "compile")), written(1, USER, 3.0)],
            [("slow-compile", "took 3.0 s of 9.0 s, f (/u/train.py:3) alone 3.0 s")],
        ),
        # What is traced again stays before the shorter phase that contains it.
        (
            [start((1.0, 7.0, "trace")), traced(1, 3.0), traced(2, 3.0, rows=4)],
            [
                ("retraced", "was traced 2 times, for 2 signatures: axis 0 of x (3, 4) varies"),
                ("slow-trace", "took 6.0 s of 9.0 s, f (/u/train.py:3) alone 6.0 s"),
            ],
        ),
        (
            [traced(1, 3.0), traced(2, 3.0, retrace="other types")],
            [("retraced", "f (/u/train.py:3) was traced 2 times, JAX's reason: other types")],
        ),
        (
            [traced(1, 3.0), traced(2, 3.0)],
            [("retraced", "was traced 2 times, with arguments of the same shapes: the function")],
        ),
        ([traced(n, 3.0) | HELPER for n in (1, 2)], []),
        (
            [UNROLLED],
            [("unrolled", "has 8 copies of the same lines, such as /u/train.py:7, 50% of its")],
        ),
        ([traced(1, 2.2, copies=COPIES)], []),  # the others take less than a second
        (
            [{**UNROLLED, "outcome": "written", "spans": {"trace": [1, 1], "compile": [2, 8]}}],
            [("unrolled", "tracing, lowering and compiling it took 9.0 s")],
        ),
    ],
)
def test_advice_on_a_start_names_the_longest_part_first(
    events: list[dict[str, Any]], told: list[tuple[str, str]]
) -> None:
    findings = advise(made(*events))
    assert [f.trap for f in findings] == [trap for trap, _ in told]
    for finding, (_, words) in zip(findings, told, strict=True):
        assert words in finding.seen


def test_advice_says_what_helps_this_program() -> None:
    slow = start((1.0, 5.0, "compile"), (5.0, 8.0, "load"))
    both = [traced(1, 0.1, copies=COPIES), traced(2, 0.1, rows=4)]
    first, load = advise(made(slow, *both, written(3, USER, 3.0)))
    assert "this start alone" in first.cost
    assert "jax.lax.scan; call with fewer shapes" in load.fix
    old, hidden = {"event": "jax", "jax": "0.7.0"}, {"preload_hidden_seconds": 1.0}
    said = advise(made(slow, old, written(3, USER, 3.0)))[1].fix
    assert "with JAX 0.8 or later, run and warm with --live load entries ahead" in said
    ended = {"event": "end", "counters": hidden}
    assert "load entries ahead" not in advise(made(slow, old, written(3, USER, 3.0), ended))[1].fix
    first, load = advise(made(slow, event(1, USER, outcome="skipped", reason="compile-time")))
    assert "this start alone" not in first.cost
    assert "scan" not in load.fix and "shapes" not in load.fix
