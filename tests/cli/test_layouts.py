"""One compiler's cache is not mistaken for another's: what is for JAX's says so of torch's."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import REPOSITORY, RunCli

CPU = "0.10.2-cpu-zstd"


@pytest.fixture
def local(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / CPU, tmp_path / "local"))


def contents(directory: Path) -> dict[str, bytes]:
    files = (p for p in directory.rglob("*") if p.is_file())
    return {str(p.relative_to(directory)): p.read_bytes() for p in files}


@pytest.mark.parametrize(
    "words",
    [
        ["seal"],
        ["ci", "save", "x.jxb"],
    ],
    ids=" ".join,
)
def test_what_is_for_caches_of_jax_refuses_those_of_torch(
    run_cli: RunCli, torch_cache: Path, words: list[str]
) -> None:
    done = run_cli(*words, "-C", torch_cache, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    error = json.loads(done.stderr)["error"]
    assert (error["code"], "JAX's caches alone" in error["hint"]) == ("other-layout", True)


@pytest.mark.parametrize(
    ("words", "sign"),
    [
        (("doctor",), "TORCHINDUCTOR_CACHE_DIR"),
        (("run", "--", "true"), "no torch activity was observed"),
        (("warm", "--portable", "none.py"), "--portable is for JAX's cache, not for torch"),
        (("explain", "--", "true"), "name a script for torch"),
    ],
)
def test_commands_that_run_programs_detect_the_layout(
    run_cli: RunCli, torch_cache: Path, local: Path, words: tuple[str, ...], sign: str
) -> None:
    done = run_cli(words[0], "-C", torch_cache, *words[1:])
    assert sign in done.stdout + done.stderr
    assert "threshold" not in done.stdout
    shutil.copytree(local, torch_cache, dirs_exist_ok=True)
    both = run_cli(words[0], "-C", torch_cache, *words[1:])
    assert (both.returncode, "two-layouts" in both.stderr) == (2, True)


def test_nothing_of_one_is_put_into_the_other(
    run_cli: RunCli, local: Path, torch_cache: Path, tmp_path: Path
) -> None:
    bundle, torch_bundle = tmp_path / "local.jxb", tmp_path / "torch.jxb"
    assert run_cli("export", bundle, "-C", local).returncode == 0
    assert run_cli("export", torch_bundle, "-C", torch_cache).returncode == 0
    before = contents(local), contents(torch_cache)
    for words in (
        ["copy", local, torch_cache],
        ["copy", bundle, torch_cache],
        ["copy", torch_cache, local],
        ["copy", torch_bundle, local],
        ["pull", local, "-C", torch_cache],
        ["push", torch_cache, "-C", local],
        ["pull", torch_cache, "-C", local],
        ["push", local, "-C", torch_cache],
        ["import", bundle, "-C", torch_cache],
        ["import", torch_bundle, "-C", local],
        ["ci", "save", torch_cache, "-C", local],
        ["ci", "restore", bundle, "--everything", "-C", torch_cache],
    ):
        done = run_cli(*words)
        assert (done.returncode, "[other-layout]" in done.stderr) == (2, True), (words, done.stderr)
    assert (contents(local), contents(torch_cache)) == before


def test_torch_s_cache_takes_no_entries_of_jax(
    run_cli: RunCli, local: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "torch"
    (theirs / "fxgraph").mkdir(parents=True)
    commands = (
        ("push", theirs, "-C", local),
        ("pull", local, "-C", theirs),
        ("ci", "save", theirs, "-C", local),
        ("compile", REPOSITORY / "tests/data/golden/inputs/some.recipe", "-C", theirs),
    )
    for command in commands:
        done = run_cli(*command)
        assert (done.returncode, "[other-layout]" in done.stderr) == (2, True)
    assert not list(theirs.glob("*-cache"))


def test_shared_screens_speak_of_the_compiler_whose_cache_it_is(
    run_cli: RunCli, torch_cache: Path
) -> None:
    graph = min(p for p in (torch_cache / "fxgraph").rglob("*") if p.is_file())
    graph.write_bytes(graph.read_bytes()[:-40])
    fixed = run_cli("verify", "--fix", "--grace", "0s", "-C", torch_cache)
    assert "torch compiles quarantined entries again when it needs them" in fixed.stderr
    assert "JAX" not in fixed.stderr
