"""Where live settings come from, and what the entry point costs where nothing asks for it."""

import json
import sys
from pathlib import Path

import pytest
from conftest import GiveAway, clean_environment
from processes import sh

from jaxcache.cache.trust import find_project, trust_project
from jaxcache.core.configuration import forget_reported
from jaxcache.live.settings import (
    SETTINGS,
    ConfigError,
    configured_directory,
    resolve,
    variable,
)

PROJECT = """
[tool.jaxcache.live]
enabled = true
max-size = "2GB"
tiers = ["/nfs/team/jax", "s3://bucket/jax:ro"]
unused-for = "4w"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, where the tests may put configuration files."""
    forget_reported()
    for name in SETTINGS:
        monkeypatch.delenv(variable(name), raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "jaxcache").mkdir(parents=True)
    (tmp_path / "project" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project" / "below")
    return tmp_path


def write_project(home: Path, text: str, *, trusted: bool = True) -> Path:
    """The pyproject.toml above the working directory."""
    path = home / "project" / "pyproject.toml"
    path.write_text(text)
    if trusted:
        trust_project(find_project(str(path.parent)))
    return path


def test_each_source_wins_over_the_next(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = write_project(home, PROJECT)
    user = home / "config" / "jaxcache" / "config.toml"
    user.write_text('[live]\nmax-size = "1GB"\nmax-entries = 7\n')
    monkeypatch.setenv("JAXCACHE_LIVE_UNUSED_FOR", "36h")
    found = resolve({"policy": "cost", "max_entries": None, "max_size": "3GB"})
    assert found["enabled"] is True
    assert (found["max-size"], found.origins["max-size"]) == (2_000_000_000, str(project))
    assert (found["max-entries"], found.origins["max-entries"]) == (7, str(user))
    assert found["tiers"] == ("/nfs/team/jax", "s3://bucket/jax:ro")
    assert (found["unused-for"], found.origins["unused-for"]) == (
        129_600.0,
        "JAXCACHE_LIVE_UNUSED_FOR",
    )
    assert (found["policy"], found.origins["policy"]) == ("cost", "enable()")
    assert (found["flush"], found.origins["flush"]) == (5.0, "default")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("JAXCACHE_LIVE_MAX_SIZE", "much", "JAXCACHE_LIVE_MAX_SIZE: max-size = 'much': write 500M"),
        ("JAXCACHE_LIVE_MAXSIZE", "1GB", "maxsize is not a setting; did you mean max-size?"),
        ("JAXCACHE_LIVE_POLICY", "fifo", "write lru or cost"),
        ("JAXCACHE_LIVE_TIMEOUT", "2 parsecs", "write 30s, 15m, 12h, 7d or 2w"),
        ("JAXCACHE_LIVE_QUEUE", "-1", "write a whole number"),
        ("JAXCACHE_LIVE", "perhaps", "write true or false"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        resolve()
    assert said in str(caught.value)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.jaxcache.live]\nenable = true\n", "enable is not a setting; did you mean enabled?"),
        ("[tool.jaxcache]\nlive = 3\n", "is not a table"),
        ("[tool.jaxcache.live\n", "cannot read"),
    ],
)
def test_a_wrong_file_is_refused(home: Path, text: str, said: str) -> None:
    write_project(home, text)
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        resolve()


UNTRUSTED = """
[tool.jaxcache.live]
enabled = true
tiers = ["/evil"]
require-signed = true
max-size = "1B"
x = 1
"""


def test_a_file_that_is_not_trusted_only_restricts(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_project(home, UNTRUSTED, trusted=False)
    user = home / "config" / "jaxcache" / "config.toml"
    user.write_text('[live]\ntiers = ["/mine"]\nrequire-signed = false\n')
    monkeypatch.setenv("JAXCACHE_LIVE", "1")
    found = resolve()
    assert (found["enabled"], found["tiers"], found["max-size"]) == (True, ("/mine",), None)
    assert (found["require-signed"], found.origins["require-signed"]) == (True, str(path))
    assert capsys.readouterr().err == (
        f"jaxcache: ignored live of {path}: this file is not trusted; "
        f"jaxcache trust here {path.parent} shows them and asks\n"
    )


def test_no_file_takes_back_the_signatures_that_another_requires(home: Path) -> None:
    write_project(home, "[tool.jaxcache.live]\nrequire-signed = false\n")
    user = home / "config" / "jaxcache" / "config.toml"
    user.write_text("[live]\nrequire-signed = true\n")
    found = resolve()
    assert (found["require-signed"], found.origins["require-signed"]) == (True, str(user))


@pytest.mark.parametrize(
    "text", [PROJECT, "[tool.jaxcache.live\n", "[tool.jaxcache.live]\nx = 1\n"]
)
def test_a_file_of_another_user_is_skipped(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    give_away: GiveAway,
    text: str,
) -> None:
    give_away(write_project(home, text, trusted=False))
    monkeypatch.setenv("JAXCACHE_LIVE", "1")
    monkeypatch.setenv("JAXCACHE_LIVE_REQUIRE_SIGNED", "1")
    found = resolve()
    assert (found["enabled"], found["require-signed"], found["tiers"]) == (True, True, ())
    assert "it belongs to another user" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_skipped_where_it_is_not_trusted(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(home, "[tool.jaxcache.live\n", trusted=False)
    monkeypatch.setenv("JAXCACHE_LIVE", "1")
    assert resolve()["enabled"] is True
    assert "jaxcache: cannot read" in capsys.readouterr().err


def test_only_a_trusted_file_chooses_the_directory(home: Path) -> None:
    text = '[tool.jaxcache]\ncache-dir = "c"\n'
    write_project(home, text, trusted=False)
    assert configured_directory() is None
    write_project(home, text)
    assert configured_directory() == str(home / "project" / "c")


#: Stands in for a process in which JAX calls the entry point.
ENTRY = """
import json, os, re, stat, sys, typing  # which JAX has imported long before
from jaxcache.live import plugin
plugin.initialize()
print(json.dumps(sorted(m for m in sys.modules if m.startswith("jaxcache.live"))))
"""


def ask_entry_point(home: Path, **env: str) -> tuple[list[str], str]:
    """The modules of the live layer that the entry point imports, and its standard error."""
    done = sh(
        [sys.executable, "-c", ENTRY],
        env=clean_environment(home) | env,
        cwd=home / "project",
        check=True,
    )
    return json.loads(done.stdout), done.stderr


def test_the_entry_point_does_nothing_without_a_setting(home: Path) -> None:
    alone = ["jaxcache.live", "jaxcache.live.plugin"]
    assert ask_entry_point(home)[0] == ask_entry_point(home, JAXCACHE_LIVE="0")[0] == alone


def test_a_file_switches_it_on_and_a_variable_off(home: Path) -> None:
    write_project(home, PROJECT)
    config = str(home / "config")
    assert "jaxcache.live.layer" in ask_entry_point(home, XDG_CONFIG_HOME=config)[0]
    off = ask_entry_point(home, XDG_CONFIG_HOME=config, JAXCACHE_LIVE="0")
    assert "jaxcache.live.layer" not in off[0]


def test_a_mistake_is_one_line_and_nothing_else(home: Path) -> None:
    modules, said = ask_entry_point(home, JAXCACHE_LIVE="1", JAXCACHE_LIVE_TIRES="/nfs")
    assert said.splitlines() == [
        "jaxcache: live is off: JAXCACHE_LIVE_TIRES: tires is not a setting; did you mean tiers?"
    ]
    assert "jaxcache.live.layer" in modules


@pytest.mark.parametrize("file", ["user", "trusted", "untrusted"])
def test_signatures_that_the_configuration_requires_bind_the_layer(home: Path, file: str) -> None:
    path = home / "config" / "jaxcache" / "config.toml"
    if file == "user":
        path.write_text("require-signed = true\n")
    else:
        text = "[tool.jaxcache]\nrequire-signed = true\n[tool.jaxcache.live]\ntimeout = 1\n"
        path = write_project(home, f"{text}require-signed = false\n", trusted=file == "trusted")
    found = resolve({"require_signed": False})
    assert (found["require-signed"], found.origins["require-signed"]) == (True, str(path))
