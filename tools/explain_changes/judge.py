"""Judge an answer of ``explain`` by what was changed, and by plain JAX.

The judge reads the JSON contract: of each comparison the causes, the values, the places, the cure
and the evidence. Whether a module missed, and whether undoing a change brings a hit, it takes from
plain JAX's own counters. Of the sentences it reads only claims: a name of a flag, of a setting or of
a variable, a place that is said to be edited, and a promise of a hit.
"""

import ast
import difflib
import enum
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.explain_changes.changes import CODE, Change

FIRST, LOST, CALLBACK = "not-cached-before", "lost", "callback"
#: Causes that claim nothing of the change.
SILENT_CAUSES = frozenset({"unknown", None})
_FLAG, _SETTING = re.compile(r"\bxla_\w+"), re.compile(r"\bjax_[a-z0-9_]+")
_VARIABLE = re.compile(r"\b(?:JAX_[A-Z0-9_]+|XLA_FLAGS|LIBTPU_INIT_ARGS)\b")
_CITED = re.compile(r"([\w./-]+\.py):(\d+)")
_EDITED = re.compile(r"\bedit(?:ed|s)?\b")
_LONG_WORD = re.compile(r"\w{8,}")
_PROMISE = re.compile(r"next run\b.*\b(?:hits?|saves)\b")
_SILENT_WORDS = re.compile(r"\b(?:unknown|not known|not recorded)\b")
#: The parts of JAX's own keys; no setting is called so.
_NO_SETTINGS = frozenset({"jax_lib"})

Place = tuple[str, int]


class Verdict(enum.StrEnum):
    """What an answer is worth."""

    RIGHT = "right"
    SILENT = "silent"
    WRONG = "wrong"


@dataclass(frozen=True)
class Plain:
    """What plain JAX itself counted and logged."""

    hits: frozenset[str] = frozenset()
    """Keys."""
    misses: frozenset[str] = frozenset()
    uncacheable: frozenset[str] = frozenset()
    """Names of the modules that it never writes."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Names by key."""
    counted: tuple[int, int] = (0, 0)
    """Hits and misses by its counters."""

    @property
    def keys(self) -> frozenset[str]:
        """All keys of the run."""
        return self.hits | self.misses

    def is_cured(self, module: str, factor_count: int) -> bool:
        """Return whether a compile hits, of which this run undoes one of so many factors.

        Keys of other runs are others. Of several modules of one name, a compile with one factor
        is one that the other changes leave as it was.
        """
        hits = sum(self.modules.get(key) == module for key in self.hits)
        return hits > 0 and (factor_count == 1 or hits == [*self.modules.values()].count(module))


@dataclass(frozen=True)
class Places:
    """Lines of a program after a change."""

    edited: frozenset[Place] = frozenset()
    near: frozenset[Place] = frozenset()
    """Those, the functions that they belong to, and the lines that use what they set."""


@dataclass(frozen=True)
class Case:
    """All that is true of one trial."""

    changes: tuple[Change, ...]
    places: tuple[Places, ...]
    """Of each change."""
    plain: Plain
    """The changed program, with the cache as the history left it."""
    undone: tuple[Plain, ...]
    """The same with each of the changes undone."""
    compiled: Mapping[str, str]
    """Names by key of what earlier runs of the program compiled."""
    program: Path
    """The directory of the program."""

    def factors(self, key: str | None) -> list[int]:
        """Return the changes without which a key would be another one.

        Where each of two alone makes a key that is new, both are.
        """
        every = range(len(self.changes))
        factors = [n for n in every if key not in self.undone[n].keys]
        is_by_each = len(every) > 1 and bool(self.compiled) and key not in self.compiled
        return factors or (list(every) if is_by_each else [])

    @property
    def edited(self) -> set[Place]:
        """Lines that any of the changes edited."""
        return {place for places in self.places for place in places.edited}

    @property
    def is_unstable(self) -> bool:
        """Whether keys are others in each process."""
        return any(change.is_unstable for change in self.changes)


@dataclass(frozen=True)
class Judgement:
    """A verdict, the kind of what is wrong, and the words that it is based on."""

    verdict: Verdict
    problem: str = ""
    said: str = ""


def judge(case: Case, document: Mapping[str, Any], exit_code: int) -> Judgement:
    """Return the verdict on an answer: one wrong comparison makes it wrong."""
    comparisons = document["comparisons"]
    said = "; ".join(describe(c) for c in comparisons[:4]) or "all hits"
    if problem := _problem_of_lists(case, document, exit_code):
        return Judgement(Verdict.WRONG, problem, said)
    if not case.plain.misses and not comparisons:
        return Judgement(Verdict.RIGHT, said=said)
    judged = [(c, _judge_one(case, c)) for c in comparisons]
    for comparison, (verdict, problem) in judged:
        if verdict is Verdict.WRONG:
            return Judgement(verdict, problem, describe(comparison))
    known = set(case.compiled.values())
    explained = [v for c, (v, _) in judged if c["module"] in known] or [v for _, (v, _) in judged]
    verdict = Verdict.RIGHT if Verdict.RIGHT in explained else Verdict.SILENT
    return Judgement(verdict, said=said)


def judge_why(case: Case, document: Mapping[str, Any]) -> Judgement:
    """Return the verdict on the causes that a run itself prints: its claims are all in words."""
    verdicts = []
    for module in document["modules"]:
        if module["outcome"] != "written":
            continue
        text = module["cause"] or "unknown"
        cause = "why"
        if text.startswith(("first time", "new since")):
            cause = FIRST
        elif _SILENT_WORDS.search(text):
            cause = "unknown"
        blank = {"cause": cause, "where": (), "left": None, "right": None}
        differences = [blank | {"meaning": part} for part in text.split("; also ")]
        found = {"module": module["module"], "right_key": module["key"]}
        verdict, problem = _judge_one(case, found | {"differences": differences})
        if verdict is Verdict.WRONG:
            return Judgement(verdict, problem, f"{module['module']}: {text}")
        verdicts.append((verdict, f"{module['module']}: {text}"))
    said = "; ".join(text for _, text in verdicts[:4]) or "all hits"
    is_right = not verdicts or any(v is Verdict.RIGHT for v, _ in verdicts)
    return Judgement(Verdict.RIGHT if is_right else Verdict.SILENT, said=said)


def _problem_of_lists(case: Case, document: Mapping[str, Any], exit_code: int) -> str:
    """Return what is wrong with the lists of misses and hits, or nothing."""
    if exit_code:
        return f"exit code {exit_code}"
    cacheable = [c for c in document["comparisons"] if c["module"] not in case.plain.uncacheable]
    names = case.plain.modules
    if case.is_unstable:
        is_same = len(cacheable) == len(case.plain.misses)
        return "" if is_same else "lists other misses than plain JAX's"
    missed = Counter(c["module"] for c in cacheable)
    hits = Counter(h["module"] for h in document.get("hits") or ())
    listed = {c["right_key"] for c in cacheable}
    if extra := listed & case.plain.hits:
        return f"lists {', '.join(sorted({names[k] for k in extra}))} as missed, which hits"
    actual = {k for k in case.plain.misses if names[k] not in case.plain.uncacheable}
    if missed != Counter(names[key] for key in actual):
        return "lists other misses than plain JAX's"
    if hits != Counter(names[key] for key in case.plain.hits):
        return "lists other hits than plain JAX's"
    if listed != actual:
        return "has other keys than plain JAX"
    return ""


def _judge_one(case: Case, comparison: Mapping[str, Any]) -> tuple[Verdict, str]:
    """Return the verdict on what is said of one module, and what is wrong."""
    module, key = comparison["module"], comparison["right_key"]
    claims = [d for d in comparison["differences"] if d.get("cause") not in SILENT_CAUSES]
    if not claims:
        return Verdict.SILENT, ""
    causes = {d["cause"] for d in claims}
    was_compiled = module in set(case.compiled.values())
    factors = case.factors(key)
    if FIRST in causes:
        return _judge_first(case, module, factors, causes)
    if key in case.compiled and module not in case.plain.uncacheable:
        is_right = causes <= {LOST, "why"}
        return (Verdict.RIGHT, "") if is_right else (Verdict.WRONG, "not: its own entry is gone")
    if LOST in causes:
        return Verdict.WRONG, "lost, of a key that was never written"
    if module in case.plain.uncacheable and CALLBACK in causes:
        return Verdict.RIGHT, ""
    if not was_compiled and not any("name" in case.changes[n].causes for n in factors):
        return Verdict.WRONG, f"{_kinds(causes)} of a function that was never compiled"
    named = set()
    for claim in claims:
        problems = {n: _problem(case, n, module, claim, len(factors)) for n in factors}
        right = [n for n, problem in problems.items() if not problem]
        if not right:
            return Verdict.WRONG, _worst(case, claim, problems)
        named |= set(right)
    if all(d["cause"] == "code" and not d.get("where") and not _is_shown(d) for d in claims):
        return Verdict.SILENT, ""
    return Verdict.RIGHT, ""


def _judge_first(
    case: Case, module: str, factors: list[int], causes: set[str]
) -> tuple[Verdict, str]:
    """Return the verdict on "first time"."""
    if causes != {FIRST}:
        return Verdict.WRONG, "first time, and something else"
    if any(FIRST in case.changes[n].causes for n in factors):
        return Verdict.RIGHT, ""
    if any(c.can_be_first for c in case.changes):
        return Verdict.SILENT, ""
    counts = [[*run.modules.values()].count(module) for run in (*case.undone, case.plain)]
    is_one_more = counts[-1] > min(counts)
    if module in set(case.compiled.values()) and not is_one_more:
        return Verdict.WRONG, "first time, of a function that was compiled before"
    return Verdict.RIGHT, ""


def _is_shown(difference: Mapping[str, Any]) -> bool:
    return difference.get("evidence") in ("proved", "layer")


def _worst(case: Case, claim: Mapping[str, Any], problems: Mapping[int, str]) -> str:
    """Return what is wrong with a claim, of the change that it fits best."""
    if found := [p for p in problems.values() if not p.startswith("cause ")]:
        return found[0]
    if any(claim["cause"] in change.causes for change in case.changes):
        return f"cause {claim['cause']}, of a change without effect on this module"
    kinds = " + ".join(c.kind for c in case.changes)
    return f"cause {claim['cause']} for {kinds if len(case.changes) == 1 else 'a pair'}"


def _kinds(causes: Iterable[str]) -> str:
    return " + ".join(sorted(causes))


def _problem(
    case: Case, number: int, module: str, claim: Mapping[str, Any], factor_count: int
) -> str:
    """Return what is wrong with a claim as one of a change, or nothing."""
    change, places = case.changes[number], case.places[number]
    cause = claim["cause"]
    is_why = cause == "why"
    if not is_why and cause not in change.causes:
        return f"cause {cause}"
    shown = " ".join(str(claim.get(n) or "") for n in ("left", "right", "meaning", "component"))
    if (cause == "flag" or is_why) and set(_FLAG.findall(shown)) - change.flags():
        return "names a flag that was not changed"
    settings = set(_SETTING.findall(shown)) - _NO_SETTINGS
    if (cause == "config" or is_why) and settings - change.settings():
        return "names a setting that was not changed"
    if problem := _problem_of_values(change, claim):
        return problem
    if (cause in CODE or is_why) and (problem := _problem_of_places(case, change, places, claim)):
        return problem
    return _problem_of_cure(case, number, module, claim, factor_count)


def _problem_of_values(change: Change, claim: Mapping[str, Any]) -> str:
    left, right = claim["left"], claim["right"]
    if claim["cause"] == "code" or not (left and right):
        return ""
    if change.old and not re.search(change.old, str(left)):
        return "an old value that it never had"
    if change.new and not re.search(change.new, str(right)):
        return "a new value that it does not have"
    return ""


def _problem_of_places(case: Case, change: Change, places: Places, claim: Mapping[str, Any]) -> str:
    """Return what is wrong with the lines that a claim names."""
    named = [(w["file"], w["line"]) for w in claim.get("where") or ()]
    cited = [(file, int(line)) for file, line in _CITED.findall(claim["meaning"] or "")]
    text = f"{claim.get('meaning')} {claim.get('fix')}"
    if _EDITED.search(text):
        before = _CITED.findall(_EDITED.split(text)[0])
        said_to_be_edited = [(file, int(line)) for file, line in before] or named[:1]
        if not case.edited or not all(_is_among(p, case.edited) for p in said_to_be_edited):
            return "calls a line edited that was not"
    first = (named or cited)[:1]
    if not first:
        return ""
    if not (change.edits or change.causes & CODE):
        return "a line of code, of a change that edited none"
    if change.is_anywhere or not places.near:
        own = {path.name for path in case.program.rglob("*.py")}
        return "" if Path(first[0][0]).name in own else "a line outside of the program"
    return "" if _is_among(first[0], places.near) else "a line that the change does not touch"


def _is_among(place: Place, places: Iterable[Place]) -> bool:
    """Return whether a line is among some, whose files are relative to the program."""
    file, line = place[0].removeprefix("./"), place[1]
    return any(
        line == n and (f"/{file}".endswith(f"/{name}") or f"/{name}".endswith(f"/{file}"))
        for name, n in places
    )


def _problem_of_cure(
    case: Case, number: int, module: str, claim: Mapping[str, Any], factor_count: int
) -> str:
    """Return what is wrong with the cure of a claim, and with what it says of others."""
    change, fix = case.changes[number], claim.get("fix") or ""
    if factor_count > 1 and claim.get("evidence") == "proved":
        return "proved, but the other change alone makes it miss"
    if _PROMISE.search(f"{claim.get('meaning')} {fix}") and change.is_unstable:
        return "promises a hit that never comes"
    if not fix or fix.startswith("nothing to do"):
        return ""
    variables = set(_VARIABLE.findall(fix))
    if variables and not variables & change.variables() and not _names_edit(change, fix):
        return "a cure by a variable that was not changed"
    if not case.undone[number].is_cured(module, factor_count):
        return "a cure that brings no hit"
    return ""


def _names_edit(change: Change, fix: str) -> bool:
    """Return whether a cure names what an edit added, such as ``compiler_options``."""
    added = {word for edit in change.edits for word in _LONG_WORD.findall(edit.after)}
    return bool(added.intersection(_LONG_WORD.findall(fix)))


def describe(comparison: Mapping[str, Any]) -> str:
    """Return the causes, places and cures of one comparison in one line."""
    parts = []
    for difference in comparison["differences"][:4]:
        where = ", ".join(
            f"{Path(p['file']).name}:{p['line']}" for p in (difference.get("where") or ())[:3]
        )
        values = f"{difference['left']} → {difference['right']}"[:160]
        words = [difference.get("cause") or "no cause", f"({values})", difference["meaning"] or ""]
        if where:
            words.insert(1, f"at {where}")
        if difference.get("evidence"):
            words.append(f"[{difference['evidence']}]")
        if difference.get("fix"):
            words.append(f"— {difference['fix']}")
        parts.append(" ".join(words))
    return f"{comparison['module']}: {' + '.join(parts) or 'nothing'}"


def places_of(before: Mapping[str, str], after: Mapping[str, str], change: Change) -> Places:
    """Return the lines that differ between two states of a program, and those around them."""
    edited: set[Place] = set()
    for name, text in after.items():
        new = text.splitlines()
        old = before.get(name, "" if not change.renames else None)
        if old is None:
            sources = [a for a in before if a not in after] or [name]
            old = before.get(sources[0], "")
        matcher = difflib.SequenceMatcher(None, old.splitlines(), new, autojunk=False)
        for tag, _, _, start, end in matcher.get_opcodes():
            if tag != "equal":
                # Where lines were removed, both neighbours are right.
                first, stop = (start + 1, end) if end > start else (max(start, 1), start + 1)
                edited |= {(name, line) for line in range(first, stop + 1)}
    near = set(edited)
    names: set[str] = set()
    sources_of = {name: text for name, text in after.items() if name.endswith(".py")}
    for name, text in sources_of.items():
        lines = {line for file, line in edited if file == name}
        for first, last, function in _functions(text, lines):
            near |= {(name, line) for line in range(first, last + 1)}
            names.add(function)
    near |= set(_called(sources_of, edited))
    names |= _assigned(sources_of, edited)
    for _ in range(3):
        used = set(_using(sources_of, names))
        near |= used
        names |= _assigned(sources_of, used)
    return Places(frozenset(edited), frozenset(near))


def _functions(text: str, lines: set[int]) -> Iterator[tuple[int, int, str]]:
    """Yield the first line, the last and the name of the innermost functions around some lines."""
    nodes = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    for line in lines:
        around = [
            (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node)
            for node in nodes
            if node.lineno <= line <= (node.end_lineno or 0)
            or any(d.lineno <= line <= (d.end_lineno or 0) for d in node.decorator_list)
        ]
        if around:
            first, node = max(around, key=lambda pair: pair[0])
            yield first, node.end_lineno or first, node.name


def _called(files: Mapping[str, str], places: Iterable[Place]) -> Iterator[Place]:
    """Yield the lines of the functions that are named on some lines: they get other values."""
    texts = {file: text.splitlines() for file, text in files.items()}
    shown = " ".join(texts[f][n - 1] for f, n in places if f in texts and n <= len(texts[f]))
    words = set(re.findall(r"\w+", shown))
    for file, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name in words:
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    yield file, line


def _assigned(files: Mapping[str, str], places: Iterable[Place]) -> set[str]:
    """Return the names that assignments at the top of files give on some lines."""
    chosen = set(places)
    names: set[str] = set()
    for file, text in files.items():
        for node in ast.parse(text).body:
            span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if isinstance(node, ast.Assign) and any((file, line) in chosen for line in span):
                names |= {
                    n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)
                }
    return names


def _using(files: Mapping[str, str], names: set[str]) -> Iterator[Place]:
    """Yield the lines that contain one of some names."""
    if not names:
        return
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")
    for file, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                yield file, number
