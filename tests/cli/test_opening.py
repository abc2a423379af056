"""Which directory a command takes for its cache, and what it says of one that is none."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import REPOSITORY, RunCli

#: Where each cache below the directory is, and which of the corpus it is.
CACHES = {
    "cpu-old": "0.10.2-cpu-zstd",
    "machines/cpu-new": "0.12.0.1-cpu-zstd",
    "machines/gpu": "0.8.3-cuda13-h200-zstd",
}


@pytest.fixture
def above(tmp_path: Path, corpus: Path) -> Path:
    """A directory above three caches and one directory of notes."""
    path = tmp_path / "above"
    for name, source in CACHES.items():
        shutil.copytree(corpus / source, path / name)
    (path / "notes").mkdir()
    return path


def contents(directory: Path) -> dict[str, bytes]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "report out.html",
        "warm train.py",
        "run true",
        "compile train.recipe",
        "explain jit",
        "doctor",
        "verify --fix",
        "verify --restore",
        "seal",
        "prune --max-size 1 --yes",
        "rm jit --yes",
        "pin jit",
        "export out.jxb",
        "import small.jxb",
        "push elsewhere",
        "pull cache",
        "ci restore small.jxb --everything",
        "ci save other.jxb",
        "copy cache ABOVE",
        "push ABOVE -C cache",
        "ci save ABOVE -C cache",
    ],
)
def test_the_caches_below_are_named_and_stay_as_they_are(
    run_cli: RunCli, above: Path, tmp_path: Path, corpus: Path, command: str
) -> None:
    shutil.copytree(corpus / "0.10.2-cpu-zstd", tmp_path / "cache")
    shutil.copy(Path(__file__).parents[1] / "data" / "golden" / "inputs" / "small.jxb", tmp_path)
    before = contents(above)
    place = () if "ABOVE" in command else ("-C", above)
    done = run_cli(*place, *command.replace("ABOVE", str(above)).split())
    assert done.returncode == 10, done.stderr
    names = ", ".join(sorted(CACHES))
    assert f"no cache in {above}; caches below it: {names} [no-cache]" in done.stderr
    assert f"name one with -C, such as -C {above}/cpu-old" in done.stderr
    assert contents(above) == before


def test_an_entry_of_its_own_makes_a_directory_a_cache(run_cli: RunCli, above: Path) -> None:
    entry = next((above / "cpu-old").glob("*-cache"))
    shutil.copy(entry, above)
    listed = json.loads(run_cli("ls", "-C", above, "--json").stdout)
    assert [row["file"] for row in listed["entries"]] == [entry.name]


def test_a_link_to_a_cache_is_not_followed(run_cli: RunCli, above: Path, tmp_path: Path) -> None:
    shutil.move(above / "cpu-old", tmp_path / "outside")
    (above / "cpu-old").symlink_to(tmp_path / "outside")
    done = run_cli("ls", "-C", above)
    assert "caches below it: machines/cpu-new, machines/gpu [no-cache]" in done.stderr


# Which directory a command takes for its cache, and what it says where there is none.


def test_where_the_cache_is_looked_for(run_cli: RunCli, corpus: Path, tmp_path: Path) -> None:
    def where(*words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
        done = run_cli("ls", "--json", *words, env=env, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["cache_dir"])

    for name in (".cache", "xdg", "project", "user"):
        (tmp_path / name / "jax").mkdir(parents=True)
    assert where() == str(tmp_path / ".cache" / "jax")
    assert where(env={"XDG_CACHE_HOME": str(tmp_path / "xdg")}) == str(tmp_path / "xdg" / "jax")
    config = tmp_path / ".config" / "jaxcache"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(f'cache-dir = "{tmp_path}/user/jax"\n')
    own = str(tmp_path / "user" / "jax")
    assert where() == own
    project = tmp_path / "project"
    (project / "pyproject.toml").write_text('[tool.jaxcache]\ncache-dir = "jax"\n')
    assert run_cli("trust", "here", "--yes", cwd=project).returncode == 0
    (project / "deep").mkdir()
    assert where(cwd=project / "deep") == str(project / "jax")
    cache = str(corpus / "0.12.0.1-cpu-zstd")
    env = {"JAX_COMPILATION_CACHE_DIR": cache}
    assert where(env=env, cwd=project) == cache
    assert where("-C", own, env=env, cwd=project) == own
    (project / "~" / "jax").mkdir(parents=True)  # what JAX makes of it where no shell expands it
    env = {"JAX_COMPILATION_CACHE_DIR": "~/jax"}
    assert where(env=env, cwd=project) == str(project / "~" / "jax")
    (project / "pyproject.toml").write_text("[tool.jaxcache\n")
    assert run_cli("ls", cwd=project).returncode == 2


@pytest.mark.parametrize(
    "line", ["ls", "stats", "prune --max-entries 1 --yes", "rm x --yes", "pin"]
)
def test_no_cache_is_exit_10(run_cli: RunCli, tmp_path: Path, line: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for name, code in (("gone", "no-cache"), ("file", "not-a-directory"), ("loop", "no-cache")):
        done = run_cli(*line.split(), "--json", "-C", tmp_path / name)
        error = json.loads(done.stderr)["error"]
        assert (done.returncode, error["exit_code"], error["code"]) == (10, 10, code)
        assert set(error) == {"code", "message", "hint", "exit_code"}


# One compiler's cache is not mistaken for another's: what is for JAX's says so of torch's.


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
        ["compile", REPOSITORY / "tests/data/golden/inputs/some.recipe", "-C", torch_cache],
        ["seal", "-C", torch_cache],
        ["ci", "save", "x.jxb", "-C", torch_cache],
    ):
        done = run_cli(*words)
        assert (done.returncode, "[other-layout]" in done.stderr) == (2, True), (words, done.stderr)
    assert (contents(local), contents(torch_cache)) == before


def test_shared_screens_speak_of_the_compiler_whose_cache_it_is(
    run_cli: RunCli, torch_cache: Path
) -> None:
    graph = min(p for p in (torch_cache / "fxgraph").rglob("*") if p.is_file())
    graph.write_bytes(graph.read_bytes()[:-40])
    fixed = run_cli("verify", "--fix", "--grace", "0s", "-C", torch_cache)
    assert "torch compiles quarantined entries again when it needs them" in fixed.stderr
    assert "JAX" not in fixed.stderr
