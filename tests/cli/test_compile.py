"""``jaxcache compile``: refusals before any work; ``ls``, ``show``, ``explain`` of recipes."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import RunCli

from jaxcache.cache.recipe import Environment, Recipe, Request, encode_recipe
from jaxcache.entry.options import flag_names
from jaxcache.render.recipe import compile_view
from jaxcache.warm.compiling.worker import CompileReport, CompileResult, parse_shard

BLOBS = {hashlib.sha256(b).hexdigest(): b for b in (b"module one" * 9, b"module two", b"")}
ONE, TWO, OPTIONS = BLOBS


def request(module: str, digit: str, bytecode: str, **fields: object) -> Request:
    made = Request(
        module,
        bytecode,
        OPTIONS,
        0,
        (0,),
        (1,),
        key=f"{module}-{digit * 64}",
        components={"computation": digit * 64, "XLA flags": "e" * 64},
        function="step",
        file="train.py",
        line=7,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


RECIPE = Recipe(
    (Environment("0.10.2", "0.10.2", "cpu", cache_dir="/cache"),),
    (
        request("jit_step", "a", ONE, compile_seconds=4.5),
        request("jit_talk\x1b[31m", "b", TWO, callbacks=1, compile_seconds=0.5),
        request("jit_far", "c", TWO, key=None, doubts=("captured-zeros",), stubbed=True),
    ),
    ("the program did not end well",),
)


def save(path: Path, recipe: Recipe = RECIPE) -> Path:
    path.write_bytes(b"".join(encode_recipe(recipe, BLOBS.__getitem__)))
    return path


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return save(tmp_path / "some.recipe")


def test_ls_lists_its_modules(run_cli: RunCli, recipe: Path) -> None:
    done = run_cli("ls", "-C", recipe, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["summary"] == {
        "modules": 3,
        "bytecode_bytes": 110,
        "compile_seconds": 5.0,
    }
    found = {m["module"]: m for m in document["modules"]}
    assert found["jit_step"]["compile_seconds"] == 4.5
    assert found["jit_talk\\x1b[31m"]["refusal"] == "host-callbacks"
    assert (found["jit_far"]["key"], found["jit_far"]["doubts"]) == (None, ["captured-zeros"])
    keys = run_cli("ls", "-C", recipe, "-q", "--sort", "compile").stdout.splitlines()
    assert keys[0] == f"jit_step-{'a' * 64}"
    assert "\x1b" not in run_cli("ls", "-C", recipe).stdout
    assert run_cli("ls", "jit_st*", "-C", recipe, "-q").stdout.splitlines() == keys[:1]
    assert run_cli("ls", "-C", recipe, "--limit", "1").stdout.count("\n") == 1
    assert run_cli("ls", "-C", recipe, "--filter", "size>1").returncode == 2
    assert run_cli("ls", "-C", recipe, "--sort", "created").returncode == 2


def test_show_lists_as_ls_does(run_cli: RunCli, recipe: Path) -> None:
    assert run_cli("show", recipe).stdout == run_cli("ls", "-C", recipe, "--sort", "key").stdout
    document = json.loads(run_cli("show", "jit_step", "-C", recipe, "--json").stdout)
    assert [m["module"] for m in document["modules"]] == ["jit_step"]
    assert run_cli("show", "nothing", "-C", recipe).returncode == 1
    assert run_cli("show", recipe, "--hlo").returncode == 2


def test_a_file_that_is_no_recipe(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no")
    done = run_cli("compile", tmp_path / "x", "--json")
    assert (done.returncode, json.loads(done.stderr)["error"]["code"]) == (1, "not-a-recipe")
    done = run_cli("compile", tmp_path / "gone", "--json")
    assert json.loads(done.stderr)["error"]["code"] == "no-recipe"


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/0", "a/b", "-1/2", "1/2/3", "1/9999999"])
def test_shards_that_are_none(run_cli: RunCli, recipe: Path, text: str) -> None:
    done = run_cli("compile", recipe, f"--shard={text}", "--json")
    assert (done.returncode, json.loads(done.stderr)["error"]["code"]) == (2, "bad-shard")


def test_shards_that_are_some() -> None:
    assert parse_shard("3/4") == (3, 4)


def test_one_form_at_a_time(run_cli: RunCli) -> None:
    for command in (["run", "--json", "--jsonl", "--", "true"], ["warm", "--json", "--jsonl", "x"]):
        done = run_cli(*command)
        assert (done.returncode, "cannot be combined" in done.stderr) == (2, True)


def test_recording_does_not_write_over_something_else(run_cli: RunCli, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for target in (precious, tmp_path / "no" / "directory"):
        done = run_cli("run", "-C", tmp_path / "c", "--record", target, "--", "true")
        assert done.returncode == 2
    assert precious.read_text() == "mine"


def field(number: int, value: "bytes | int | str") -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def debug(*fields: bytes) -> bytes:
    """Compile options with these debug options."""
    return field(3, field(3, b"".join(fields)))


NUMBERS = {name: number for number, name in flag_names().items()}
HOSTILE = {
    "llvm": debug(field(500, field(1, "-ir-dump-directory") + field(2, "/abs"))),
    "llvm-here": debug(field(500, field(1, "-ir-dump-directory") + field(2, "abs"))),
    "path": debug(field(NUMBERS["xla_gpu_dump_autotune_results_to"], "/abs")),
    "name": debug(field(NUMBERS["xla_gpu_dump_autotune_results_to"], "abs")),
    "switch": debug(field(NUMBERS["xla_gpu_dump_llvmir"], 1)),
    "ptxas": debug(field(NUMBERS["xla_gpu_ptx_compiler_extra_flags"], "-o x")),
    "unknown": debug(field(9999, "x")),
    "override": field(7, field(1, "xla_gpu_ptx_file") + field(2, field(1, "x"))),
    "override-llvm": field(
        7, field(1, "xla_backend_extra_options") + field(2, field(1, "-ir-dump-directory=x"))
    ),
    "environment": field(3, field(13, "x")),
    "top": field(77, 1),
}
HARMLESS = {
    "extra": debug(field(500, field(1, "xla_cpu_disable_loop_unrolling") + field(2, ""))),
    "number": debug(field(NUMBERS["xla_backend_optimization_level"], 1)),
    "passes": debug(field(NUMBERS["xla_disable_hlo_passes"], "rematerialization")),
    "replaced": debug(field(NUMBERS["xla_dump_to"], "/abs")),
    "override": field(7, field(1, "xla_embed_ir_in_executable") + field(2, field(2, 1))),
}


def test_compile_options_are_allowed_by_name(run_cli: RunCli, tmp_path: Path) -> None:
    blobs = dict(BLOBS)
    requests = []
    for options, expected in ((HOSTILE, "unknown-option"), (HARMLESS, None)):
        for name, data in options.items():
            digest = hashlib.sha256(data).hexdigest()
            blobs[digest] = data
            requests.append(
                replace(
                    request("jit_f", "a", ONE),
                    module=f"{name}={expected}",
                    key=None,
                    options=digest,
                )
            )
    recipe = Recipe(RECIPE.environments, tuple(requests))
    path = tmp_path / "some.recipe"
    path.write_bytes(b"".join(encode_recipe(recipe, blobs.__getitem__)))
    done = run_cli("ls", "-C", path, "--json")
    for module in json.loads(done.stdout)["modules"]:
        expected = module["module"].partition("=")[2]
        assert module["refusal"] == (None if expected == "None" else expected), module["module"]


@pytest.mark.parametrize(
    ("asked", "code", "allow"),
    [
        ({"device_count": 100_000}, "too-many-devices", "--devices 100000"),
        ({"process_count": 64}, "too-many-processes", "--jobs 64"),
    ],
)
def test_a_recipe_starts_no_more_than_is_sane(
    run_cli: RunCli, tmp_path: Path, asked: dict[str, int], code: str, allow: str
) -> None:
    environment = replace(RECIPE.environments[0], **asked)  # type: ignore[arg-type]
    recipe = save(tmp_path / "some.recipe", replace(RECIPE, environments=(environment,)))
    done = run_cli("compile", recipe, "-C", tmp_path / "cache", "--json", "--jobs", "1")
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["code"]) == (2, code)
    assert allow in error["hint"]


def test_the_sums_of_one_module() -> None:
    made = CompileResult(module="jit_f", key="jit_f-0", outcome="written", recorded_key="jit_f-0")
    *_, line = compile_view(CompileReport("cache", "f.recipe", (made,), 1.0)).notes
    assert str(line).startswith("1 module: 1 written, 0 already cached; ")
