"""Which earlier compile a miss is compared with."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from jaxcache.cache.explain.answer import choose
from jaxcache.cache.explain.parts import compare
from jaxcache.cache.explain.past import Past
from jaxcache.cache.explain.sides import Cause, Compile, Difference
from jaxcache.core.runs import CompileRow, Run
from jaxcache.core.sketch import PassedArgument, Sketch, SketchedLine


def key(number: int) -> str:
    return f"jit_step-{number:064x}"


def row(number: int, **facts: Any) -> CompileRow:
    place = {"kind": "primal", "function": "step", "file": "main.py", "definition": "d" * 8}
    return CompileRow(**{"module": "jit_step", "key": key(number), **place, **facts})


def run(at: float, *rows: CompileRow, **facts: Any) -> Run:
    blank: dict[str, Any] = {
        "program": "main.py",
        "argv": ("main.py",),
        "hash_seed": "random",
        "versions": {},
        "machine": {},
        "settings": {},
        "xla_flags": (),
        "cache_path": "",
        "sources": {"main.py": "00000000"},
    }
    return Run(at=at, rows=rows, **{**blank, **facts})


def chosen(
    run_now: Run,
    *earlier: Run,
    missed: CompileRow,
    also: Sequence[CompileRow] = (),
    computations: Mapping[int, str] | None = None,
) -> int | None:
    """Return the number of the earlier key that a miss is compared with."""
    hashes = {key(number): {"computation": text} for number, text in (computations or {}).items()}

    def facts(row: CompileRow) -> Compile:
        return Compile(row.module, row.key, components=hashes.get(row.key))

    found = choose([*also, missed], run_now, earlier, facts)
    return int(found[missed].row.key[-64:], 16) if missed in found else None


def test_the_same_arguments_come_before_the_order() -> None:
    old = run(1, row(1, signature="aa"), row(2, signature="bb"))
    new = row(3, signature="bb")
    assert chosen(run(2, new), old, missed=new) == 2


def test_what_this_run_used_is_not_what_it_was() -> None:
    hit, new = row(1, signature="aa", outcome="hit"), row(3, signature="cc")
    assert chosen(run(2, hit, new), run(1, row(1, signature="aa")), missed=new) is None


def test_a_form_that_this_run_has_under_another_key_is_no_earlier_form_of_a_new_shape() -> None:
    other_flags = run(1, row(1, signature="aa"), xla_flags=("--xla_a",))
    hit, new = row(2, signature="aa", outcome="hit"), row(3, signature="cc")
    assert chosen(run(2, hit, new), other_flags, missed=new) is None


def test_a_function_of_that_name_in_another_file_is_another_one() -> None:
    old = run(1, row(1, file="other.py", definition="e" * 8))
    new = row(2)
    assert chosen(run(2, new), old, missed=new) is None


def test_the_run_with_the_same_settings_comes_before_a_newer_one() -> None:
    alike = run(1, row(1, signature="aa"))
    other = run(2, row(2, signature="aa"), settings={"jax_enable_x64": [True, "environment"]})
    new = row(3, signature="aa")
    assert chosen(run(3, new), other, alike, missed=new) == 1


def test_lambdas_of_one_file_do_not_count_as_one_call() -> None:
    """Each is ``jit__lambda``; to pad is advised from three signatures of one of them on."""
    old = run(
        1, row(1, definition="a" * 8, signature="1"), row(2, definition="b" * 8, signature="2")
    )
    new = row(3, definition="a" * 8, signature="3")
    now = run(2, new, row(4, definition="b" * 8, signature="4"))
    found = choose([new], now, [old], lambda r: Compile(r.module, r.key))
    assert found[new].past.signatures == 2


def test_the_same_computation_comes_before_the_order() -> None:
    old = run(1, row(1, signature="aa"), row(2, signature="aa"))
    more, new = row(3, signature="aa"), row(4, signature="aa")
    computations = {1: "a", 2: "b", 3: "new", 4: "a"}
    now = run(2, more, new)
    assert chosen(now, old, missed=new, also=[more], computations=computations) == 1
    assert chosen(now, old, missed=more, also=[new], computations=computations) == 2


def test_an_entry_that_is_gone_takes_no_partner_from_another_lambda() -> None:
    gone, edited = row(1, definition="1" * 8), row(2, definition="2" * 8)
    new = row(3, definition="3" * 8)
    assert chosen(run(2, gone, new), run(1, gone, edited), missed=new, also=[gone]) == 2


def test_another_shape_is_not_why_a_call_misses_whose_shape_hits() -> None:
    larger, hit = run(1, row(1, signature="bb")), row(2, signature="aa", outcome="hit")
    new = row(3, signature="aa")
    assert chosen(run(3, hit, new), run(2, hit), larger, missed=new) is None


def test_the_run_with_fewer_other_flags_comes_before_a_newer_one() -> None:
    plain, other = run(1, row(1)), run(2, row(2), xla_flags=("--xla_b",))
    assert chosen(run(3, row(3), xla_flags=("--xla_a",)), other, plain, missed=row(3)) == 1


# What ``explain`` compares where no run is recorded: two compiles, by what they hold.


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
        run(at, hash_seed="0", sources={"main.py": f"{line}22222222"})
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
