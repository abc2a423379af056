"""Which Python runs JAX, by what each answers."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxcache.errors import NoJaxError
from jaxcache.units import format_install
from jaxcache.warm.child import child
from jaxcache.warm.child.child import choose_python, describe_no_jax, find_python, has_package

#: A package that no Python on this machine has.
PACKAGE = "wanted_only_here"


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "usr/bin"))
    (tmp_path / "work/sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")


def make_environment(prefix: Path, *, package: bool = True, venv: bool = True) -> str:
    """Make an environment whose Python only answers whether it has :data:`PACKAGE`."""
    (prefix / "bin").mkdir(parents=True)
    python = prefix / "bin/python"
    python.write_text(f'#!/bin/sh\ntest {PACKAGE if package else "none"} = "$3"\n')
    python.chmod(0o755)
    if venv:
        (prefix / "pyvenv.cfg").write_text("home = /nowhere/bin\n")
    return str(python)


def test_the_first_that_has_the_package_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_python(package=PACKAGE) is None
    assert find_python(None, package=PACKAGE) == sys.executable

    def add(python: str, origin: str) -> None:
        assert choose_python("sub/x.py", PACKAGE) == (python, origin)

    # From the last to the first of the order.
    add(make_environment(tmp_path / "usr", venv=False), "PATH")
    beside = make_environment(tmp_path / "work/.venv")
    (tmp_path / "work/.venv").chmod(0o777)  # others may write it
    assert choose_python(package=PACKAGE) == (str(tmp_path / "usr/bin/python"), "PATH")
    (tmp_path / "work/.venv").chmod(0o755)
    add(beside, str(tmp_path / "work/.venv"))
    add(make_environment(tmp_path / "work/sub/.venv"), str(tmp_path / "work/sub/.venv"))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    add(make_environment(tmp_path / "conda", venv=False), "CONDA_PREFIX")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    add(make_environment(tmp_path / "active"), "VIRTUAL_ENV")
    config = tmp_path / "home/.config/jaxcache/config.toml"
    config.parent.mkdir(parents=True)
    configured = make_environment(tmp_path / "configured")
    config.write_text(f'python = "{configured}"\n')
    add(configured, f"python of {config}")
    config.write_text('python = "/absent/python"\n')
    with pytest.raises(NoJaxError, match="Python not found: /absent/python"):
        choose_python()


def test_an_environment_without_the_package_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    active = make_environment(tmp_path / "active", package=False)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    beside = make_environment(tmp_path / "work/.venv")
    assert find_python(None, package=PACKAGE) == beside
    assert f"the active one, {active}, has no {PACKAGE}" in capsys.readouterr().err


def test_all_that_lack_jax_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    active = make_environment(tmp_path / "active", package=False)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    reason = "No module named 'jax'"
    all_lack = f"none of these has jax: {active}, {sys.executable}"
    assert describe_no_jax(active) == f"{active} has no jax"
    assert describe_no_jax(active, reason) == f"{active} has no usable jax: {reason}"
    assert describe_no_jax(sys.executable) == all_lack
    monkeypatch.setattr(child, "has_package", lambda python, package: False)
    assert describe_no_jax(sys.executable, reason) == all_lack  # the tool itself lacks it, too


def test_a_python_finds_a_package_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / PACKAGE).mkdir()
    assert not has_package(sys.executable, PACKAGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert not has_package(sys.executable, PACKAGE)  # a directory without code is no package
    (tmp_path / PACKAGE / "__init__.py").write_text("raise SystemExit(2)")
    assert has_package(sys.executable, PACKAGE)
    assert not has_package(str(tmp_path), PACKAGE)


@pytest.mark.parametrize(
    ("mark", "command", "extras"),
    [
        ("uv-receipt.toml", "uv tool install", '[{ name = "jaxcache", extras = ["EXTRA"] }]'),
        ("pipx_metadata.json", "pipx install --force", '{"package_or_url": "jaxcache[EXTRA]"}'),
    ],
)
def test_a_hint_to_install_reaches_the_environment_of_a_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str, command: str, extras: str
) -> None:
    assert format_install("jax") == f"{sys.executable} -m pip install 'jaxcache[jax]'"
    # Not of PathDistribution: the backport importlib_metadata puts its own classes in its place.
    own = SimpleNamespace(read_text=lambda name: (tmp_path / name).read_text())
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: own)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    remote = extras.replace("EXTRA", "remote")
    repository = '{"url": "https://host/jaxcache", "vcs_info": {"vcs": "git"}}'
    wheel = '{"url": "file:///jaxcache.whl", "archive_info": {}}'
    for receipt, record, package in (
        ("", "", "jaxcache[remote]"),
        (extras.replace("EXTRA", "gpu"), "", "jaxcache[gpu,remote]"),
        # What was installed from a repository or a file comes from there again.
        (remote, repository, "jaxcache[remote] @ git+https://host/jaxcache"),
        ("", wheel, "jaxcache[remote] @ file:///jaxcache.whl"),
    ):
        (tmp_path / mark).write_text(receipt)
        (tmp_path / "direct_url.json").write_text(record)
        assert format_install("remote") == f"{command} '{package}'"
