"""Events of the listener: read once, bounded, and never trusted."""

import json
import socket
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from jaxcache.cache.explain.sides import Cause, Comparison, Compile, Difference
from jaxcache.core.compile_event import Argument, CompileFinished
from jaxcache.injected.process_observer import CompileRequest
from jaxcache.warm.child.launch import EventServer, RunResult, socket_directory
from jaxcache.warm.report.builder import ReportBuilder
from jaxcache.warm.report.causes import describe_comparison
from jaxcache.warm.report.events import (
    CompileStarted,
    Configured,
    Message,
    ProcessStarted,
    parse_event,
)
from jaxcache.warm.report.notes import bucket_notes, per_process_key_notes

DONE = {
    "event": "module",
    "number": 1,
    "at": 2.0,
    "module": "jit_f",
    "outcome": "written",
    "reason": "not-in-cache",
    "key": "jit_f-00",
    "spans": {"compile": [2.0, 0.5]},
    "arguments": [{"name": "x", "dtype": "float32", "shape": [8, "b"]}],
}
DIGEST = "ab" * 32
ENVIRONMENT = {
    "jax_version": "0.12.0.1",
    "jaxlib_version": "0.12.0.1",
    "platform": "cpu",
    "device_count": 1,
    "process_count": 1,
    "process_id": 0,
    "python_version": "3.11",
}
RECORDED = {
    "module": "jit_f",
    "environment": 0,
    "bytecode": DIGEST,
    "options": DIGEST,
    "device_ids": [0],
    "device_shape": [1, 1],
}
RECORDING = {"recorded": RECORDED, "environment": ENVIRONMENT}


def parse(value: Any) -> Any:
    return parse_event(json.dumps(value).encode(), 7)


def test_events_become_what_they_are() -> None:
    done = parse(DONE)
    assert isinstance(done, CompileFinished)
    assert (done.process, done.number, done.key) == (7, 1, "jit_f-00")
    assert done.spans == {"compile": (2.0, 0.5)}
    assert done.arguments[0].shape == (8, "b")
    begun = parse({"event": "begin", "number": 1, "at": 1, "module": "jit_f", **RECORDING})
    assert isinstance(begun, CompileStarted)
    assert begun.recorded is not None
    assert begun.recorded.device_shape == (1, 1)
    assert begun.environment is not None
    assert begun.environment.platform == "cpu"
    configured = parse({"event": "settings", "opened_directory": "/c", "jax_x": True, "at": 1})
    assert isinstance(configured, Configured)
    assert (configured.opened_directory, configured.settings) == ("/c", {"jax_x": True})
    assert parse({"event": "of the future"}) is None
    assert parse(["event"]) is None
    assert parse_event(b"\xff{", 1) is None
    assert parse_event(b"[" * 100_000, 1) is None


def test_the_parent_reads_every_fact_that_the_listener_sends() -> None:
    request = CompileRequest(number=3, at=2.0, module="jit_f", key="jit_f-00", seconds=1.5)
    argument = {"name": "x", "dtype": "float32", "shape": [8]}
    request.add({"function": "f", "arguments": [argument], "spans": {"lower": (1.0, 0.5)}})
    request.spans["compile"] = (2.0, 0.25)
    request.jax_counts = {"requests", "misses"}
    request.components = {"computation": DIGEST}
    request.compile_seconds = 0.25
    request.conclude("memory://c", refuses_callbacks=True)
    done = parse(request.wire())
    assert isinstance(done, CompileFinished)
    assert (done.outcome, done.reason, done.counted) == ("written", "not-in-cache", "miss")
    assert done.arguments == (Argument("x", "float32", (8,)),)
    read_otherwise = {"process", "arguments"}
    for name in {f.name for f in fields(CompileFinished)} - read_otherwise:
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
    ],
)
def test_an_event_of_the_wrong_shape_is_trouble(change: dict[str, Any]) -> None:
    said = parse({**DONE, **change})
    assert isinstance(said, Message)
    assert (said.event, "cannot be read" in said.detail) == ("trouble", True)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", DIGEST.upper(), DIGEST + "0"])
def test_a_recorded_module_is_named_by_its_digest_alone(name: str) -> None:
    recorded = {**RECORDED, "bytecode": name}
    begun = {"event": "begin", "number": 1, "module": "jit_f", "recorded": recorded}
    assert parse(begun).event == "trouble"


def test_long_texts_are_cut() -> None:
    assert len(parse({**DONE, "detail": "x" * 1_000_000}).detail) == 1 << 16


def test_what_could_not_be_read_is_unobserved() -> None:
    seen = ReportBuilder("/c")
    for wire in ({"event": "start", "pid": 5, "at": 1}, {"event": "jax", "jax": "0.10.2"}, DONE):
        seen.add(parse(wire))
    assert seen.report(RunResult(0, False, False, 1.0), {}).unobserved == ()
    seen.add(parse({**DONE, "number": None}))
    (why,) = seen.report(RunResult(0, False, False, 1.0), {}).unobserved
    assert why.startswith("an event 'module' of the listener cannot be read: number")


def test_a_hostile_writer_disturbs_no_other() -> None:
    with socket_directory() as directory, EventServer(directory) as inbox:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bad:
            bad.connect(inbox.address)
            bad.sendall(b'{"event": {}}\n\x00\xff\n{"event": "start", "pid": {}}\n')
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as good:
            good.connect(inbox.address)
            good.sendall(b'{"event": "start", "pid": 5, "argv": ["a"]}\n')
        found = list(inbox.drain(5.0))
    assert [e.event for e in found if isinstance(e, Message)] == ["trouble"]
    assert [e.argv for e in found if isinstance(e, ProcessStarted)] == [("a",)]


def test_a_program_may_remove_the_socket() -> None:
    with socket_directory() as directory, EventServer(directory) as inbox:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as writer:
            writer.connect(inbox.address)
            writer.sendall(b'{"event": "start", "pid": 5}\n')
            assert inbox.next(5.0)
        Path(inbox.address).unlink()
        assert list(inbox.drain(5.0)) == []


def test_a_run_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())  # of a test that took a socket away, one waits for ever
    with socket_directory() as directory, EventServer(directory) as inbox:
        (accepting,) = set(threading.enumerate()) - before
        assert list(inbox.drain(5.0)) == []
    accepting.join(5.0)
    assert not accepting.is_alive()


@pytest.mark.parametrize(
    ("left", "right", "shown"),
    [
        ("/ci/n1/home/.cache/jax", "/ci/n1/home/elsewhere", ".cache/jax → elsewhere"),
        ("/a/jax", "/a/jax/new", "jax → jax/new"),
        ("/home/ann/.cache/jax", "/home/bob/.cache/jax", "ann/.cache/jax → bob/.cache/jax"),
        ("/far/jax", "none (--portable)", "/far/jax → none (--portable)"),
    ],
)
def test_of_two_paths_in_keys_the_part_that_differs_is_shown(
    left: str, right: str, shown: str
) -> None:
    apart = Difference("compile_options", left, right, "the path", None, Cause.PATH)
    one, other = Compile("jit_f", "ab"), Compile("jit_f", "cd")
    assert describe_comparison(Comparison(one, other, (apart,))) == f"cache path: {shown}"


@pytest.mark.parametrize(
    ("left", "right", "shown"),
    [
        ("8", "16", "number of devices: 8 → 16"),
        ("8", "9" * 41, "number of devices"),
        ("sha256 12ab", "sha256 34cd", "number of devices"),
        (None, "16", "number of devices"),
    ],
)
def test_two_values_are_shown_where_they_are_short_and_no_hashes(
    left: str | None, right: str, shown: str
) -> None:
    title = "number of devices"
    apart = Difference("devices", left, right, "", None, Cause.DEVICE, title=title)
    one, other = Compile("jit_f", "ab"), Compile("jit_f", "cd")
    assert describe_comparison(Comparison(one, other, (apart,))) == shown


def test_what_is_not_in_the_bucket_yet_is_counted_with_the_command_that_sends_it() -> None:
    said = "2 entries not uploaded yet; to send them: jaxcache push s3://b/c -C /local"
    assert [*bucket_notes("s3://b/c", (), {"/local": 2})] == [said]


def test_processes_with_other_keys_are_named_once() -> None:
    def done(module: str, process: int) -> CompileFinished:
        key = f"{module}-{process}"
        about = {"process": process, "process_id": process, "at": 2.0, "number": 1}
        return CompileFinished(module=module, key=key, outcome="written", reason="", **about)  # type: ignore[arg-type]

    modules = [done(name, process) for name in ("jit_f", "jit_g") for process in (0, 1, 2)]
    said = "processes 1, 2 made another key than process 0 for each of 2 modules, such as jit_f"
    assert list(per_process_key_notes(modules)) == [said]
    said = "process 1 made another key than process 0 for jit_f"
    assert list(per_process_key_notes(modules[:2])) == [said]


def test_what_two_processes_trace_at_once_is_no_retrace() -> None:
    builder = ReportBuilder()
    for process in (1, 2):
        line = json.dumps({**DONE, "function": "f", "spans": {"trace": [1.0, 3.0]}}).encode()
        event = parse_event(line, process)
        assert event is not None
        builder.add(event)
    (function,) = builder.report(RunResult(0, False, False, 9.0), {}).functions
    assert (function.traces, function.repeated_seconds) == (1, 0.0)
