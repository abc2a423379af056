"""``jaxcache compile``: refusals before any work; ``ls``, ``show``, ``explain`` of recipes."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import CORPUS, RunCli
from entry.forge import message, number
from ways import told

from jaxcache.cache.recipe import Environment, Recipe, Request, encode_recipe
from jaxcache.entry.options import flag_names

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


def debug(*fields: bytes) -> bytes:
    """Compile options with these debug options."""
    return message(3, message(3, *fields))


NUMBERS = {name: number for number, name in flag_names().items()}
HOSTILE = {
    "llvm": debug(message(500, message(1, b"-ir-dump-directory"), message(2, b"/abs"))),
    "llvm-here": debug(message(500, message(1, b"-ir-dump-directory"), message(2, b"abs"))),
    "path": debug(message(NUMBERS["xla_gpu_dump_autotune_results_to"], b"/abs")),
    "name": debug(message(NUMBERS["xla_gpu_dump_autotune_results_to"], b"abs")),
    "switch": debug(number(NUMBERS["xla_gpu_dump_llvmir"], 1)),
    "ptxas": debug(message(NUMBERS["xla_gpu_ptx_compiler_extra_flags"], b"-o x")),
    "unknown": debug(message(9999, b"x")),
    "override": message(7, message(1, b"xla_gpu_ptx_file"), message(2, message(1, b"x"))),
    "override-llvm": message(
        7, message(1, b"xla_backend_extra_options"), message(2, message(1, b"-ir-dump-directory=x"))
    ),
    "environment": message(3, message(13, b"x")),
    "top": number(77, 1),
}
HARMLESS = {
    "extra": debug(message(500, message(1, b"xla_cpu_disable_loop_unrolling"), message(2, b""))),
    "number": debug(number(NUMBERS["xla_backend_optimization_level"], 1)),
    "passes": debug(message(NUMBERS["xla_disable_hlo_passes"], b"rematerialization")),
    "replaced": debug(message(NUMBERS["xla_dump_to"], b"/abs")),
    "override": message(7, message(1, b"xla_embed_ir_in_executable"), message(2, number(2, 1))),
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
