"""Where live settings come from, and what documents and manifests say of them."""

import inspect
import re
from pathlib import Path

import pytest
from conftest import REPOSITORY, GiveAway

from jaxcache import enable
from jaxcache.cache.trust import find_project, trust_project
from jaxcache.core.configuration import forget_reported
from jaxcache.live.settings import (
    SETTINGS,
    ConfigError,
    configured_directory,
    describe,
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


def write_user(home: Path, text: str) -> Path:
    """The user's own file."""
    path = home / "config" / "jaxcache" / "config.toml"
    path.write_text(text)
    return path


def write_project(home: Path, text: str, *, trusted: bool = True) -> Path:
    """The pyproject.toml above the working directory."""
    path = home / "project" / "pyproject.toml"
    path.write_text(text)
    if trusted:
        trust_project(find_project(str(path.parent)))
    return path


def test_each_source_wins_over_the_next(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = write_project(home, PROJECT)
    user = write_user(home, '[live]\nmax-size = "1GB"\nmax-entries = 7\n')
    monkeypatch.setenv("JAXCACHE_LIVE_UNUSED_FOR", "36h")
    found = resolve({"policy": "cost", "max_entries": None, "max_size": "3GB"})
    expected = {
        "enabled": (True, str(project)),
        "max-size": (2_000_000_000, str(project)),
        "tiers": (("/nfs/team/jax", "s3://bucket/jax:ro"), str(project)),
        "max-entries": (7, str(user)),
        "unused-for": (129_600.0, "JAXCACHE_LIVE_UNUSED_FOR"),
        "policy": ("cost", "enable()"),
        "flush": (5.0, "default"),
    }
    assert {name: (found[name], found.origins[name]) for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("max-size", 5, 5),
        ("max-size", "10 MiB", 10 << 20),
        ("unused-for", 0, 0.0),
        ("unused-for", 1.5, 1.5),
        ("unused-for", "2w", 14 * 86_400.0),
        ("max-entries", " 7 ", 7),
        ("summary", " Yes ", True),
        ("summary", "off", False),
        ("summary", "", False),
        ("ledger", "totals", "totals"),
        ("ledger", "0", False),
        ("require-seal", "never", "never"),
        ("tiers", "/a, s3://b  /c", ("/a", "s3://b", "/c")),
        ("tiers", "/a b\n/c, d\n", ("/a b", "/c, d")),
        ("tiers", ["/a b", ""], ("/a b",)),
        ("tiers", Path("/a"), ("/a",)),
        ("local-dir", "~/x", "/home/me/x"),
    ],
)
def test_a_setting_is_read_as_people_write_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, given: object, value: object
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found = resolve({name: given})
    assert (found[name], type(found[name])) == (value, type(value))
    assert found.origins[name] == "enable()"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("max-size", -1),
        ("max-size", 1.5),
        ("max-size", True),
        ("max-entries", "1e3"),
        ("unused-for", -0.5),
        ("unused-for", False),
        ("summary", 1),
        ("ledger", "sums"),
        ("tiers", 3),
        ("tiers", [3]),
        ("local-dir", 3),
        ("require-seal", True),
        ("no-such-setting", 1),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_value_of_another_form_is_refused(name: str, given: object) -> None:
    with pytest.raises(ConfigError, match=rf"^enable\(\): {name}"):
        resolve({name: given})


@pytest.mark.usefixtures("home")
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
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=re.escape(said)):
        resolve()


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
    with pytest.raises(ConfigError, match=re.escape(said)):
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
    write_user(home, '[live]\ntiers = ["/mine"]\nrequire-signed = false\n')
    monkeypatch.setenv("JAXCACHE_LIVE", "1")
    found = resolve()
    assert (found["enabled"], found["tiers"], found["max-size"]) == (True, ("/mine",), None)
    assert (found["require-signed"], found.origins["require-signed"]) == (True, str(path))
    assert capsys.readouterr().err == (
        f"jaxcache: ignored live of {path}: this file is not trusted; "
        f"jaxcache trust here {path.parent} shows them and asks\n"
    )


@pytest.mark.parametrize("file", ["live", "user", "trusted", "untrusted"])
def test_signatures_that_one_file_requires_bind_the_layer(home: Path, file: str) -> None:
    """Neither another file nor the program takes them back."""
    text = "" if file in ("live", "user") else "[tool.jaxcache]\nrequire-signed = true\n"
    text += "[tool.jaxcache.live]\ntimeout = 1\nrequire-signed = false\n"
    path = write_project(home, text, trusted=file != "untrusted")
    if file in ("live", "user"):
        path = write_user(home, f"{'[live]' * (file == 'live')}\nrequire-signed = true\n")
    found = resolve({"require_signed": False})
    assert (found["require-signed"], found.origins["require-signed"]) == (True, str(path))


@pytest.mark.parametrize(
    ("text", "is_foreign", "said"),
    [
        (PROJECT, True, "it belongs to another user"),
        ("[tool.jaxcache.live\n", True, "it belongs to another user"),
        ("[tool.jaxcache.live]\nx = 1\n", True, "it belongs to another user"),
        ("[tool.jaxcache.live\n", False, "jaxcache: cannot read"),
    ],
)
def test_a_file_of_another_user_and_one_that_nobody_trusts_and_cannot_be_read_are_skipped(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    give_away: GiveAway,
    text: str,
    is_foreign: bool,
    said: str,
) -> None:
    path = write_project(home, text, trusted=False)
    if is_foreign:
        give_away(path)
    monkeypatch.setenv("JAXCACHE_LIVE", "1")
    monkeypatch.setenv("JAXCACHE_LIVE_REQUIRE_SIGNED", "1")
    found = resolve()
    assert (found["enabled"], found["require-signed"], found["tiers"]) == (True, True, ())
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "directory"),
    [
        ('"c"', "PROJECT/c"),
        ('"/c"', "/c"),
        ('"~/c"', "~/c"),
        ('"s3://b/c"', "s3://b/c"),
        ("3", None),
    ],
)
def test_a_trusted_file_chooses_the_directory(
    home: Path, value: str, directory: str | None
) -> None:
    text = f"[tool.jaxcache]\ncache-dir = {value}\n"
    write_project(home, text, trusted=False)
    assert configured_directory() is None
    write_project(home, text)
    expected = directory and directory.replace("PROJECT", str(home / "project"))
    assert configured_directory() == expected


def test_what_doctor_shows_has_no_credentials(home: Path) -> None:
    write_user(home, '[live]\ntiers = ["https://user:PASSWORD@host/x"]\n')
    assert describe()["values"]["tiers"] == ("https://host/x",)
    write_user(home, '[live]\npolicy = "fifo"\n')
    assert "write lru or cost" in describe()["error"]


# Documents and manifests.


def settings_of(table: str) -> set[str]:
    rows = re.findall(r"^\| ((?:`[a-z-]+`(?:, )?)+) \|", table, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}


def test_the_documented_settings_are_those_of_the_code() -> None:
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    table = page.partition("## The live layer")[2].partition("\n## ")[0]
    assert settings_of(table) == set(SETTINGS)
    page = (REPOSITORY / "docs" / "live.md").read_text()
    explained = settings_of(page.partition("## Settings")[2].partition("## What happens")[0])
    assert explained <= set(SETTINGS) and len(explained) > 10


def test_the_help_of_enable_names_every_setting() -> None:
    told = inspect.getdoc(enable) or ""
    own = {*inspect.signature(enable).parameters, "enabled", "portable_keys"}
    for name in (setting.replace("-", "_") for setting in SETTINGS):
        assert name in own or re.search(rf"\b{name}\b", told), name
    assert "docs/" not in told
