"""What ``explain`` compares where no run is recorded: two compiles, by what they hold."""

import pytest

from jaxcache.cache.explain.parts import compare
from jaxcache.cache.explain.past import Past
from jaxcache.cache.explain.sides import Cause, Compile, Difference
from jaxcache.core.runs import Run
from jaxcache.core.sketch import PassedArgument, Sketch, SketchedLine


def passed(text: str, names: tuple[str, ...]) -> tuple[PassedArgument, ...]:
    types = text.split(", ")
    return tuple(map(PassedArgument, names or [""] * len(types), types))


def differ(old: Sketch, new: Sketch, past: Past, devices: str = "1") -> tuple[Difference, ...]:
    left = Compile("jit_f", "a", {"computation": "a", "accelerator_config": "1"}, sketch=old)
    right = Compile("jit_f", "b", {"computation": "b", "accelerator_config": devices}, sketch=new)
    return compare(left, right, past=past)


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
        Compile("jit_f", f"jit_f-{digit * 64}", {"computation": digit}, passed=passed(text, names))
        for digit, text in (("a", old), ("b", new))
    )
    (difference,) = compare(left, right)
    assert difference.brief == brief
    assert (difference.cause is Cause.UNKNOWN) is not bool(brief)


@pytest.mark.parametrize(("steps", "devices"), [("1", "1"), ("2", "1"), ("1", "2")])
def test_padding_is_advised_where_only_the_shape_differs(steps: str, devices: str) -> None:
    old, new = (
        Sketch(passed=(PassedArgument("x", f"f32[{size}]"),), static={"steps": value})
        for size, value in ((8, "1"), (16, steps))
    )
    differences = differ(old, new, Past(signatures=3), devices)
    (shape,) = (d for d in differences if d.cause is Cause.ARGUMENT_SHAPE)
    assert len(differences) == 1 + (steps == "2") + (devices == "2")
    assert (shape.fix is None) is (len(differences) > 1)


def test_an_edit_is_named_before_the_line_of_a_library_that_computes_something_else() -> None:
    library = "/v/lib/python3.11/site-packages/diffrax/solver.py"
    before, after = (
        Sketch(lines=(SketchedLine(library, 28, "step", {operation: 1}),))
        for operation in ("sine f32[8]", "cosine f32[8]")
    )
    old, new = (
        Run(at, "main.py", (), "0", {}, {}, {}, (), "", {"main.py": f"{line}22222222"}, ())
        for at, line in ((0, "11111111"), (9, "33333333"))
    )
    (difference,) = differ(before, after, Past(old, new))
    assert "main.py:1 was edited; the operations of diffrax" in difference.meaning
    assert (difference.title, difference.brief) == ("code at main.py:1", "main.py:1 was edited")
    assert [(place.file, place.line) for place in difference.where] == [("main.py", 1)]


def test_a_structure_that_is_static_too_is_named_once() -> None:
    """As Equinox passes it."""
    old, new = (
        Sketch(passed=passed(types, ()), static={"static": f"PyTreeDef({types})"})
        for types in ("f32[8]", "f32[8], f32[8]")
    )
    (difference,) = differ(old, new, Past())
    assert difference.cause is Cause.ARGUMENT_STRUCTURE
