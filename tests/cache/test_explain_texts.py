"""What ``explain`` reads of a run, programs and logs, in time however long their lines are."""

from jaxcache.cache.explain.logs import read_log
from jaxcache.cache.explain.programs import compare_programs
from jaxcache.cache.explain.sides import Compile

KEY = "ab" * 32


def test_long_programs_are_compared_by_lines() -> None:
    """Every line another: what compares letters as well is at it for minutes."""
    old = tuple(f"  add float32[{n},8] %{n * 7 % 999} %{n}" for n in range(4_000))
    new = tuple(f"  multiply float32[{n},16] %{n * 5 % 999} %{n}" for n in range(4_000))
    both = ("  same 1",)
    found = compare_programs(
        Compile("jit_f", outline=old[:2000] + both + old[2000:-1]),
        Compile("jit_f", outline=new[:2000] + both + new[2000:-1]),
    )
    assert found.left is not None
    assert found.left.startswith("add float32[0,8] %0 %0; add float32[1,8]")
    assert found.left.endswith("and 3,991 more")
    assert "same" not in found.left


def test_long_lines_of_others_in_a_log_cost_nothing() -> None:
    """Each would keep a pattern busy for minutes that looks at it from every quote or space."""
    key = f"jit_f-{KEY}"
    noise = [
        "'" * 65_000,
        "Writing " * 8_000,
        f"Writing jit_f to persistent compilation cache with key {' ' * 65_000}x",
        f"Persistent compilation cache hit for 'jit_f' with key '{key}'{' ' * 65_000}x",
    ]
    line = "I0101 12:00:00 1 compiler.py:1] Persistent compilation cache hit for 'jit_f' with key "
    found = read_log([*noise, f"{line}'{key}'   \n", *noise])
    assert [c.outcome for c in found if c.key == key] == ["hit"]
