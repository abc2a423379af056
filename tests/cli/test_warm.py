"""``jaxcache warm``: what it reads of a command line and the environment, without jax."""

import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from hypothesis import given
from hypothesis import strategies as st

from jaxcache.entry.contents import ArrayType, parse_short_type, short_type
from jaxcache.errors import UsageError
from jaxcache.options.run import CallOptions, RunOptions, WarmOptions
from jaxcache.warm.programs import effective_thresholds, names_function, read_call, read_table

DTYPES = ("bool", "int8", "uint4", "bfloat16", "float32", "float8_e4m3fn", "complex64")


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 10**12), max_size=5))
def test_arrays_are_read_as_they_are_written(dtype: str, shape: list[int]) -> None:
    array = ArrayType(dtype, tuple(shape))
    assert parse_short_type(short_type(array)) == array
    assert parse_short_type(f"{dtype}{shape}") == array


@given(st.text(max_size=20))
def test_any_text_is_an_argument_or_refused(text: str) -> None:
    try:
        (node,) = (*(c := read_call("m:f", CallOptions(words=(text,)))).args, *c.kwargs.values())
    except UsageError as error:
        assert error.code == "bad-argument"
    else:
        assert json.loads(json.dumps(node)) == node


def test_i_is_s_and_neither_is_a_script() -> None:
    assert parse_short_type("i32[2]") == parse_short_type("s32[2]") == ArrayType("int32", (2,))
    assert parse_short_type("f32[-1]") is parse_short_type("f33[1]") is None
    assert parse_short_type("tuple[]") is None
    assert names_function("a.b:C.f")
    assert names_function("train.py:step")
    assert not any(map(names_function, ("train.py", "a:", ":f", "a:1", "a:b-c")))


def test_a_tree_of_arguments() -> None:
    call = read_table(
        "m:f",
        {
            "args": ["f32[2]", [1, {"$tuple": ["key[3]"]}], {"$value": "text"}],
            "kwargs": {"p": {"w": "f32[]", "s": {"$call": {"function": "m:g", "args": [2.5]}}}},
            "committed": True,
        },
        "here",
    )
    assert call.args == (
        {"array": ["float32", [2]]},
        {"list": [{"value": 1}, {"tuple": [{"key": [3]}]}]},
        {"value": "text"},
    )
    inner = {"function": "m:g", "args": [{"value": 2.5}], "kwargs": {}, "static": {}}
    made = {"call": {**inner, "committed": False}}
    assert call.kwargs == {"p": {"dict": {"w": {"array": ["float32", []]}, "s": made}}}
    assert call.committed


@pytest.mark.parametrize(
    "table",
    [
        {"args": "f32[2]"},
        {"args": ["hello"]},
        {"args": [{"$tuple": 1}]},
        {"args": [{"$tuple": [], "more": 1}]},
        {"args": [{"$call": {"function": "g"}}]},
        {"args": [{"$shape": [1]}]},
        {"arg": []},
        {"committed": 1},
        {"static": {"day": date(2024, 1, 1)}},
        {"args": [{"$value": date(2024, 1, 1)}]},
    ],
)
def test_what_is_no_call_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        read_table("m:f", table, "here")
    assert caught.value.code == "bad-list"


def test_a_table_of_arguments_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "args.toml"
    with open(path, "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UsageError, match="too large") as caught:
        read_call("m:f", CallOptions(table=str(path)))
    assert caught.value.code == "bad-list"


def test_what_does_not_go_together(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "a:b").write_text("print('a script after all')")
    for args in (
        ("m:f", "x"),
        ("m:f", "--arg", "f32[2]", "--args", "x.toml"),
        ("m:f", "--args", "missing.toml"),
        ("m:f", "--static", "3"),
        ("m:f", "--arg", "{[]: 1}"),
        ("script.py", "a\0b"),
        ("script.py", "--arg", "f32[2]"),  # the script's own
        ("--arg", "f32[2]", "script.py"),
        ("a:b", "--frobnicate"),
    ):
        done = run_cli("warm", "--python", "/bin/false", *args)
        assert done.returncode in (1, 2), args
        assert "Traceback" not in done.stderr and "internal-error" not in done.stderr
    assert "no script" in run_cli("warm", "script.py", "--arg", "f32[2]").stderr
    done = run_cli("warm")
    assert (done.returncode, "name a script, or a module with -m" in done.stderr) == (2, True)


def test_options_behind_the_script_get_a_note(run_cli: RunCli, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('ran')")

    def notes(*words: str | Path) -> list[str]:
        lines = run_cli(*words).stderr.splitlines()
        return [line for line in lines if "go before it" in line]

    warm = ("warm", "--python", sys.executable, "-C", "cache", script)
    passed = f"passed to {script}; options for jaxcache go before it"
    told = [f"note: --fail-on-miss, -C were {passed}"]
    assert notes(*warm, "--fail-on-miss", "-C", "x", "--steps", "1") == told
    assert f"note: --fail-on-mis was {passed}" in notes(*warm, "--fail-on-mis", "--shape", "1")[0]
    assert notes(*warm, "--steps", "1") == notes("run", "--", "echo", "--fail-on-miss") == []


# JAX's thresholds: who lifts them, and what then holds in the program.


SECONDS = "jax_persistent_cache_min_compile_time_secs"


@pytest.mark.parametrize(
    ("options", "environment", "seconds"),
    [
        (WarmOptions(), "5", 0.0),
        (RunOptions(scratch="/tmp/scratch"), "5", 0.0),  # a run that keeps nothing
        (RunOptions(), "5", 5.0),
        (RunOptions(), None, 1.0),  # JAX's own
        (RunOptions(), "often", 1.0),
    ],
)
def test_warm_lifts_the_threshold_and_run_leaves_it(
    options: RunOptions, environment: str | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SECONDS.upper(), raising=False)
    if environment is not None:
        monkeypatch.setenv(SECONDS.upper(), environment)
    assert effective_thresholds(options)[SECONDS] == seconds
