"""Which directory a command takes for its cache, and what it says where there is none."""

import json
from pathlib import Path

import pytest
from conftest import RunCli


def test_where_the_cache_is_looked_for(run_cli: RunCli, corpus: Path, tmp_path: Path) -> None:
    def where(env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
        done = run_cli("ls", "--json", env=env, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["cache_dir"])

    for name in ("by-default", "xdg", "project", "user"):
        (tmp_path / name / "jax").mkdir(parents=True)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "jax").mkdir()
    assert where() == str(tmp_path / ".cache" / "jax")
    assert where({"XDG_CACHE_HOME": str(tmp_path / "xdg")}) == str(tmp_path / "xdg" / "jax")
    config = tmp_path / ".config" / "jaxcache"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(f'cache-dir = "{tmp_path}/user/jax"\n')
    assert where() == str(tmp_path / "user" / "jax")
    project = tmp_path / "project"
    (project / "pyproject.toml").write_text('[tool.jaxcache]\ncache-dir = "jax"\n')
    assert run_cli("trust", "here", "--yes", cwd=project).returncode == 0
    (project / "deep").mkdir()
    assert where(cwd=project / "deep") == str(project / "jax")
    cache = corpus / "0.12.0.1-cpu-zstd"
    env = {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    assert where(env, cwd=project) == str(cache)
    done = run_cli("ls", "--json", "-C", tmp_path / "user" / "jax", env=env)
    assert json.loads(done.stdout)["cache_dir"] == str(tmp_path / "user" / "jax")
    (project / "~" / "jax").mkdir(parents=True)  # what JAX makes of it where no shell expands it
    env = {"JAX_COMPILATION_CACHE_DIR": "~/jax"}
    assert where(env, cwd=project) == str(project / "~" / "jax")
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


@pytest.mark.parametrize(("name", "command"), [("x.jxb", "import"), ("train.py", "warm -C DIR")])
def test_a_file_as_a_cache_leads_to_the_command_for_it(
    run_cli: RunCli, tmp_path: Path, name: str, command: str
) -> None:
    (tmp_path / name).write_text("")
    done = run_cli("verify", "-C", tmp_path / name)
    assert done.returncode == 10
    assert f"jaxcache {command} {tmp_path / name}" in done.stderr


@pytest.mark.parametrize("options", [(), ("--fix",), ("--level", "quick", "--dry-run")])
def test_a_directory_without_a_cache_has_no_problems(
    run_cli: RunCli, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "README.md").write_text("a project")
    done = run_cli("verify", "-C", tmp_path, *options)
    assert (done.returncode, done.stdout) == (10, "")
    assert f"{tmp_path} is not a cache" in done.stderr
    assert "--fix" not in done.stderr
