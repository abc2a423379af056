"""What ``explain`` reads of runs and programs, in time however long their lines are."""

import pytest

from jaxcache.cache.explain.matching import match_compiles
from jaxcache.cache.explain.programs import compare_arguments, first_change
from jaxcache.cache.explain.sides import Compile


def compiled(module: str, arguments: str, digit: str = "", source: str | None = None) -> Compile:
    key = f"{module}-{digit * 64}" if digit else None
    return Compile(module, key=key, arguments=arguments, source=source)


def test_each_compile_has_the_nearest_of_its_module_as_its_partner() -> None:
    small, large = compiled("jit_f", "float32[8]", "1"), compiled("jit_f", "float32[900]", "2")
    other = compiled("jit_g", "float32[8]", "3")
    near_small, near_large = (
        compiled("jit_f", "float32[9]", "4"),
        compiled("jit_f", "float32[800]", "5"),
    )
    same, new = compiled("jit_g", "float32[8]", "3"), compiled("jit_h", "float32[8]", "6")
    right = [near_large, near_small, same, new]
    for left in ([small, large, other], [other, large, small]):
        assert list(match_compiles(left, right)) == [
            (large, near_large),
            (small, near_small),
            (other, same),
            (None, new),
        ]
    # The second nearest where the nearest is another's.
    both = compiled("jit_f", "float32[9]", "7"), compiled("jit_f", "float32[10]", "8")
    assert [x for x, _ in match_compiles([small, large], both)] == [small, large]
    # More than there are: the rest have the nearest, too.
    assert [x for x, _ in match_compiles([small], [near_small, near_large])] == [small, small]
    # One that the right side has itself comes last.
    assert [x for x, _ in match_compiles([small, large], [small, near_small])] == [small, large]


def test_the_caller_counts_more_than_the_size() -> None:
    here, there = (compiled("jit_f", "float32[8]", d, f"{d}.py:1") for d in "12")
    moved = compiled("jit_f", "float32[9]", "3", "2.py:1")
    assert [x for x, _ in match_compiles([here, there], [moved])] == [there]


@pytest.mark.parametrize(
    ("old", "new", "names", "shown"),
    [
        ("float32[8]", "float32[16]", (), "argument float32[8] → [16]"),
        ("float32[8], int32[]", "float32[8], int8[]", (), "argument 1 int32[] → int8[]"),
        ("float32[8], int32[2]", "float32[9], int32[3]", ("x", "y"), "x float32[8] → [9], +1 more"),
        ("float32[8]", "float32[8], float32[8]", (), None),
        ("float32[8]", "float32[8]", (), None),
    ],
)
def test_the_first_changed_argument_is_named(
    old: str, new: str, names: tuple[str, ...], shown: str | None
) -> None:
    right = Compile("jit_f", arguments=new, names=names)
    assert first_change(Compile("jit_f", arguments=old), right) == shown


def test_keys_of_another_random_number_generator_are_no_other_shape() -> None:
    """``jax_default_prng_impl`` decides between ``uint32[2]`` and ``uint32[4]``, not the caller."""
    threefry, rbg, longer = (
        Compile("jit_f", arguments=text)
        for text in ("uint32[2], float32[8]", "uint32[4], float32[8]", "uint32[4], float32[9]")
    )
    assert compare_arguments(threefry, rbg) is None
    assert compare_arguments(rbg, threefry) is None
    assert compare_arguments(threefry, longer) is not None
