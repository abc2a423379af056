"""Sketches of programs: what they hold of a module's text, and their bounds."""
# ruff: noqa: E501

import base64
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from jaxcache.cache.explain.parts import compare
from jaxcache.cache.explain.past import changed_lines
from jaxcache.cache.explain.sides import Cause, Compile, Difference
from jaxcache.cache.ledger.record import COMPILE, SKETCH, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append, compact
from jaxcache.core.sketch import Sketch, SketchedLine, make_sketch, read_sketch
from jaxcache.store import open_store

#: ``relu(x @ w * 0.5)``, as JAX 0.10.2 prints it; ``relu`` was first traced by line 99.
MODULE = """\
#loc1 = loc("w")
#loc2 = loc("x")
#loc3 = loc("/u/train.py":7:4 to :9)
#loc4 = loc("/u/train.py":99:0 to :9)
#loc5 = loc("/v/lib/python3.11/site-packages/optax/update.py":5:0 to :9)
#loc6 = loc("step"(#loc3))
#loc7 = loc("other"(#loc4))
#loc8 = loc("apply"(#loc5))
#loc9 = loc(callsite(#loc8 at #loc6))
#loc10 = loc("jit(step)/mul"(#loc9))
#loc11 = loc("jit(step)/dot"(#loc6))
#loc12 = loc("jit(step)/relu"(#loc7))
"builtin.module"() <{sym_name = "jit_step"}> ({
  "func.func"() <{arg_attrs = [{tf.aliasing_output = 0 : i32}, {mhlo.sharding = "{replicated}"}], \
function_type = (tensor<4x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>), sym_name = "main"}> ({
  ^bb0(%arg0: tensor<4x4xf32> loc("w"), %arg1: tensor<2x4xf32> loc("x")):
    %0 = "stablehlo.constant"() <{value = dense<5.000000e-01> : tensor<f32>}> : () -> tensor<f32> loc(#loc6)
    %1 = "stablehlo.dot_general"(%arg1, %arg0) <{precision = 1}> : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32> loc(#loc11)
    %2 = "stablehlo.broadcast_in_dim"(%0) <{dims = 0}> : (tensor<f32>) -> tensor<2x4xf32> loc(#loc10)
    %3 = "stablehlo.multiply"(%1, %2) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32> loc(#loc10)
    %4 = "func.call"(%3) <{callee = @relu_1}> : (tensor<2x4xf32>) -> tensor<2x4xf32> loc(#loc11)
    "func.return"(%4) : (tensor<2x4xf32>) -> () loc(#loc6)
  }) : () -> () loc(#loc6)
  "func.func"() <{function_type = (tensor<2x4xf32>) -> tensor<2x4xf32>, sym_name = "relu_1"}> ({
  ^bb0(%arg0: tensor<2x4xf32> loc(unknown)):
    %5 = "stablehlo.maximum"(%arg0, %arg0) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32> loc(#loc12)
    "func.return"(%5) : (tensor<2x4xf32>) -> () loc(#loc12)
  }) : () -> () loc(#loc12)
}) : () -> () loc(#loc6)
"""


def sketch(text: str = MODULE) -> Sketch:
    read = read_sketch(make_sketch(text, {"static": {"n": "2"}, "passed": [["w", "f32[4,4]", 0]]}))
    assert read
    return read


def explain(old: Sketch, new: Sketch) -> list[Difference]:
    """Compare two programs of which only the computations differ."""
    left, right = (
        Compile("jit_step", f"jit_step-{digit * 64}", {"computation": digit}, sketch=side)
        for digit, side in (("a", old), ("b", new))
    )
    return [*compare(left, right)]


def test_operations_belong_to_the_innermost_line_of_the_user() -> None:
    (line,) = sketch().lines
    assert (line.file, line.line, line.function) == ("/u/train.py", 7, "step")
    names = [text.partition("~")[0] for text in line.operations]
    assert names == [
        "dot_general f32[2,4]",
        "broadcast_in_dim(0.5) f32[2,4]",
        "multiply f32[2,4]",
        "call relu f32[2,4]",
    ]


def test_names_are_those_of_the_source() -> None:
    """MLIR escapes what is not ASCII."""
    text = MODULE.replace("/u/train.py", r"/\C3\BC/train.py").replace('"step"', r'"\CE\B8"')
    text = text.replace("@relu_1", r'@"\CE\B8_1"').replace('"relu_1"', r'"\CE\B8_1"')
    (line,) = sketch(text).lines
    assert (line.file, line.function) == ("/ü/train.py", "θ")
    assert [*line.operations][-1].partition("~")[0] == "call θ f32[2,4]"


def test_generated_code_is_not_a_line_of_the_user() -> None:
    """The ``__init__`` of a dataclass is in ``<string>``, between the user's line and a library."""
    path = "/v/lib/python3.11/site-packages/optax/update.py"
    assert {line.file for line in sketch(MODULE.replace(path, "<string>")).lines} == {"/u/train.py"}


def test_a_function_of_jax_counts_where_it_is_called_and_not_where_it_was_traced() -> None:
    assert 99 not in {line.line for line in sketch().lines}
    other = sketch(MODULE.replace("stablehlo.maximum", "stablehlo.minimum"))
    assert other.lines[0].operations != sketch().lines[0].operations


#: As ``MODULE``, where the library that ``step`` calls also calls ``model``.
CALLS_BACK = MODULE.replace(
    "#loc10 =",
    """\
#loc20 = loc("/u/train.py":50:0 to :9)
#loc21 = loc("model"(#loc20))
#loc22 = loc(callsite(#loc21 at #loc9))
#loc10 =""",
).replace("loc(#loc11)\n    %2", "loc(#loc22)\n    %2")


def test_constants_in_a_function_of_jax_do_not_count_by_their_numbers() -> None:
    constant = """%{}= "stablehlo.constant"() <{{value = dense<2.0> : tensor<f32>}}> : () -> \
tensor<f32> loc(#loc12)\n    """
    plain = MODULE.replace("%5 = ", constant.format("7 ") + "%5 = ").replace(
        "%arg0, %arg0", "%arg0, %7"
    )
    shifted = plain.replace("%7 ", "%8 ").replace("%arg0, %7", "%arg0, %8")
    assert plain != shifted
    assert changed_lines(sketch(plain), sketch(shifted)) == []
    assert sketch(plain).layers == sketch(shifted).layers
    (difference,) = explain(sketch(plain), sketch(plain.replace("<2.0>", "<3.0>")))
    assert (difference.cause, difference.evidence) == (Cause.CONSTANT, "layer")


def test_a_line_from_which_a_library_calls_back_is_marked() -> None:
    assert not any(line.is_callback_site for line in sketch().lines)
    marks = {line.function: line.is_callback_site for line in sketch(CALLS_BACK).lines}
    assert marks == {"model": False, "step": True}


def test_a_copy_of_a_script_is_compared_line_by_line() -> None:
    copied = MODULE.replace("/u/train.py", "/u/copy.py")
    assert changed_lines(sketch(), sketch(copied)) == []
    (difference,) = explain(sketch(), sketch(copied.replace("multiply", "add")))
    assert difference.meaning == "the operations of line 7 of copy.py differ"
    assert (difference.left, difference.right) == ("multiply", "add")
    assert difference.brief == "multiply → add at copy.py:7 in `step`"


def of_lines(lines: dict[int, dict[str, int]], function: str = "f") -> Sketch:
    made = tuple(SketchedLine("/u/a.py", n, function, by) for n, by in lines.items())
    return replace(sketch(), lines=made, layers={})


def test_a_line_that_computes_comes_before_lines_that_move_data() -> None:
    """The gradient of another activation stores other values in the loop of another line."""
    before = {
        7: {"maximum f32[4]": 1, "broadcast_in_dim(0) f32[4]": 1},
        10: {"dynamic_update_slice f32[3,4]": 4, "broadcast_in_dim f32[3,4]": 4},
    }
    after = {7: {"logistic f32[4]": 1}, 10: {"concatenate f32[3,4]": 9}}
    (difference,) = explain(of_lines(before), of_lines(after))
    assert [str(place) for place in difference.where] == ["a.py:7 in `f`"]


def test_an_operation_that_was_added_or_removed_is_said_to_be() -> None:
    """A renamed function with the same operations has none of either."""
    none, tanh = of_lines({7: {}}), of_lines({7: {"tanh": 1}})
    (difference,) = explain(tanh, none)
    assert difference.brief == "tanh was removed at a.py:7 in `f`"
    assert (difference.left, difference.right) == ("tanh", None)
    (difference,) = explain(none, tanh)
    assert difference.brief == "tanh was added at a.py:7 in `f`"
    assert (difference.left, difference.right) == (None, "tanh")
    (difference,) = explain(tanh, of_lines({7: {"tanh": 1}}, "g"))
    assert (difference.left, difference.brief) == (None, "")


@pytest.mark.parametrize(
    ("old", "new"), [("[1, 2, 3]", "[1, 2, 4]"), ("0.5", "0.25"), ("2, [1, 3]", "2, [1, 4]")]
)
def test_an_array_is_one_constant(old: str, new: str) -> None:
    """Its elements are no constants of their own."""
    sides = [of_lines({7: {f"add({text}) f32[3]": 1}}) for text in (old, new)]
    (difference,) = explain(*sides)
    shown = [text.rpartition("2, ")[2] if text.startswith("2") else text for text in (old, new)]
    assert [difference.left, difference.right] == shown


def test_a_function_that_was_traced_earlier_is_no_callback() -> None:
    nested = CALLS_BACK.replace('"model"(#loc20)', '"step"(#loc20)')
    assert not any(line.is_callback_site for line in sketch(nested).lines)


@pytest.mark.parametrize("seeds", [("0", "0"), ("0", "1"), ("random", "random")])
def test_other_operands_are_no_other_order(seeds: tuple[str, str]) -> None:
    """``a - b`` is another program than ``b - a``, whatever the hash seed is."""
    texts = MODULE, MODULE.replace("(%arg1, %arg0) <", "(%arg0, %arg1) <")
    old, new = (
        read_sketch(make_sketch(text, {"hash_seed": seed}))
        for text, seed in zip(texts, seeds, strict=True)
    )
    assert old
    assert new
    (difference,) = explain(old, new)
    assert (difference.cause, difference.evidence) == (Cause.CODE, "observed")
    assert [str(place) for place in difference.where] == ["train.py:7 in `step`"]


def test_arguments_tell_names_types_shardings_and_donations() -> None:
    w, x = sketch().arguments
    assert (w.name, w.type, w.donated, w.sharding) == ("w", "f32[4,4]", True, "")
    assert (x.name, x.type, x.donated, x.sharding) == ("x", "f32[2,4]", False, '"{replicated}"')


def test_a_large_constant_is_left_out() -> None:
    large = MODULE.replace("dense<5.000000e-01>", f"dense<[{', '.join(['1.0'] * 99)}]>")
    assert "broadcast_in_dim(…) f32[2,4]" in str(sketch(large).lines)


@pytest.mark.parametrize(
    "blob",
    [
        None,
        7,
        "",
        "no base64!",
        "eA==",
        base64.b64encode(zlib.compress(b"[]")).decode(),
        base64.b64encode(zlib.compress(b'{"operations": 7}')).decode(),
        base64.b64encode(zlib.compress(b"[" * 100_000)).decode(),
        base64.b64encode(zlib.compress(b" " * (32 << 20))).decode(),
        "A" * (1 << 20),
    ],
)
def test_what_is_no_sketch_is_none(blob: object) -> None:
    assert read_sketch(blob) is None


def test_a_long_program_keeps_digests_within_the_bound() -> None:
    head, _, tail = MODULE.partition("    %1 =")
    lines = [
        f'    %v{n} = "stablehlo.add"(%0, %0) <{{a = {n * 7919 % 65536}}}> : (t) -> tensor<{n}xf32> '
        f"loc(#loc{n + 100})"
        for n in range(30_000)
    ]
    places = [f'#loc{n + 100} = loc("/u/train.py":{n}:1)' for n in range(30_000)]
    blob = make_sketch("\n".join([*places, head, *lines, "    %1 =" + tail]))
    assert blob is None or len(blob) <= 64 << 10


def test_a_compaction_keeps_the_newest_sketches_of_each_module(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    blob = make_sketch(MODULE)
    events = []
    for number in range(80):
        key = f"jit_f-{number:064x}"
        events += [
            Event(key, COMPILE, number + 1),
            Event(key, SKETCH, number + 1, {"sketch": blob}),
        ]
    append(store, events)
    append(store, [Event("jit_g-" + "0" * 64, SKETCH, 1, {"sketch": blob})])
    compact(store)
    ledger = Ledger.load(store)
    sketched = [key for key in ledger if (record := ledger.record(key)) and record.sketch]
    assert len(ledger) == 81
    assert sorted(sketched) == [*(f"jit_f-{n:064x}" for n in range(16, 80)), "jit_g-" + "0" * 64]
