"""Which settings of a file count, and how values are read as people and JAX write them."""

import os
from pathlib import Path
from typing import Any

import pytest

from jaxcache.core.configuration import (
    ConfigFile,
    find_other_writer,
    forget_reported,
    read_config_file,
    read_counting,
    read_seconds,
    read_setting,
    read_size_bytes,
    read_switch,
    report_once,
)

OWN = os.getuid()


@pytest.mark.parametrize(
    ("mode", "owner", "group", "why"),
    [
        (0o600, OWN, OWN, ""),
        (0o644, 0, 0, ""),
        (0o600, OWN + 1, OWN, "it belongs to another user"),
        (0o602, OWN, OWN, "every user may write it"),
        (0o660, OWN, OWN, ""),  # the private group of the owner
        (0o660, OWN, OWN + 1, "its group may write it"),
        (0o640, OWN, OWN + 1, ""),
    ],
)
def test_who_else_may_have_written_a_file(mode: int, owner: int, group: int, why: str) -> None:
    assert find_other_writer(os.stat_result((mode, 0, 0, 1, owner, group, 0, 0, 0, 0))) == why


def test_a_file_of_the_user_lies_where_no_other_may_replace_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for name, why in (
        ("pyproject.toml", ""),
        ("config.toml", "every user may write its directory"),
    ):
        (tmp_path / name).write_text("")
        file = read_config_file(str(tmp_path / name))
        assert file and file.unsafe == why
    assert read_config_file(str(tmp_path)) is None


def test_a_file_that_is_left_out_hides_no_other() -> None:
    files = [ConfigFile(f"/{name}/config.toml", b"", "") for name in "ab"]
    tables = {"/a/config.toml": None, "/b/config.toml": {"x": 1}}
    assert [*read_counting(files, (), lambda file: tables[file.path])] == [
        ("/b/config.toml", {"x": 1})
    ]


RESTRICTING: dict[str, Any] = {"require-signed": True, "require_seal": "always"}


@pytest.mark.parametrize(
    ("table", "counting", "ignored"),
    [
        ({}, {}, []),
        ({"cache-dir": "x", "require-signed": False}, {"require-signed": False}, ["cache-dir"]),
        ({"live": RESTRICTING}, {"live": RESTRICTING}, []),
        ({"live": {**RESTRICTING, "tiers": []}}, {"live": RESTRICTING}, ["live"]),
        ({"live": {"require-signed": 1, "require-seal": "never"}}, {"live": {}}, ["live"]),
        ({"live": True}, {}, ["live"]),
    ],
)
def test_of_a_project_that_is_not_trusted_only_what_restricts_counts(
    table: dict[str, Any], counting: dict[str, Any], ignored: list[str]
) -> None:
    project = ConfigFile("/p/pyproject.toml", b"", "")
    assert project.counts and project.select(table) == (counting, ignored)
    assert ConfigFile("/home/config.toml", b"", "").select(table) == (table, [])


def test_what_does_not_count_is_said_with_the_way_to_make_it_count() -> None:
    project = ConfigFile("/p q/pyproject.toml", b"", "")
    assert project.explain_ignored(["live", "cache-dir"]) == (
        "ignored live and cache-dir of /p q/pyproject.toml: this file is not trusted; "
        "jaxcache trust here '/p q' shows them and asks"
    )
    own = ConfigFile("/home/config.toml", b"", "every user may write it")
    assert not own.counts
    assert own.explain_ignored() == (
        "ignored the settings of /home/config.toml: every user may write it; "
        "only you or root may own it and write it"
    )


def test_a_line_is_reported_once_with_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    forget_reported()
    for line in ("é b", "a\x1b[31m\nb", "é b"):
        report_once(line)
    assert capsys.readouterr().err == "jaxcache: é b\njaxcache: a\\x1b[31m\\nb\n"


@pytest.mark.parametrize(
    ("text", "size_bytes", "seconds"),
    [
        ("4096", 4096, None),
        ("1.5k", 1500, None),
        (".5 KiB", 512, None),
        ("2MB", 2 * 10**6, None),
        ("3GiB", 3 << 30, None),
        ("1T", 10**12, None),
        (" 30s ", None, 30.0),
        ("1.5M", 1_500_000, 90.0),  # of either
        ("2h", None, 7200.0),
        ("1d", None, 86_400.0),
        ("2w", None, 1_209_600.0),
        ("-1s", None, None),
        ("²", None, None),
        ("1" * 19, None, None),
        ("often", None, None),
    ],
)
def test_sizes_and_durations(text: str, size_bytes: int | None, seconds: float | None) -> None:
    assert (read_size_bytes(text), read_seconds(text)) == (size_bytes, seconds)


def test_settings_are_read_as_jax_reads_them() -> None:
    words = {"1": True, "Yes": True, "oFF": False, "0": False}
    assert {text: read_setting(text, False) for text in words} == words
    assert (read_setting("5", 1), read_setting("1e3", 1.0), read_setting("x", "")) == (5, 1e3, "x")
    for text, default in (("maybe", True), ("x", 1), ("", 1.0)):
        with pytest.raises(ValueError, match=r"truth value|invalid literal|could not convert"):
            read_setting(text, default)
    env = {"A": " On ", "B": "no", "C": "perhaps"}
    assert [read_switch(name, env) for name in "ABCD"] == [True, False, None, None]
