"""Values as text: durations, counts and names as people read them, commands as they paste them."""

from collections.abc import Callable

import pytest

from jaxcache import units


def _install(has_pip: bool) -> str:
    return units.install_command("/a b/python", "jaxcache[gpu]", has_pip=has_pip)


@pytest.mark.parametrize(
    ("function", "values", "text"),
    [
        *((units.format_duration, (seconds,), "0 s") for seconds in (-1, 0)),
        (units.format_duration, (0.0001,), "1 ms"),
        (units.format_duration, (0.0994,), "99 ms"),
        (units.format_duration, (0.0995,), "0.1 s"),
        (units.format_duration, (9.94,), "9.9 s"),
        (units.format_duration, (9.95,), "10 s"),
        (units.format_duration, (59,), "59 s"),
        (units.format_duration, (60,), "1m"),
        (units.format_duration, (200.4,), "3m 20s"),
        (units.format_duration, (3600,), "1h"),
        (units.format_duration, (86_399,), "23h 59m"),
        (units.format_duration, (2 * 86_400 + 3 * 3600 + 59,), "2d 3h"),
        (units.format_compile, (None,), "?"),
        (units.format_compile, (0,), "<1 s"),
        (units.format_compile, (1,), "1.0 s"),
        (units.format_compiling, (0, 0), "0 s of compiling"),
        (units.format_compiling, (0, 1), "under 1 s of compiling"),
        (units.format_compiling, (0, 2), "under 1 s of compiling per entry"),
        (units.format_compiling, (0.5, 2), "0.5 s of compiling"),
        (units.format_ago, (10, 5), "now"),
        (units.format_ago, (0, 59_999_999_999), "now"),
        (units.format_ago, (0, 60 * 10**9), "1m"),
        (units.format_ago, (0, 3600 * 10**9), "1h"),
        (units.format_ago, (0, 86_400 * 10**9), "1d"),
        (units.format_since, (0, 1), "now"),
        (units.format_since, (0, 7200 * 10**9), "2h ago"),
        (units.format_count, (0, "key"), "0 keys"),
        (units.format_count, (3000, "file"), "3,000 files"),
        (units.format_size, (812,), "812 B"),
        (units.rfc3339, (1_000_000_000,), "1970-01-01T00:00:01.000000Z"),
        (units.rfc3339, (1_780_000_000_001_002_003,), "2026-05-28T20:26:40.001002Z"),
        (units.rfc3339, (-(10**9),), "1970-01-01T00:00:00.000000Z"),
        (units.rfc3339, (10**30,), "9999-12-31T23:59:59.000000Z"),
        (units.join_some, ("abc", 3), "a, b, c"),
        (units.join_some, ("abc", 2), "a, b and 1 more"),
        (units.printable, ("a\x1b\x7f\u202e\udcff訓",), "a\\x1b\\x7f\\u202e\\xff訓"),
        (units.printable_lines, ("a\t\nb",), "a\\x09\nb"),
        (units.add_cache, ("see jaxcache ls -q", "/a b"), "see jaxcache ls -C '/a b' -q"),
        (units.add_cache, ("jaxcache ls -q -C x", "/a"), "jaxcache ls -q -C x"),
        (units.add_cache, ("jaxcache show x/y", "/a"), "jaxcache show x/y"),
        (_install, (True,), "'/a b/python' -m pip install 'jaxcache[gpu]'"),
        (_install, (False,), "uv pip install --python '/a b/python' 'jaxcache[gpu]'"),
        (units.cell_len, ("abc",), 3),
        (units.cell_len, ("訓a",), 3),
        (units.cell_len, ("e\u0301",), 1),
        (units.differing_columns, ([(1, 2, 3), (1, 4, 3)],), (1,)),
        (units.differing_columns, ([(1, 2), (1,)],), ()),
    ],
)
def test_values_are_shown(
    function: Callable[..., object], values: tuple[object, ...], text: object
) -> None:
    assert function(*values) == text
