"""What ``explain`` compares where no run is recorded: two sides, by what they hold."""

import pytest

from jaxcache.cache.explain.choose import match_compiles
from jaxcache.cache.explain.parts import compare
from jaxcache.cache.explain.past import Past
from jaxcache.cache.explain.sides import Cause, Compile
from jaxcache.core.sketch import PassedArgument, Sketch


def compiled(module: str, arguments: str, digit: str = "", source: str | None = None) -> Compile:
    key = f"{module}-{digit * 64}" if digit else None
    return Compile(module, key=key, arguments=arguments, source=source)


def test_each_compile_has_one_of_its_module_as_its_partner() -> None:
    small, large = compiled("jit_f", "float32[8]", "1"), compiled("jit_f", "float32[900]", "2")
    other = compiled("jit_g", "float32[8]", "3")
    same, new = compiled("jit_g", "float32[8]", "3"), compiled("jit_h", "float32[8]", "6")
    right = [compiled("jit_f", "float32[900]", "5"), same, new]
    for left in ([small, large, other], [other, large, small]):
        assert list(match_compiles(left, right)) == [(large, right[0]), (other, same), (None, new)]


def test_the_file_counts_more_than_the_arguments() -> None:
    here, there = (compiled("jit_f", f"float32[{d}]", d, f"{d}.py:1") for d in "12")
    moved = compiled("jit_f", "float32[1]", "3", "/at/2.py:1")
    assert [x for x, _ in match_compiles([here, there], [moved])] == [there]


@pytest.mark.parametrize(
    ("old", "new", "names", "brief"),
    [
        ("float32[8]", "float32[16]", (), "argument 0 float32[8] → float32[16]"),
        ("float32[8], int32[]", "float32[8], int8[]", (), "argument 1 int32[] → int8[]"),
        (
            *("float32[8], int32[2]", "float32[9], int32[3]", ("x", "y")),
            "x float32[8] → float32[9], +1 more",
        ),
        ("float32[8]", "float32[8], float32[8]", (), ""),
        ("float32[8]", "float32[8]", (), ""),
        ("uint32[2], float32[8]", "uint32[4], float32[8]", (), ""),
        ("key<fry>[], float32[8]", "key<rbg>[], float32[8]", (), ""),
    ],
)
def test_the_first_changed_argument_is_named(
    old: str, new: str, names: tuple[str, ...], brief: str
) -> None:
    """``jax_default_prng_impl`` decides between ``uint32[2]`` and ``uint32[4]``, not the caller."""
    left, right = (
        Compile("jit_f", f"jit_f-{digit * 64}", {"computation": digit}, arguments=text, names=names)
        for digit, text in (("a", old), ("b", new))
    )
    (difference,) = compare(left, right)
    assert difference.brief == brief
    assert (difference.cause is Cause.UNKNOWN) is not bool(brief)


@pytest.mark.parametrize("steps", ["1", "2"])
def test_padding_is_advised_where_only_the_shape_differs(steps: str) -> None:
    left, right = (
        Compile(
            "jit_f",
            f"jit_f-{digit * 64}",
            {"computation": digit},
            sketch=Sketch(passed=(PassedArgument("x", f"f32[{size}]"),), static={"steps": value}),
        )
        for digit, size, value in (("a", 8, "1"), ("b", 16, steps))
    )
    first, *others = compare(left, right, past=Past(signatures=3))
    assert (first.cause, bool(others)) == (Cause.ARGUMENT_SHAPE, steps == "2")
    assert (first.fix is None) is bool(others)
