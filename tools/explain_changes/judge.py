"""Judge an answer of ``explain`` against the change that was made.

The judge reads only the JSON contract: ``comparisons[].differences[].cause`` and ``where``. The
first difference of a comparison is its cause.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from changes import CODE, Change

#: Causes that claim nothing of the change.
_SILENT = frozenset({"unknown"})


class Verdict(enum.StrEnum):
    """What an answer is worth."""

    RIGHT = "right"
    SILENT = "silent"
    WRONG = "wrong"
    NO_MISS = "no miss"
    """Nothing missed, so that there was nothing to explain."""
    NEVER_CACHED = "never cached"
    """All that missed is what this JAX never writes, before the change and after: no change can
    make it miss, and the answer says so."""


def judge(
    change: Change,
    comparisons: Sequence[Mapping[str, Any]],
    program: Path,
    modules: set[str],
    uncacheable: set[str],
) -> tuple[Verdict, str]:
    """Return the verdict on an answer, and the words that it was based on.

    One wrong comparison makes the answer wrong. The answer is right where the first comparison of a
    function of the user names a right cause.

    Args:
        comparisons: of the answer, in the order in which they are shown.
        program: the directory of the program as it is after the change.
        modules: names of the modules that the cache had before the change.
        uncacheable: names of those that JAX did not write before the change, by its own rules.
    """
    verdicts = [_judge_one(change, c, program, modules, uncacheable) for c in comparisons]
    said = "; ".join(_said(c) for c in comparisons[:3])
    if not verdicts:
        return Verdict.NO_MISS, "no miss"
    for verdict, comparison in zip(verdicts, comparisons, strict=True):
        if verdict is Verdict.WRONG:
            return Verdict.WRONG, _said(comparison)
    no_effect = (Verdict.NO_MISS, Verdict.NEVER_CACHED)
    default = Verdict.NEVER_CACHED if Verdict.NEVER_CACHED in verdicts else Verdict.SILENT
    return next((v for v in verdicts if v not in no_effect), default), said


def _judge_one(
    change: Change,
    comparison: Mapping[str, Any],
    program: Path,
    modules: set[str],
    uncacheable: set[str],
) -> Verdict:
    differences = comparison["differences"]
    causes = [d.get("cause") for d in differences]
    if not causes or causes[0] in _SILENT:
        # Silence has no second thoughts, and no fix that looks like a cause.
        return Verdict.SILENT if set(causes) <= _SILENT else Verdict.WRONG
    if causes[0] == "not-cached-before":
        return Verdict.NO_MISS if comparison["module"] not in modules else Verdict.WRONG
    if causes == ["callback"] and comparison["module"] in uncacheable - modules:
        return Verdict.NEVER_CACHED
    if not set(causes) <= change.causes:
        return Verdict.WRONG
    if causes[0] in CODE and change.places and not _is_placed(change, differences[0], program):
        return Verdict.WRONG
    return Verdict.RIGHT


def _is_placed(change: Change, difference: Mapping[str, Any], program: Path) -> bool:
    """Return whether the first line that a cause in the code names is one of the change.

    More layers, or another optimizer, change every function that uses them: there any line of the
    user's own is right.
    """
    named = [(Path(p["file"]).name, p["line"]) for p in difference.get("where") or ()]
    if not named:
        return False
    if change.name in ("layers", "optimizer"):
        return named[0][0] in ("main.py", "parts.py")
    return named[0] in set(_lines(change, program))


def _lines(change: Change, program: Path) -> Iterable[tuple[str, int]]:
    for file, text in change.places:
        for number, line in enumerate((program / file).read_text().splitlines(), 1):
            if text in line:
                yield file, number


def _said(comparison: Mapping[str, Any]) -> str:
    """Return the causes and places of one comparison in one line."""
    parts = []
    for difference in comparison["differences"][:3]:
        where = ", ".join(
            f"{Path(p['file']).name}:{p['line']}" for p in (difference.get("where") or ())[:3]
        )
        values = f"{difference['left']} → {difference['right']}"[:160]
        cause = difference.get("cause") or difference["meaning"]
        parts.append(f"{cause} {f'at {where} ' if where else ''}({values})")
    return f"{comparison['module']}: {' + '.join(parts) or 'nothing'}"
