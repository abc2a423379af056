"""``jaxcache compile``: refusals before any work; ``ls``, ``show``, ``explain`` of recipes."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import CORPUS, RunCli
from ways import told

from jaxcache.cache.recipe import Environment, Recipe, Request, encode_recipe
from jaxcache.core.wire import write_varint
from jaxcache.entry.options import flag_names
from jaxcache.warm.compiling.worker import parse_shard

#: Three modules, one of which calls the host, and one of which has no key.
SOME = CORPUS.parent / "golden" / "inputs" / "some.recipe"
ENVIRONMENT = Environment("0.10.2", "0.10.2", "cpu")


def save(path: Path, environment: Environment, options: dict[str, bytes]) -> Path:
    """Write a recipe that has a module for each of these compile options, named as they are."""
    module = b"module"
    blobs = {hashlib.sha256(data).hexdigest(): data for data in (*options.values(), module)}
    digests = {data: digest for digest, data in blobs.items()}
    requests = [
        Request(name, digests[module], digests[data], 0, (0,), (1,))
        for name, data in options.items()
    ]
    recipe = Recipe((environment,), tuple(requests))
    path.write_bytes(b"".join(encode_recipe(recipe, blobs.__getitem__)))
    return path


def test_ls_selects_and_sorts_its_modules(run_cli: RunCli) -> None:
    keys = run_cli("ls", "-C", SOME, "-q", "--sort", "compile").stdout.splitlines()
    assert keys[0] == f"jit_step-{'a' * 64}"
    assert run_cli("ls", "jit_st*", "-C", SOME, "-q").stdout.splitlines() == keys[:1]
    assert run_cli("ls", "-C", SOME, "--limit", "1").stdout.count("\n") == 1
    assert run_cli("ls", "-C", SOME, "--filter", "size>1").returncode == 2
    assert run_cli("ls", "-C", SOME, "--sort", "created").returncode == 2


def test_show_lists_as_ls_does(run_cli: RunCli) -> None:
    assert run_cli("show", SOME).stdout == run_cli("ls", "-C", SOME, "--sort", "key").stdout
    shown = told(run_cli, "show", "jit_step", "-C", SOME)["modules"]
    assert [m["module"] for m in shown] == ["jit_step"]
    assert run_cli("show", "nothing", "-C", SOME).returncode == 1
    assert run_cli("show", SOME, "--hlo").returncode == 2


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
        return write_varint(number << 3) + write_varint(value)
    data = value.encode() if isinstance(value, str) else value
    return write_varint(number << 3 | 2) + write_varint(len(data)) + data


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


@pytest.mark.parametrize(
    ("options", "refusal"), [(HOSTILE, "unknown-option"), (HARMLESS, None)], ids=["no", "yes"]
)
def test_compile_options_are_allowed_by_name(
    run_cli: RunCli, tmp_path: Path, options: dict[str, bytes], refusal: str | None
) -> None:
    recipe = save(tmp_path / "some.recipe", ENVIRONMENT, options)
    modules = told(run_cli, "ls", "-C", recipe)["modules"]
    assert {m["module"]: m["refusal"] for m in modules} == dict.fromkeys(options, refusal)


@pytest.mark.parametrize(
    ("asked", "options", "code", "allow"),
    [
        ({"device_count": 100_000}, (), "too-many-devices", "--devices 100000"),
        ({"device_count": 4}, ("--devices", "2"), "too-few-devices", "--devices 4"),
        ({"process_count": 64}, (), "too-many-processes", "--jobs 64"),
    ],
)
def test_a_recipe_starts_no_more_than_is_sane(
    run_cli: RunCli,
    tmp_path: Path,
    asked: dict[str, int],
    options: tuple[str, ...],
    code: str,
    allow: str,
) -> None:
    environment = replace(ENVIRONMENT, **asked)  # type: ignore[arg-type]
    recipe = save(tmp_path / "some.recipe", environment, {"jit_f": b""})
    done = run_cli("compile", recipe, "-C", tmp_path / "cache", "--json", "--jobs=1", *options)
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["code"]) == (2, code)
    assert allow in error["hint"]
