"""The judge of `make explain-changes`: what it calls right, silent and wrong."""

from pathlib import Path
from typing import Any

import pytest

from tools.explain_changes.changes import CODE, Change, Edit, apply
from tools.explain_changes.judge import Case, Judgement, Plain, Verdict, judge, places_of
from tools.explain_changes.lab import environment_of

MAIN = "def helper(x):\n    return x + 1.0\n\n\ndef main(x):\n    return 2.0 * helper(x)\n"
EDIT = Change("constant", CODE, (Edit("main.py", "1.0", "3.0"),), old=r"1\.0", new=r"3\.0")
FLAG = Change("flag", frozenset({"flag"}), env={"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"})
BEFORE = Plain(hits=frozenset({"main-old"}), modules={"main-old": "main"})


def _run(key: str) -> Plain:
    return Plain(misses=frozenset({key}), modules={key: "main"})


def _case(*changes: Change, undone: tuple[Plain, ...], is_first: bool = False) -> Case:
    files = {"main.py": MAIN}
    after = apply(files, changes)
    places = []
    for number, change in enumerate(changes):
        others = changes[:number] + changes[number + 1 :]
        places.append(places_of(apply(files, others), after, change))
    compiled = {} if is_first else {"main-old": "main"}
    return Case(changes, tuple(places), _run("main-new"), undone, compiled, Path())


def _judge(case: Case, *, key: str = "main-new", **claim: Any) -> Judgement:
    difference = {"left": None, "right": None, "meaning": "", "component": "", "fix": None}
    comparison = {"module": "main", "right_key": key, "differences": [difference | claim]}
    return judge(case, {"comparisons": [comparison], "hits": []}, 0)


def _at(line: int) -> list[dict[str, Any]]:
    return [{"file": "/somewhere/main.py", "line": line, "function": "f"}]


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"cause": "constant", "left": "1.0", "right": "3.0", "where": _at(2)}, Verdict.RIGHT),
        ({"cause": "code", "where": _at(6)}, Verdict.RIGHT),
        ({"cause": "unknown"}, Verdict.SILENT),
        ({"cause": "code"}, Verdict.SILENT),
        ({"cause": "flag"}, Verdict.WRONG),
        ({"cause": "code", "where": _at(4)}, Verdict.WRONG),
        ({"cause": "constant", "left": "7.0", "right": "3.0", "where": _at(2)}, Verdict.WRONG),
        ({"cause": "code", "where": _at(6), "fix": "if you edited this line"}, Verdict.WRONG),
        ({"cause": "code", "where": _at(2), "fix": "unset XLA_FLAGS"}, Verdict.WRONG),
        ({"cause": "not-cached-before"}, Verdict.WRONG),
        ({"cause": "lost"}, Verdict.WRONG),
    ],
)
def test_one_edit(claim: dict[str, Any], verdict: Verdict) -> None:
    assert _judge(_case(EDIT, undone=(BEFORE,)), **claim).verdict is verdict


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"cause": "flag"}, Verdict.RIGHT),
        ({"cause": "code", "where": _at(2), "evidence": "observed"}, Verdict.RIGHT),
        ({"cause": "flag", "evidence": "proved"}, Verdict.WRONG),
        ({"cause": "flag", "fix": "unset XLA_FLAGS"}, Verdict.WRONG),
        ({"cause": "donation"}, Verdict.WRONG),
        ({"cause": "flag", "meaning": "the flag xla_other"}, Verdict.WRONG),
    ],
)
def test_two_changes_at_once(claim: dict[str, Any], verdict: Verdict) -> None:
    case = _case(EDIT, FLAG, undone=(_run("with-flag"), _run("with-edit")))
    assert _judge(case, **claim).verdict is verdict


def test_a_change_without_effect_on_the_module_is_no_cause() -> None:
    case = _case(EDIT, FLAG, undone=(BEFORE, _run("main-new")))
    assert _judge(case, cause="flag").verdict is Verdict.WRONG
    assert _judge(case, cause="code", where=_at(2)).verdict is Verdict.RIGHT


def test_each_of_two_changes_that_alone_make_the_key_is_a_cause() -> None:
    case = _case(EDIT, FLAG, undone=(_run("main-new"), _run("main-new")))
    assert _judge(case, cause="flag").verdict is Verdict.RIGHT


def test_a_cure_must_bring_a_hit() -> None:
    cured = {"cause": "flag", "fix": "unset XLA_FLAGS"}
    assert _judge(_case(FLAG, undone=(BEFORE,)), **cured).verdict is Verdict.RIGHT
    evicted = _case(FLAG, undone=(_run("main-old"),))
    assert _judge(evicted, **cured).verdict is Verdict.WRONG


def test_a_function_that_was_never_compiled_has_no_other_cause() -> None:
    case = _case(EDIT, undone=(_run("main-old"),), is_first=True)
    assert _judge(case, cause="not-cached-before").verdict is Verdict.RIGHT
    assert _judge(case, cause="code", where=_at(2)).verdict is Verdict.WRONG
    one_more = _case(EDIT, undone=(Plain(),))
    assert _judge(one_more, cause="not-cached-before").verdict is Verdict.RIGHT


def test_what_hits_is_no_miss() -> None:
    assert _judge(_case(EDIT, undone=(BEFORE,)), key="main-old").verdict is Verdict.WRONG


def test_commands_of_a_cure() -> None:
    fix = "unset XLA_FLAGS; export JAX_ENABLE_X64=0 APP='a b'"
    assert environment_of(fix) == {"XLA_FLAGS": None, "JAX_ENABLE_X64": "0", "APP": "a b"}
