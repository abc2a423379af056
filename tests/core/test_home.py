"""Without a home directory there is nothing of the user's, and a directory ``~`` is anybody's."""

import os
import pwd
import shutil
import sys
from pathlib import Path

import pytest
from command_line import run_in_process
from conftest import clean_environment

from jaxcache.cache.trust import load_trusted
from jaxcache.core.configuration import ConfigFile, find_config_files, read_trusted_projects
from jaxcache.core.names import live_directory
from jaxcache.core.remote import connection, has_credentials
from jaxcache.errors import NoJaxError
from jaxcache.live.settings import resolve
from jaxcache.live.tier import _trusted_keys
from jaxcache.warm.child.child import find_python, has_package

_KEY = "jaxcache-ed25519 AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="


@pytest.fixture
def clone(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a user without an account, with a directory of the name ``~``."""
    path = tmp_path / "clone"
    home = path / "~"
    config = home / ".config" / "jaxcache"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(
        'cache-dir = "/evil"\n[live]\nenabled = true\ntiers = ["/evil"]\n'
    )
    (config / "trusted-keys").write_text(f"{_KEY} evil\n")
    (config / "trusted-projects").write_text("sha256:0 /evil/pyproject.toml\n")
    (home / ".aws").mkdir()
    (home / ".aws" / "config").write_text("[profile p]\ncredential_process = touch evil\n")
    (home / ".aws" / "credentials").write_text("")
    (home / ".config" / "gcloud").mkdir()
    (home / ".config" / "gcloud" / "application_default_credentials.json").write_text("{}")
    shutil.copytree(corpus / "0.4.38-cpu-zstd", home / ".cache" / "jax")

    def no_account(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", no_account)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(path)
    return path


def run(clone: Path, *words: str) -> "tuple[int, str, str]":
    environment = clean_environment(clone)
    del environment["HOME"]
    done = run_in_process(words, env=environment, cwd=clone)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.usefixtures("clone")
def test_no_setting_of_a_directory_of_that_name_counts() -> None:
    assert find_config_files() == []
    assert read_trusted_projects() == {}
    assert (resolve()["enabled"], resolve()["tiers"]) == (False, ())


@pytest.mark.usefixtures("clone")
def test_no_key_of_a_directory_of_that_name_is_trusted() -> None:
    assert load_trusted() == []
    assert _trusted_keys() == frozenset()


@pytest.mark.parametrize("words", [(), ("-C", "~/.cache/jax"), ("-C", "~nobody-here/x")])
def test_no_cache_in_a_directory_of_that_name_is_read(clone: Path, words: tuple[str, ...]) -> None:
    code, output, errors = run(clone, "ls", *words)
    assert (code, output) == (2, "")
    assert "no home directory is known" in errors and "HOME" in errors


def test_a_cache_that_is_named_in_full_needs_no_home(clone: Path, corpus: Path) -> None:
    before = sorted(clone.rglob("*"))
    code, output, errors = run(clone, "ls", "-C", str(corpus / "0.4.38-cpu-zstd"))
    assert (code, len(output.splitlines()), errors) == (0, 7, "")
    assert run(clone, "ls", "-C", "./~/.cache/jax")[0] == 0
    assert sorted(clone.rglob("*")) == before


def test_no_private_key_goes_there(clone: Path) -> None:
    pytest.importorskip("cryptography")
    code, _, errors = run(clone, "trust", "keygen", "ci")
    assert (code, "no home directory is known" in errors) == (2, True)
    assert not list(clone.rglob("*.key"))


@pytest.mark.usefixtures("clone")
def test_no_bucket_is_reached_with_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "p")
    assert "credential_provider" not in connection("s3", {})
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    assert not has_credentials("gs")
    with pytest.raises(FileNotFoundError):
        live_directory("s3://bucket/x")


def test_a_python_below_an_unknown_home_does_not_exist(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / "~" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "jaxcache").mkdir()
    (tmp_path / "jaxcache" / "config.toml").write_text('python = "~/python"\n')
    with pytest.raises(NoJaxError, match="no home directory is known"):
        find_python(None)


def test_packages_are_looked_up_without_a_home(clone: Path) -> None:
    (clone / "bin").mkdir()
    (clone / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    assert not has_package(str(clone / "bin" / "python"), "no_such_package")


@pytest.mark.parametrize(
    "text",
    [
        "[tool.jaxcache]\npython = 'p'",
        "[ tool . 'jaxcache' ]\npython = 'p'",
        "[\"tool\"]\njaxcache = {python = 'p'}",
        "tool.jaxcache.python = 'p'",
        "tool = {jaxcache = {python = 'p'}}",
    ],
)
def test_each_spelling_of_the_table_in_a_project_is_found(text: str) -> None:
    file = ConfigFile("/p/pyproject.toml", text.encode(), "")
    assert (file.names_jaxcache, file.parse()) == (True, {"python": "p"})
