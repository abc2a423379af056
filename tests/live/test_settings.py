"""Where live settings come from, and what the entry point costs where nothing asks for it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, clean_environment

from jaxcache.live.settings import SETTINGS, ConfigError, resolve, variable

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
    for name in SETTINGS:
        monkeypatch.delenv(variable(name), raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "jaxcache").mkdir(parents=True)
    (tmp_path / "project" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project" / "below")
    return tmp_path


def write_project(home: Path, text: str) -> Path:
    """The pyproject.toml above the working directory."""
    path = home / "project" / "pyproject.toml"
    path.write_text(text)
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


def test_a_file_that_others_may_write_says_nothing(home: Path) -> None:
    write_project(home, PROJECT).chmod(0o666)
    with pytest.raises(ConfigError, match="every user may write it"):
        resolve()


#: Stands in for a process in which JAX calls the entry point.
ENTRY = """
import json, os, re, stat, sys, time, typing  # which JAX has imported long before
started = time.process_time()
from jaxcache.live import plugin
plugin.initialize()
took = time.process_time() - started
print(json.dumps([took, sorted(m for m in sys.modules if m.startswith("jaxcache.live"))]))
"""


def without(environment: dict[str, str], name: str) -> dict[str, str]:
    """The environment less one variable."""
    return {k: v for k, v in environment.items() if k != name}


def ask_entry_point(home: Path, **env: str) -> tuple[list[Any], str]:
    """Seconds and modules of the entry point, and its standard error."""
    done = subprocess.run(
        [sys.executable, "-c", ENTRY],
        env=without(clean_environment(home), "PYTHONDONTWRITEBYTECODE")
        | {"PYTHONPATH": str(REPOSITORY), "PYTHONPYCACHEPREFIX": str(home / "bytecode")}
        | env,
        cwd=home / "project",
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


def test_the_entry_point_does_nothing_without_a_setting(home: Path) -> None:
    told = [ask_entry_point(home)[0] for _ in range(5)]
    assert told[0][1] == ["jaxcache.live", "jaxcache.live.plugin"]
    assert min(t[0] for t in told) < 0.002
    assert ask_entry_point(home, JAXCACHE_LIVE="0")[0][1] == [
        "jaxcache.live",
        "jaxcache.live.plugin",
    ]


def test_a_file_switches_it_on_and_a_variable_off(home: Path) -> None:
    write_project(home, PROJECT)
    assert "jaxcache.live.layer" in ask_entry_point(home)[0][1]
    assert "jaxcache.live.layer" not in ask_entry_point(home, JAXCACHE_LIVE="0")[0][1]


def test_a_mistake_is_one_line_and_nothing_else(home: Path) -> None:
    (_, modules), said = ask_entry_point(home, JAXCACHE_LIVE="1", JAXCACHE_LIVE_TIRES="/nfs")
    assert said.splitlines() == [
        "jaxcache: live is off: JAXCACHE_LIVE_TIRES: tires is not a setting; did you mean tiers?"
    ]
    assert "jaxcache.live.layer" in modules
