"""Which earlier compile a miss is compared with, and what ``explain`` finds between the two."""
# ruff: noqa: E501

import base64
import hashlib
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import GiveAway

from jaxcache.cache.explain.answer import Answers, choose, is_unstable, proved_by_undoing
from jaxcache.cache.explain.parts import compare
from jaxcache.cache.explain.past import Edits, Past, changed_lines, find_edits, show_time
from jaxcache.cache.explain.sides import (
    COMPONENTS,
    CachedFacts,
    Cause,
    Compile,
    Difference,
    WriteRule,
    is_helper,
)
from jaxcache.cache.ledger.record import COMPILE, SKETCH, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append, compact
from jaxcache.core.compile_event import UndonePart
from jaxcache.core.layers import ELIDED, LAYERS
from jaxcache.core.names import XLA_CACHES
from jaxcache.core.runs import CompileRow, Run
from jaxcache.core.sketch import (
    PassedArgument,
    Sketch,
    SketchedArgument,
    SketchedLine,
    make_sketch,
    read_sketch,
)
from jaxcache.entry.contents import Device
from jaxcache.store import open_store
from tools.explain_changes.changes import CODE, Change, Edit, apply
from tools.explain_changes.judge import Case, Plain, Verdict, judge, places_of
from tools.explain_changes.lab import environment_of

Facts = dict[str, Any]


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


def chosen(now: Run, *earlier: Run, computations: Mapping[int, str] | None = None) -> int | None:
    """Return the number of the earlier key that the last row of a run is compared with."""
    hashes = {key(number): {"computation": text} for number, text in (computations or {}).items()}

    def facts(row: CompileRow) -> Compile:
        return Compile(row.module, row.key, components=hashes.get(row.key))

    missed = [r for r in now.rows if r.outcome != "hit"]
    found = choose(missed, now, earlier, facts).get(missed[-1])
    return int(found.row.key[-64:], 16) if found else None


AA, BB, CC = ({"signature": text} for text in ("aa", "bb", "cc"))
HIT = {"outcome": "hit"}


def test_which_earlier_compile_is_chosen() -> None:
    # The same arguments come before the order.
    assert chosen(run(2, row(3, **BB)), run(1, row(1, **AA), row(2, **BB))) == 2
    # What this run used is not what it was.
    assert chosen(run(2, row(1, **AA, **HIT), row(3, **CC)), run(1, row(1, **AA))) is None
    # A form that this run has under another key is no earlier form of a new shape.
    other_flags = run(1, row(1, **AA), xla_flags=("--xla_a",))
    assert chosen(run(2, row(2, **AA, **HIT), row(3, **CC)), other_flags) is None
    # A function of that name in another file is another one.
    assert chosen(run(2, row(2)), run(1, row(1, file="other.py", definition="e" * 8))) is None
    # A file that moved is no longer where it was.
    moved = run(1, row(1, file="/old/main.py"))
    edited = run(1, row(1, file="/old/main.py", definition="e" * 8))
    now, both = run(2, row(2)), run(2, row(2), sources={"main.py": "1", "/old/main.py": "2"})
    assert (chosen(now, moved), chosen(both, moved)) == (1, 1)
    assert (chosen(now, edited), chosen(both, edited)) == (1, None)
    # An operation of JAX's own has no line; a gradient is no other form of its function.
    eager = run(1, row(1, kind="eager"))
    assert chosen(run(2, row(2, kind="eager")), eager) == 1
    assert chosen(run(2, row(2, kind="eager", module="jit_b")), eager) is None
    assert chosen(run(2, row(2, kind="transpose")), run(1, row(1))) is None
    # An entry that is gone takes no partner from another lambda.
    gone, edited = row(1, definition="1" * 8), row(2, definition="2" * 8)
    assert chosen(run(2, gone, row(3, definition="3" * 8)), run(1, gone, edited)) == 2
    # Another shape is not why a call misses whose shape hits.
    hit = row(2, **AA, **HIT)
    assert chosen(run(3, hit, row(3, **AA)), run(2, hit), run(1, row(1, **BB))) is None


def test_the_run_that_differs_less_comes_before_a_newer_one() -> None:
    other = run(2, row(2, **AA), settings={"jax_enable_x64": [True, "environment"]})
    assert chosen(run(3, row(3, **AA)), other, run(1, row(1, **AA))) == 1
    other = run(2, row(2), xla_flags=("--xla_b",))
    assert chosen(run(3, row(3), xla_flags=("--xla_a",)), other, run(1, row(1))) == 1


CALL = {"call_file": "main.py", "call": "c"}


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        ({"process": 1}, {"module": "jit_other"}),
        ({"module": "jit_other"}, {"definition": "e" * 8}),
        ({"definition": "e" * 8}, {"call": "d"}),
        ({"call": "d"}, {"signature": "bb"}),
        ({"signature": "bb"}, {"file": "/old/main.py"}),
    ],
)
def test_what_makes_two_compiles_of_a_run_less_alike(nearer: Facts, farther: Facts) -> None:
    alike = AA | CALL
    old = run(1, row(1, **(alike | farther)), row(2, **(alike | nearer)))
    assert chosen(run(2, row(3, **alike)), old) == 2
    old = run(1, row(1, **(alike | nearer)), row(2, **(alike | farther)))
    assert chosen(run(2, row(3, **alike)), old) == 1


def test_a_function_that_has_only_another_name_is_found_by_its_program() -> None:
    old = run(1, row(1, module="jit_other", definition="e" * 8))
    now = run(2, row(2))

    def pairs(layers: dict[str, str]) -> int:
        both = {key(1): Sketch(layers=layers), key(2): Sketch(layers={"": "b", "names": "same"})}
        known = {k: Compile("jit_step", k, sketch=s) for k, s in both.items()}
        return len(choose(now.rows, now, [old], lambda r: known[r.key]))

    assert pairs({"": "a", "names": "same"}) == 1
    assert pairs({"": "a", "names": "a"}) == 0


def test_a_place_with_another_key_in_each_of_three_runs_is_unstable() -> None:
    olds = [run(n, row(n)) for n in (2, 1)]

    def unstable(new: Run, *history: Run) -> bool:
        return is_unstable(new.rows[0], new, history)

    assert unstable(run(3, row(3)), *olds)
    assert not unstable(run(3, row(3)), olds[0])
    assert not unstable(run(3, row(3)), olds[0], run(1, row(2)))
    assert not unstable(run(3, row(3)), olds[0], run(1, row(1, **HIT)))
    assert not unstable(run(3, row(3)), olds[0], run(1, row(1), row(9)))
    assert not unstable(run(3, row(3), row(9)), *olds)
    assert not unstable(run(3, row(3), sources={}), *(old._replace(sources={}) for old in olds))
    assert not unstable(run(3, row(3)), olds[0], run(1, row(1), argv=("main.py", "--other")))


def test_the_same_computation_comes_before_the_order() -> None:
    old, first, second = run(1, row(1, **AA), row(2, **AA)), row(3, **AA), row(4, **AA)
    computations = {1: "a", 2: "b", 3: "new", 4: "a"}
    assert chosen(run(2, first, second), old, computations=computations) == 1
    assert chosen(run(2, second, first), old, computations=computations) == 2


def test_lambdas_of_one_file_do_not_count_as_one_call() -> None:
    """Each is ``jit__lambda``; to pad is advised from three signatures of one of them on."""
    one, other = ({"definition": letter * 8} for letter in "ab")
    old = run(1, row(1, **one, signature="1"), row(2, **other, signature="2"))
    new = row(3, **one, signature="3")
    now = run(2, new, row(4, **other, signature="4"))
    found = choose([new], now, [old], lambda r: Compile(r.module, r.key))
    assert found[new].past.signatures == 2


# What is answered for one compile that missed, by what the runs and the cache know.

OWN = {name: hashlib.sha256(b"").hexdigest() for name in COMPONENTS}
OTHER_FLAGS = OWN | {"XLA flags": "1" * 64}
LEDGER = {"components": OTHER_FLAGS, "xla_flags": "--a", "script": "/u/b.py"}
CALLED = {"call_file": "/u/main.py", "call_line": 5}
TOO_QUICK = {"outcome": "skipped", "reason": "compile-time"}
THEN = show_time(60)


@pytest.mark.parametrize(
    ("rows", "earlier", "recorded", "said", "fix"),
    [
        ([row(1)], [], {}, "first time in main.py", None),
        ([row(1)], [], LEDGER, "first time in main.py (b.py has one of that name)", None),
        ([row(1)], [], {"hit": True}, "not known: no record of the earlier program", None),
        (
            *([row(1)], [row(2, file="b.py", definition="e")], {}),
            *(f"new since {THEN}: the program did not compile it then", None),
        ),
        (
            *([row(1, **CALLED), row(2, **BB, **HIT)], [row(2, **BB)], {}),
            *(f"new since {THEN}: main.py:5 uses float32[8]; float32[16] hits", None),
        ),
        (
            *([row(1, **CALLED), row(3, **HIT)], [row(3)], {}),
            f"new since {THEN}: main.py:5 compiles a program that it did not compile then; "
            "its other programs hit: 1",
            None,
        ),
        (
            *([row(1)], [row(1, written=60.0)], {}),
            *(f"was written at {THEN} and is gone: removed, or evicted by JAX's limit", None),
        ),
        (
            *([row(1)], [row(1, **TOO_QUICK)], {}),
            f"the same key, but at {THEN} it was compiled too fast to be written",
            "export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0",
        ),
        ([row(1)], [row(2)], LEDGER, "the XLA flag --a, from XLA_FLAGS", "export XLA_FLAGS=--a"),
        ([row(1)], [row(2)], LEDGER | {"gone": True}, "the XLA flag --a, from XLA_FLAGS", None),
    ],
)
def test_a_miss_is_answered_by_what_is_known(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[CompileRow],
    earlier: list[CompileRow],
    recorded: Facts,
    said: str,
    fix: str | None,
) -> None:
    """A cure promises a hit, so there is none where the entry is gone."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    store = open_store(str(tmp_path))
    if recorded:
        append(store, [Event(key(2), COMPILE, 1, recorded)])
        if not recorded.get("gone"):
            (tmp_path / f"{key(2)}-cache").write_bytes(b"")
    compiles = [
        Compile("jit_step", key(n), OWN, passed=passed(f"f32[{size}]", ()), xla_flags=())
        for n, size in ((1, 8), (2, 16), (3, 8))
        if key(n) in {r.key for r in rows}
    ]
    history = [run(60, *earlier)] if earlier else []
    answers = Answers(CachedFacts(store), compiles, run(120, *rows), history)
    (comparison,) = answers.explain(compiles[:1])
    (difference,) = comparison.differences
    assert (difference.meaning, difference.fix) == (said, fix)


def test_a_function_of_a_cell_is_compared_with_what_an_earlier_cell_defined() -> None:
    cells = [Compile("jit_step", key(n), source=f"<ipython-input-{n}-ab>:1") for n in (1, 2, 3)]
    elsewhere = replace(cells[0], key=key(4), source="main.py:1")
    answers = Answers(None, [*cells[:2], elsewhere, cells[2]], None, [])
    told = [answers.explain([c])[0].left for c in (*cells, elsewhere)]
    assert told == [None, cells[0], cells[1], None]


def test_what_was_undone_counts_where_no_other_program_made_that_key() -> None:
    part = UndonePart("flag", "XLA_FLAGS", "--a", "", "")
    new = Compile("jit_step", key(1), undone=(part,), undone_key=key(2))
    (comparison,) = Answers(None, [new], run(2, row(1)), []).explain([new])
    assert [d.fix for d in comparison.differences] == ["unset XLA_FLAGS"]
    helper = Compile("jit_sin", key(3), is_helper=True)
    uncacheable = replace(new, outcome="uncacheable")
    told = Answers(None, [], None, []).explain([helper, uncacheable])
    assert [(c.right, c.left) for c in told] == [(uncacheable, None), (helper, None)]


# What differs between two compiles, by what they hold.


def test_a_callback_that_is_not_cached_is_the_cause_unless_the_version_is(corpus: Path) -> None:
    """Of an entry of plain JAX, flags name its version; the other side never has an entry.

    It holds the names of the arguments, so that no ledger and no saved run is needed.
    """
    cache = CachedFacts(open_store(str(corpus / "0.12.0.1-cpu-zstd")))
    left = cache.complete(*cache.find_newest("jit_loss"))
    assert [argument.name for argument in left.parameters] == ["w", "x"]
    rule = WriteRule.HOST_CALLBACKS
    right = Compile(left.module, outcome="uncacheable", rule=rule, jaxlib_version="0.10.2")
    (difference,) = compare(left, right)
    assert difference.cause is Cause.JAXLIB_VERSION
    assert (difference.left, difference.right) == ("0.12.0.1", "0.10.2")
    assert compare(right, left)[0].right == "0.12.0.1"
    for earlier, later in ((None, right), (left, replace(right, jaxlib_version="0.12.0.1"))):
        (difference,) = compare(earlier, later)
        assert difference.cause is Cause.CALLBACK


FLAGS, OPTIONS, DEVICES = "XLA flags", "compile_options", "accelerator_config"
A, B = (hashlib.sha256(text.encode()).hexdigest() for text in "ab")
HASHES = dict.fromkeys((FLAGS, OPTIONS, DEVICES), (A, B))
HASHES |= {
    part: (hashlib.sha256(old).hexdigest(), hashlib.sha256(new).hexdigest())
    for part, old, new in (("compression", b"zstandard", b"zlib"), ("custom_hook", b"", b"x"))
}
HIDDEN = (f"sha256 {A[:12]}", f"sha256 {B[:12]}")
FOUR = "--xla_force_host_platform_device_count=4"
OLD_JAX = {"jax_version": "0.10.2"}
AT_A, PORTABLE = {"cache_path": "/a"}, {"cache_path": ""}
NONE: Facts = {"xla_flags": ()}
WITH_B = {"xla_flags": ("--b",)}
#: Parts of the key that differ, facts of both sides, XLA_FLAGS, and what is named: cause, both
#: values, the cure.
PARTS: list[tuple[tuple[str, ...], Facts, Facts, str, list[tuple[str | None, ...]]]] = [
    (
        *((FLAGS,), {"xla_flags": ("--a",)}, {"xla_flags": ("--a", "--b")}, "--a --b"),
        [("flag", "without", "--b", "export XLA_FLAGS=--a")],
    ),
    ((FLAGS,), WITH_B, NONE, "--c", [("flag", "--b", "without", "export XLA_FLAGS='--c --b'")]),
    ((FLAGS,), NONE, WITH_B, "--c", [("flag", "without", "--b", None)]),
    ((FLAGS,), {}, {}, "", [("flag", *HIDDEN, None)]),
    (
        *(("compression",), {}, {}, ""),
        [("codec", "zstandard", "zlib", "python -m pip install zstandard")],
    ),
    (("custom_hook",), {}, {}, "", [("hook", "no hook", "sha256 2d711642b726", None)]),
    (
        *((DEVICES,), {"device_count": 1}, {"device_count": 4}, ""),
        [("device", "device_count=1", "device_count=4", None)],
    ),
    (
        *((OPTIONS,), OLD_JAX | AT_A, OLD_JAX | {"cache_path": "/b"}, ""),
        [("path", "/a", "/b", "ln -s /b /a && export JAX_COMPILATION_CACHE_DIR=/a")],
    ),
    ((OPTIONS,), AT_A, PORTABLE, "", [("path", "/a", "none (--portable)", None)]),
    ((OPTIONS,), PORTABLE, AT_A, "", [("path", "none (--portable)", "/a", None)]),
    ((OPTIONS,), AT_A, {}, "", [("unknown", *HIDDEN, None)]),
    (
        *((FLAGS, "compression"), NONE, WITH_B, "--b"),
        [("flag", "without", "--b", None), ("codec", "zstandard", "zlib", None)],
    ),
    (
        *((FLAGS,), OLD_JAX, {"jax_version": "0.10.3"}, ""),
        [("jax-version", "0.10.2", "0.10.3", None)],
    ),
    (
        *((FLAGS, DEVICES), NONE, {"xla_flags": (FOUR,), "device_count": 4}, FOUR),
        [("flag", "without", FOUR, None)],
    ),
]


@pytest.mark.parametrize(("parts", "old", "new", "flags", "named"), PARTS)
def test_the_parts_of_a_key_are_named(
    monkeypatch: pytest.MonkeyPatch,
    parts: tuple[str, ...],
    old: Facts,
    new: Facts,
    flags: str,
    named: list[tuple[str | None, ...]],
) -> None:
    """One alone is proved to be the cause, if nothing follows from it; of two each is a part."""
    monkeypatch.setenv("XLA_FLAGS", flags)
    blank = dict.fromkeys(COMPONENTS, "0" * 64)
    left, right = (
        Compile("jit_f", "ab"[n], blank | {part: HASHES[part][n] for part in parts}, **facts)
        for n, facts in enumerate((old, new))
    )
    found = compare(left, right)
    assert [(str(d.cause), d.left, d.right, d.fix) for d in found] == named
    evidence = "in-part" if len(found) > 1 else "proved" if len(parts) == 1 else "observed"
    if named[0][0] != "jax-version":
        assert {str(d.evidence) for d in found} == {evidence}


@pytest.mark.parametrize(
    ("before", "now", "variable", "flags", "fix"),
    [
        (4, 1, None, "--a", f"export XLA_FLAGS='--a {FOUR}'"),
        (1, 4, None, f"{FOUR} --a", "export XLA_FLAGS=--a"),
        (1, 4, None, FOUR, "unset XLA_FLAGS"),
        (1, 4, None, "--a", None),  # code has set it
        (2, 4, "4", "", "export JAX_NUM_CPU_DEVICES=2"),
        (1, 4, "4", "", "unset JAX_NUM_CPU_DEVICES"),
        (2, 4, "3", "", None),
    ],
)
def test_the_number_of_devices_is_restored_where_it_was_set(
    monkeypatch: pytest.MonkeyPatch,
    before: int,
    now: int,
    variable: str | None,
    flags: str,
    fix: str | None,
) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    if variable:
        monkeypatch.setenv("JAX_NUM_CPU_DEVICES", variable)
    left, right = (
        Compile("jit_f", side, {DEVICES: side}, device_count=count)
        for side, count in (("a", before), ("b", now))
    )
    past = Past(*(run(n, machine={"device_count": n}) for n in (before, now)))
    (difference,) = compare(left, right, past=past)
    sides = f"device_count={before}", f"device_count={now}"
    assert (difference.left, difference.right, difference.fix) == (*sides, fix)


@pytest.mark.parametrize(
    ("part", "fix"),
    [
        (UndonePart("codec", "", "zlib", "zstandard"), "python -m pip install zstandard"),
        (UndonePart("codec", "", "zstandard", "zlib"), "python -m pip uninstall zstandard"),
        (UndonePart("path", "", "/b", ""), f"export {XLA_CACHES.upper()}=none"),
        (UndonePart("path", "", "", "/a"), "leave out --portable"),
        (UndonePart("path", "", "/b", "/a"), "ln -s /b /a && export JAX_COMPILATION_CACHE_DIR=/a"),
        (UndonePart("flag", "XLA_FLAGS", "--a", "", ""), "unset XLA_FLAGS"),
        (UndonePart("flag", "argv", "--a", ""), "leave --a out of the arguments"),
        (UndonePart("option", "compiler_options", "a=1", ""), "leave a=1 out of compiler_options"),
        (UndonePart("setting", "JAX_A", "1", "0", "0"), "export JAX_A=0"),
        (UndonePart("devices", "", "4", "2"), "let the program have 2 of them"),
    ],
)
def test_a_part_of_a_key_that_was_undone_is_told_with_what_undoes_it(
    part: UndonePart, fix: str
) -> None:
    """A cure promises a hit: none where several parts bring it together."""
    (difference,) = proved_by_undoing(Compile("jit_f", "a", undone=(part,)))
    assert (difference.fix, difference.evidence) == (fix, "proved")
    both = [*proved_by_undoing(Compile("jit_f", "a", undone=(part, part)))]
    assert [(d.fix, d.evidence) for d in both] == [(None, "in-part")] * 2


def test_where_nothing_differs_the_record_decides_what_is_said() -> None:
    left, right = (Compile("jit_f", side, sketch=Sketch()) for side in "ab")
    (difference,) = compare(left, right)
    assert difference.meaning.startswith("not known: the keys differ")


@pytest.mark.parametrize(
    ("old", "new", "causes", "first"),
    [
        (
            *("0.12.0.1-cpu-zstd", "0.12.0.1-cuda13-h200-zstd"),
            *(["device", "flag", "argument-shape"],),
            ("cpu rocketlake", "gpu NVIDIA H200 141GB HBM3e"),
        ),
        ("0.4.38-cpu-zlib", "0.4.38-cpu-zstd", ["path", "codec"], None),
    ],
)
def test_what_entries_of_plain_jax_show(
    corpus: Path, old: str, new: str, causes: list[str], first: tuple[str, str] | None
) -> None:
    caches = [CachedFacts(open_store(str(corpus / name))) for name in (old, new)]
    left, right = (cache.complete(cache.find_newest("jit_mlp")[0]) for cache in caches)
    found = compare(left, right)
    assert [str(d.cause) for d in found] == causes
    assert first in (None, (found[0].left, found[0].right))
    assert left.contents
    nameless = replace(left, contents=replace(left.contents, device=Device("tpu")))
    assert Cause.DEVICE not in {d.cause for d in compare(nameless, right)}


@pytest.mark.parametrize(
    ("old", "new", "edited"),
    [
        ({"main.py": "abc"}, {"main.py": "abc"}, None),
        ({"main.py": "abc"}, {"main.py": "axc"}, {2}),
        ({"main.py": "abc"}, {"main.py": "abxyc"}, {3, 4}),
        ({"main.py": "abc"}, {"main.py": "ac"}, {2}),
        ({"/old/main.py": "abc"}, {"main.py": "xbc"}, {1}),
        ({"/old/main.py": "abc", "/other/main.py": "abc"}, {"main.py": "xbc"}, None),
        ({}, {"main.py": "abc"}, None),
    ],
)
def test_the_edited_lines_of_a_file(
    old: dict[str, str], new: dict[str, str], edited: set[int] | None
) -> None:
    """Each letter stands for the digest of a line."""
    sides = [{f: "".join(c * 8 for c in text) for f, text in side.items()} for side in (old, new)]
    assert find_edits(*sides).lines == ({} if edited is None else {"main.py": edited})


def test_the_edits_nearest_to_a_line_and_those_of_its_function() -> None:
    edits = Edits({"main.py": frozenset({2, 4, 7, 12, 30})})
    line = SketchedLine("/u/main.py", 9, "f", {})
    assert [place.line for place in edits.nearest(line)] == [4, 7, 12]
    elsewhere = replace(line, file="/u/b.py")
    assert [str(place) for place in edits.nearest(elsewhere)] == [f"main.py:{n}" for n in (2, 4, 7)]
    function = Sketch(lines=(line, replace(line, line=10), replace(line, line=50, function="g")))
    touched = {
        n
        for n in range(60)
        if Edits({"main.py": frozenset({n})}).touch_function(function, line)
        or edits.touch_function(function, elsewhere)
    }
    assert touched == {6, 7, 8, 9, 10, 11}


ADD, TYPES, MOVE = {"add f32[4]": 1}, {"add f32[8]": 1}, {"reshape f32[4]": 1}
TANH = {"tanh f32[4]": 1}


@pytest.mark.parametrize(
    ("old", "new", "edited"),
    [
        ({7: ADD, 9: ADD}, {7: TANH | MOVE, 9: TANH}, {9}),
        ({7: ADD, 9: ADD}, {7: TANH, 9: TANH | MOVE}, {40}),
        ({7: ADD, 9: ADD}, {7: TYPES, 9: TANH}, set()),
        ({7: ADD, 9: ADD}, {7: ADD | MOVE, 9: TANH}, set()),
        ({7: MOVE | TANH, 8: ADD}, {8: ADD, 9: TANH}, set()),
    ],
)
def test_the_line_that_changed_most_comes_first(
    old: dict[int, dict[str, int]], new: dict[int, dict[str, int]], edited: set[int]
) -> None:
    """An edited line comes before all, and a line that went after those that are there."""
    edits = Edits({"a.py": frozenset(edited)})
    assert [c.line.line for c in changed_lines(of_lines(old), of_lines(new), edits)] == [9, 7]


def test_a_literal_is_found_in_the_only_edited_line_that_has_it(tmp_path: Path) -> None:
    main, other = str(tmp_path / "main.py"), str(tmp_path / "other.py")
    for file in (main, other):
        Path(file).write_text("A = 1\nRATE = 0.50\nB = 1\n")
    edits = find_edits({main: "a" * 24, other: "a" * 24}, {main: "a" * 8 + "b" * 16})
    assert edits.find_literal("0.5", [main, other]) == (main, 2)
    assert edits.find_literal("1", [main, other]) == (main, 3)
    assert edits.find_literal("0.5", [other]) is None


TOO_FAST, TOO_SMALL = WriteRule.COMPILE_TIME, WriteRule.SIZE


@pytest.mark.parametrize(
    ("old", "new", "said", "fix"),
    [
        (
            *({"outcome": "skipped", "rule": TOO_FAST, "reason": "0.5 s"}, {"outcome": "skipped"}),
            "it was compiled too fast to be written: 0.5 s",
            "export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0",
        ),
        (
            {"outcome": "skipped", "rule": TOO_SMALL},
            {"outcome": "skipped", "rule": TOO_SMALL, "reason": "9 B"},
            "it was too small to be written: 9 B",
            "export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1",
        ),
        (
            *({"outcome": "skipped", "reason": "so"}, {"outcome": "skipped"}),
            *("it was not written: so", None),
        ),
        ({}, {"outcome": "error"}, "its entry is there now", None),
    ],
)
def test_the_same_key_depends_on_its_entry(old: Facts, new: Facts, said: str, fix: str) -> None:
    (difference,) = compare(Compile("jit_f", "a", **old), Compile("jit_f", "a", **new))
    detail = difference.brief.partition(": ")[1:]
    assert said in f"{difference.meaning}{''.join(detail)}"
    assert difference.fix == fix
    assert compare(Compile("jit_f", "a", **old), Compile("jit_f", "a", outcome="hit")) == ()


def test_what_a_cache_knows_of_a_key(tmp_path: Path) -> None:
    """Of one that is gone the ledger knows it; what the run knows itself counts more."""
    facts = LEDGER | {"xla_flags": "--b --a", "payload_sha256": "0" * 64, "device_count": 2}
    facts |= {"jax_version": "0.10.2", "jaxlib_version": "0.10.1"}
    store = open_store(str(tmp_path))
    append(store, [Event(key(1), COMPILE, 1, facts), Event(key(2), COMPILE, 1, {})])
    for age, number in enumerate((3, 4, 5)):
        (tmp_path / f"{key(number)}-cache").write_bytes(b"damaged")
        os.utime(tmp_path / f"{key(number)}-cache", (1000 - age, 1000 - age))
    cache = CachedFacts(store)
    known = [(cache.has(key(n)), cache.knows(key(n))) for n in (1, 2, 3, 6)]
    assert known == [(False, True), (False, False), (True, True), (False, False)]
    assert cache.keys_of("jit_step") == [key(3), key(4), key(5)]
    assert cache.keys_of("jit_other") == []
    assert cache.complete(Compile("jit_step", key(3))).is_damaged
    assert not cache.complete(Compile("jit_step", key(3)), max_bytes=1).is_damaged
    found = cache.complete(Compile("jit_step", key(1)))
    record = found.record
    told = Compile("jit_step", key(1), OTHER_FLAGS, xla_flags=("--a", "--b"), record=record)
    told = replace(
        told, script="/u/b.py", jax_version="0.10.2", jaxlib_version="0.10.1", device_count=2
    )
    assert record and found == told
    own = replace(told, xla_flags=(), script="c.py", jax_version="0.11.0", device_count=4)
    assert cache.complete(own) == own
    assert cache.complete(Compile("jit_step")) == Compile("jit_step")


def test_helpers_are_operations_of_jax_itself() -> None:
    inside = "/v/site-packages/jax/_src/numpy/ufuncs.py"
    places = [("f", "/u/main.py"), (None, "/u/main.py"), ("f", None), ("f", inside)]
    assert [is_helper(*place) for place in places] == [False, True, True, True]


def test_an_entry_of_another_user_cannot_be_read_and_is_not_damaged(
    corpus: Path, unprivileged: Path, give_away: GiveAway
) -> None:
    (file,) = (corpus / "0.12.0.1-cpu-zstd").glob("jit_mlp-*-cache")
    entry = Path(shutil.copy(file, unprivileged))
    entry.chmod(0)
    give_away(entry)
    module, key = "jit_mlp", entry.name.removesuffix("-cache")
    left = CachedFacts(open_store(str(unprivileged))).complete(Compile(module, key))
    (difference,) = compare(left, Compile(module, key, outcome="error", rule="read-error"))
    assert difference.meaning == "the same key: the entry cannot be read: permission denied"
    assert difference.fix == f"make it readable for the user of the program: {entry.name}"


def passed(text: str, names: tuple[str, ...]) -> tuple[PassedArgument, ...]:
    types = text.split(", ")
    return tuple(map(PassedArgument, names or [""] * len(types), types))


NO_PAST = Past()


def differ(
    old: Sketch, new: Sketch, past: Past = NO_PAST, devices: str = "1"
) -> tuple[Difference, ...]:
    """Compare two programs of which only the computations differ, and perhaps the devices."""
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


def call(*arguments: tuple[str, str], weak: bool = False, **facts: Any) -> Facts:
    """A call with these arguments, as its sketch has them."""
    return {"passed": tuple(PassedArgument(*a, weak) for a in arguments), **facts}


X64, PRNG = "jax_enable_x64", "jax_default_prng_impl"


def set_to(argument: tuple[str, str], setting: str, value: object) -> Facts:
    return call(argument, config={setting: value})


def used(name: str, type_: str, sharding: str = "") -> Facts:
    return {"arguments": (SketchedArgument(name, type_, sharding),)}


X, Y, F64 = ("x", "f32[8]"), ("y", "i4[]"), ("x", "f64[8]")
CALLS = [
    (call(X, Y), call(Y), "other arguments: x → none"),
    (call(X, Y), call(Y, X), "order of arguments: x and y → y and x"),
    (call(X), call(("x", "bf16[2]")), "shape and dtype of argument x: float32[8] → bfloat16[2]"),
    (call(X), call(X, weak=True), "weak type of argument x: float32[8] → float32[8] (weak)"),
    (call(static={"n": "2"}), call(static={"n": "3"}), "static n: n=2 → n=3"),
    (set_to(X, X64, False), set_to(F64, X64, True), f"{X64}: {X64}=False → {X64}=True"),
    (set_to(X, PRNG, "a"), set_to(F64, PRNG, "b"), "dtype of argument x: float32[8] → float64[8]"),
    (used(*X), used(*X, "{2}"), "sharding of x: none → {2}"),
]


@pytest.mark.parametrize(("old", "new", "told"), CALLS)
def test_what_differs_between_two_calls(old: Facts, new: Facts, told: str) -> None:
    (difference,) = differ(*(Sketch(results=("f64[8]",), **facts) for facts in (old, new)))
    assert f"{difference.title}: {difference.left} → {difference.right}" == told
    assert difference.evidence == "observed"


def test_an_edit_is_named_before_the_line_of_a_library_that_computes_something_else() -> None:
    library = "/v/lib/python3.11/site-packages/diffrax/solver.py"
    before, after = (
        Sketch(lines=(SketchedLine(library, 28, "step", {operation: 1}),))
        for operation in ("sine f32[8]", "cosine f32[8]")
    )
    old, new = (
        run(at, hash_seed="0", sources={"main.py": f"{line}22222222"}, versions=versions)
        for at, line, versions in ((0, "11111111", {}), (9, "33333333", {"diffrax": "0.7"}))
    )
    (difference,) = differ(before, after, Past(old, new))
    assert "main.py:1 was edited; the operations of diffrax 0.7" in difference.meaning
    assert (difference.title, difference.brief) == ("code at main.py:1", "main.py:1 was edited")
    assert [(place.file, place.line) for place in difference.where] == [("main.py", 1)]


def test_a_structure_that_is_static_too_is_named_once() -> None:
    """As Equinox passes it."""
    old, new = (
        Sketch(passed=passed(types, ()), static={"static": f"PyTreeDef({types})"})
        for types in ("f32[8]", "f32[8], f32[8]")
    )
    (difference,) = differ(old, new)
    assert difference.cause is Cause.ARGUMENT_STRUCTURE


# Sketches of programs: what they hold of a module's text, and their bounds.

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


def sketch(text: str = MODULE, **more: str) -> Sketch:
    facts = {"static": {"n": "2"}, "passed": [["w", "f32[4,4]", 0]], **more}
    read = read_sketch(make_sketch(text, facts))
    assert read
    return read


def test_operations_belong_to_the_innermost_line_of_the_user() -> None:
    """Code in ``<string>``, as the ``__init__`` of a dataclass, is not a line of the user.

    MLIR escapes what is not ASCII; a large constant is left out.
    """

    def told(text: str) -> list[Any]:
        (line,) = sketch(text).lines
        names = [operation.partition("~")[0] for operation in line.operations]
        return [line.file, line.line, line.function, *names]

    made = "dot_general f32[2,4]", "broadcast_in_dim(0.5) f32[2,4]", "multiply f32[2,4]"
    assert told(MODULE) == ["/u/train.py", 7, "step", *made, "call relu f32[2,4]"]
    path = "/v/lib/python3.11/site-packages/optax/update.py"
    assert told(MODULE.replace(path, "<string>")) == told(MODULE)
    text = MODULE.replace("/u/train.py", r"/\C3\BC/train.py").replace('"step"', r'"\CE\B8"')
    text = text.replace("@relu_1", r'@"\CE\B8_1"').replace('"relu_1"', r'"\CE\B8_1"')
    assert told(text) == ["/ü/train.py", 7, "θ", *made, "call θ f32[2,4]"]
    large = MODULE.replace("dense<5.000000e-01>", f"dense<[{', '.join(['1.0'] * 99)}]>")
    assert told(large)[4] == "broadcast_in_dim(…) f32[2,4]"


def test_a_function_of_jax_counts_where_it_is_called_and_not_where_it_was_traced() -> None:
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
    (difference,) = differ(sketch(plain), sketch(plain.replace("<2.0>", "<3.0>")))
    assert (difference.cause, difference.evidence) == (Cause.CONSTANT, "layer")


def test_a_line_from_which_a_library_calls_back_is_marked() -> None:
    """A function that was traced earlier is no callback."""
    nested = CALLS_BACK.replace('"model"(#loc20)', '"step"(#loc20)')
    for text, marked in ((MODULE, []), (nested, []), (CALLS_BACK, ["step"])):
        assert [x.function for x in sketch(text).lines if x.is_callback_site] == marked


def test_a_copy_of_a_script_is_compared_line_by_line() -> None:
    copied = MODULE.replace("/u/train.py", "/u/copy.py")
    assert changed_lines(sketch(), sketch(copied)) == []
    (difference,) = differ(sketch(), sketch(copied.replace("multiply", "add")))
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
    (difference,) = differ(of_lines(before), of_lines(after))
    assert [str(place) for place in difference.where] == ["a.py:7 in `f`"]


def test_an_operation_that_was_added_or_removed_is_said_to_be() -> None:
    """A renamed function with the same operations has none of either."""
    none, tanh = of_lines({7: {}}), of_lines({7: {"tanh": 1}})
    for old, new, found in (
        (tanh, none, ("tanh", None, "tanh was removed at a.py:7 in `f`")),
        (none, tanh, (None, "tanh", "tanh was added at a.py:7 in `f`")),
        (tanh, of_lines({7: {"tanh": 1}}, "g"), (None, None, "")),
    ):
        (difference,) = differ(old, new)
        assert (difference.left, difference.right, difference.brief) == found


@pytest.mark.parametrize(
    ("old", "new"), [("[1, 2, 3]", "[1, 2, 4]"), ("0.5", "0.25"), ("2, [1, 3]", "2, [1, 4]")]
)
def test_an_array_is_one_constant(old: str, new: str) -> None:
    """Its elements are no constants of their own."""
    (difference,) = differ(*[of_lines({7: {f"add({text}) f32[3]": 1}}) for text in (old, new)])
    shown = [text.rpartition("2, ")[2] if text.startswith("2") else text for text in (old, new)]
    assert [difference.left, difference.right] == shown


@pytest.mark.parametrize("seeds", [("0", "0"), ("0", "1"), ("random", "random")])
def test_other_operands_are_no_other_order(seeds: tuple[str, str]) -> None:
    """``a - b`` is another program than ``b - a``, whatever the hash seed is."""
    turned = MODULE.replace("(%arg1, %arg0) <", "(%arg0, %arg1) <")
    old, new = sketch(MODULE, hash_seed=seeds[0]), sketch(turned, hash_seed=seeds[1])
    (difference,) = differ(old, new)
    assert (difference.cause, difference.evidence) == (Cause.CODE, "observed")
    assert [str(place) for place in difference.where] == ["train.py:7 in `step`"]


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (("random", "0"), "PYTHONHASHSEED was random, and is 0, which may order a set otherwise"),
        (
            ("random", "random"),
            "PYTHONHASHSEED is not set, so that each process may order a set otherwise",
        ),
        (("0", "0"), ""),
    ],
)
def test_a_hash_seed_is_told_where_only_an_order_differs(seeds: tuple[str, str], said: str) -> None:
    past = Past(*(run(at, hash_seed=seed) for at, seed in enumerate(seeds)))
    assert past.outside(is_reordered=True) == said
    assert past.outside(is_reordered=False) == ""


def test_arguments_tell_names_types_shardings_and_donations() -> None:
    told = [(a.name, a.type, a.donated, a.sharding) for a in sketch().arguments]
    assert told == [("w", "f32[4,4]", True, ""), ("x", "f32[2,4]", False, '"{replicated}"')]
    kept = sketch(MODULE.replace("{tf.aliasing_output = 0 : i32}", "{}"))
    for old, new, sides in ((sketch(), kept, ("w", "none")), (kept, sketch(), ("none", "w"))):
        (difference,) = differ(old, new)
        assert (difference.cause, difference.left, difference.right) == (Cause.DONATION, *sides)


@pytest.mark.parametrize(
    ("layer", "titles", "titles_if_rewired"),
    [
        ("", ["another program"], ["another program"]),
        ("names", ["names"], ["names"]),
        ("precision", ["precision"], ["precision"]),
        ("sharding", ["sharding"], ["sharding"]),
        ("donation", ["donated arguments"], ["donated arguments"]),
        ("constants", ["array constant"], ["order of operations"]),
        ("names+order", ["order of operations"], ["order of operations"]),
        ("names+order+arguments", ["order of arguments"], ["order of arguments"]),
        (
            "names+order+arguments+constants",
            ["array constant", "order of arguments"],
            ["order of operations", "order of arguments"],
        ),
    ],
)
def test_programs_that_are_equal_without_some_layers_differ_in_these(
    layer: str, titles: list[str], titles_if_rewired: list[str]
) -> None:
    old, new = (
        replace(sketch(), layers=dict.fromkeys(LAYERS, side) | {layer: "same"}) for side in "ab"
    )
    differences = differ(old, new)
    assert [d.title for d in differences] == titles
    assert {d.evidence for d in differences} == {"layer" if layer else "unknown"}
    rewired = replace(new, lines=(replace(new.lines[0], wiring="other"),))
    assert [d.title for d in differ(old, rewired)] == titles_if_rewired


def test_equal_programs_with_other_keys_differ_in_what_is_not_in_the_digests() -> None:
    """A large array is elided; a setting puts lines of the source into keys."""
    with_array = replace(sketch(), layers={"": "same", ELIDED: "1"})
    (difference,) = differ(with_array, with_array)
    assert (difference.cause, difference.title) == (Cause.CONSTANT, "array constant")
    config = {"jax_compilation_cache_include_metadata_in_key": True}
    old = replace(sketch(), layers={"": "same"}, config=config)
    (difference,) = differ(old, replace(old, lines=(replace(old.lines[0], line=9),)))
    assert difference.cause is Cause.SOURCE_LINES
    assert (difference.left, difference.right) == ("/u/train.py:7", "/u/train.py:9")
    assert [str(place) for place in difference.where] == ["train.py:9 in `step`"]


@pytest.mark.parametrize(
    "blob",
    [
        None,
        7,
        "",
        "no base64!",
        "eA==",
        f"!{make_sketch(MODULE)}",
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
    for text, kept in (
        (long_module(2_600, 2_600), "add(0.5,0.5) f32[0]~"),
        (long_module(6_000, 500), "~"),
    ):
        blob = make_sketch(text)
        assert blob and len(blob) <= 64 << 10
        read = read_sketch(blob)
        assert read
        assert next(iter(read.lines[0].operations)).startswith(kept)
        assert (read.lines[0].line, read.lines[-1].line) == (0, 7)
    assert make_sketch(long_module(9_000, 3_000)) is None


def long_module(operations: int, lines: int) -> str:
    """So many operations of so many lines, before those of ``MODULE``."""
    head, _, tail = MODULE.partition("    %1 =")
    added = [
        f'    %v{n} = "stablehlo.add"(%0, %0) <{{a = {n * 7919 % 65536}}}> : (t) -> tensor<{n}xf32> '
        f"loc(#loc{n % lines + 100})"
        for n in range(operations)
    ]
    places = [f'#loc{n + 100} = loc("/u/train.py":{n}:1)' for n in range(lines)]
    return "\n".join([*places, head, *added, "    %1 =" + tail])


def test_a_compaction_keeps_the_newest_sketches_of_each_module(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    blob = make_sketch(MODULE)
    keys = [f"jit_g-{0:064x}", *(f"jit_f-{number:064x}" for number in range(80))]
    for kind, facts in ((COMPILE, {}), (SKETCH, {"sketch": blob})):
        append(store, [Event(key, kind, n, facts) for n, key in enumerate(keys, 1)])
    compact(store)
    ledger = Ledger.load(store)
    sketched = {key for key in ledger if (record := ledger.record(key)) and record.sketch}
    assert (len(ledger), sketched) == (81, {keys[0], *keys[-64:]})


# The judge of ``make explain-changes``: what it calls right, silent and wrong.

MAIN = "def helper(x):\n    return x + 1.0\n\n\ndef main(x):\n    return 2.0 * helper(x)\n"
EDIT = Change("constant", CODE, (Edit("main.py", "1.0", "3.0"),), old=r"1\.0", new=r"3\.0")
FLAG = Change("flag", frozenset({"flag"}), env={"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"})


def _run(key: str) -> Plain:
    return Plain(misses=frozenset({key}), modules={key: "main"})


BEFORE = Plain(hits=frozenset({"main-old"}), modules={"main-old": "main"})
#: The changes, and the runs with one of them undone. Each change of the second pair makes the key.
ONE = ((EDIT,), (BEFORE,))
TWO = ((EDIT, FLAG), (_run("with-flag"), _run("with-edit")))
EACH = ((EDIT, FLAG), (_run("main-new"), _run("main-new")))
#: The flag has no effect on the module.
IDLE = ((EDIT, FLAG), (BEFORE, _run("main-new")))
CURED = {"cause": "flag", "fix": "unset XLA_FLAGS"}
CONSTANT = {"cause": "constant", "right": "3.0"}


@pytest.mark.parametrize(
    ("case", "claim", "line", "verdict"),
    [
        (ONE, {**CONSTANT, "left": "1.0"}, 2, Verdict.RIGHT),
        (ONE, {"cause": "code"}, 6, Verdict.RIGHT),
        (ONE, {"cause": "unknown"}, None, Verdict.SILENT),
        (ONE, {"cause": "flag"}, None, Verdict.WRONG),
        (ONE, {"cause": "code"}, 4, Verdict.WRONG),
        (ONE, {**CONSTANT, "left": "7.0"}, 2, Verdict.WRONG),
        (ONE, {"cause": "code", "fix": "if you edited it"}, 6, Verdict.WRONG),
        (ONE, {"cause": "not-cached-before"}, None, Verdict.WRONG),
        (TWO, {"cause": "flag"}, None, Verdict.RIGHT),
        (TWO, {"cause": "flag", "evidence": "proved"}, None, Verdict.WRONG),
        (TWO, {"cause": "flag", "meaning": "the flag xla_other"}, None, Verdict.WRONG),
        (TWO, CURED, None, Verdict.WRONG),
        (EACH, {"cause": "flag"}, None, Verdict.RIGHT),
        (IDLE, {"cause": "flag"}, None, Verdict.WRONG),
        (((EDIT,), (Plain(),)), {"cause": "not-cached-before"}, None, Verdict.RIGHT),
        (((FLAG,), (BEFORE,)), CURED, None, Verdict.RIGHT),
        (((FLAG,), (_run("main-old"),)), CURED, None, Verdict.WRONG),  # it was evicted
    ],
)
def test_what_explain_answers_is_judged(
    case: tuple[tuple[Change, ...], tuple[Plain, ...]],
    claim: dict[str, Any],
    line: int | None,
    verdict: Verdict,
) -> None:
    changes, undone = case
    files = {"main.py": MAIN}
    after = apply(files, changes)
    others = [changes[:n] + changes[n + 1 :] for n in range(len(changes))]
    places = [places_of(apply(files, o), after, c) for o, c in zip(others, changes, strict=True)]
    trial = Case(changes, tuple(places), _run("main-new"), undone, {"main-old": "main"}, Path())
    where = [{"file": "/somewhere/main.py", "line": line, "function": "f"}] if line else []
    blank = {"left": None, "right": None, "meaning": "", "component": "", "fix": None}
    comparison = {"module": "main", "right_key": "main-new"}
    comparison["differences"] = [blank | {"where": where} | claim]
    document: dict[str, Any] = {"comparisons": [comparison], "hits": []}
    assert judge(trial, document, 0).verdict is verdict
    comparison["right_key"] = "main-old"  # what hits is no miss
    assert judge(trial, document, 0).verdict is Verdict.WRONG


def test_commands_of_a_cure() -> None:
    fix = "unset XLA_FLAGS; export JAX_ENABLE_X64=0 APP='a b'"
    assert environment_of(fix) == {"XLA_FLAGS": None, "JAX_ENABLE_X64": "0", "APP": "a b"}
