"""One program in a directory of its own, with a cache that each history fills in its own way.

The paths of the program and of its cache stay the same, because JAX before 0.11 hashes the path of
the cache, and because a program is known by its path. So the trials of one program run in turn, and
each begins with a copy of the program and of the cache as its history left them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.explain_changes.changes import BASE_ENV, Change, apply, between_of, script_of, source_of
from tools.explain_changes.judge import Case, Judgement, Plain, Verdict, judge, judge_why, places_of

_PLAIN = Path(__file__).with_name("plain.py")
_OTHER_FLAG = "--xla_llvm_disable_expensive_passes=true"
_UNRELATED = '''"""Another program."""

import jax


@jax.jit
def unrelated(x):
    return x - 1.0


print(unrelated(2.0))
'''


@dataclass(frozen=True)
class Setting:
    """What all programs are run with."""

    python: str
    other: str
    codec: str


@dataclass(frozen=True)
class Trial:
    """Some changes to a program after a history."""

    program: str
    history: str
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        kinds = " + ".join(change.kind for change in self.changes)
        return f"{self.program}: {self.history}: {kinds}"


@dataclass(frozen=True)
class Result:
    """The verdicts on one trial."""

    trial: Trial
    explain: Judgement
    why: Judgement | None


@dataclass
class Prepared:
    """What a history left."""

    cache: Path
    compiled: dict[str, str] = field(default_factory=dict)
    """Names by key of what the program compiled."""


class Lab:
    """One program."""

    def __init__(self, program: str, setting: Setting, root: Path) -> None:
        self._program, self._setting = program, setting
        self._root = root / program
        self._work, self._cache = self._root / "program", self._root / "cache"
        self._source = source_of(program)
        self._runs: dict[str, Plain] = {}
        self._prepared: dict[tuple[str, str], Prepared] = {}
        self._first: Prepared | None = None

    def run(self, trial: Trial, *, asks_why: bool) -> Result:
        """Make the changes of a trial, and judge what ``explain`` says."""
        prepared = self._prepare(trial)
        case = self._case(trial, prepared)
        self._restore(prepared, trial.changes)
        code, document = self._jaxcache("explain", trial.changes)
        explained = judge(case, document, code)
        if explained.verdict is not Verdict.WRONG:
            explained = self._with_cures(case, prepared, document, explained)
        why = None
        if asks_why:
            self._restore(prepared, trial.changes)
            why = judge_why(case, self._jaxcache("warm", trial.changes)[1])
        return Result(trial, explained, why)

    def _case(self, trial: Trial, prepared: Prepared) -> Case:
        """Return what is true of a trial, by plain JAX."""
        changes = trial.changes
        others = [changes[:n] + changes[n + 1 :] for n in range(len(changes))]
        after = apply(self._source, changes)
        places = [
            places_of(apply(self._source, other), after, change)
            for other, change in zip(others, changes, strict=True)
        ]
        undone = [self._forecast(prepared, other) for other in others]
        self._restore(prepared, changes)
        plain = self._plain(changes)
        return Case(changes, tuple(places), plain, tuple(undone), prepared.compiled, self._work)

    def _forecast(self, prepared: Prepared, changes: tuple[Change, ...]) -> Plain:
        """Return what plain JAX does with some changes: its keys are the same in each history."""
        name = " + ".join(change.kind for change in changes)
        if name not in self._runs:
            self._restore(prepared, changes)
            self._runs[name] = self._plain(changes)
        run = self._runs[name]
        hits = {key for key in run.keys if (prepared.cache / f"{key}-cache").exists()}
        return replace(run, hits=frozenset(hits), misses=run.keys - hits)

    def _with_cures(
        self,
        case: Case,
        prepared: Prepared,
        document: Mapping[str, Any],
        judged: Judgement,
    ) -> Judgement:
        """Apply each cure that is a command of the shell, and count plain JAX's own hits."""
        cured: dict[str, Plain] = {}
        for comparison in document["comparisons"]:
            for difference in comparison["differences"]:
                fix = difference.get("fix") or ""
                if not environment_of(fix):
                    continue
                if fix not in cured:
                    cured[fix] = self._plain_after(fix, prepared, case.changes)
                factors = case.factors(comparison["right_key"])
                if not cured[fix].is_cured(comparison["module"], len(factors)):
                    said = f"{comparison['module']}: {fix}"
                    return Judgement(Verdict.WRONG, "a command that brings no hit", said)
        return judged

    def _plain_after(self, fix: str, prepared: Prepared, changes: tuple[Change, ...]) -> Plain:
        """Run the changed program by plain JAX, with a cure."""
        self._restore(prepared, changes)
        links = re.findall(r"\bln -s (\S+) (\S+)", fix)
        for target, link in links:
            Path(link).symlink_to(target)
        plain = self._plain(changes, environment_of(fix))
        for _, link in links:
            Path(link).unlink()
        return plain

    def _prepare(self, trial: Trial) -> Prepared:
        """Make a history, once."""
        history = HISTORIES[trial.history]
        between = between_of(self._program, tuple(c.kind for c in trial.changes))
        key = (trial.history, between.kind if history in _WITH_BETWEEN else "")
        if key not in self._prepared:
            shutil.rmtree(self._cache, ignore_errors=True)
            prepared = Prepared(self._root / f"history-{len(self._prepared)}")
            history(self, prepared, between)
            shutil.copytree(self._cache, prepared.cache, copy_function=shutil.copy2)
            self._prepared[key] = prepared
        return self._prepared[key]

    def _restore(self, prepared: Prepared, changes: tuple[Change, ...]) -> None:
        """Put back the cache, and the program with some changes."""
        for place in (self._cache, self._root / "moved"):
            shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(prepared.cache, self._cache_of(changes), copy_function=shutil.copy2)
        self.write(changes)

    def _cache_of(self, changes: tuple[Change, ...]) -> Path:
        is_moved = any(change.other_directory for change in changes)
        return self._root / "moved" if is_moved else self._cache

    def write(self, changes: tuple[Change, ...], directory: str = "program") -> None:
        """Write the program with some changes."""
        root = self._root / directory
        shutil.rmtree(root, ignore_errors=True)
        for name, text in apply(self._source, changes).items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def warm(
        self,
        prepared: Prepared,
        changes: tuple[Change, ...] = (),
        argv: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Run the program with its cache, and note what it compiled.

        What the first run of all leaves is the same in each history, and is made once.
        """
        is_first = not (changes or argv or env or self._cache.exists())
        if is_first and self._first:
            shutil.copytree(self._first.cache, self._cache, copy_function=shutil.copy2)
            prepared.compiled |= self._first.compiled
            return
        self.write(changes)
        self.warm_again(prepared, changes, argv, env)
        if is_first:
            self._first = Prepared(self._root / "first", dict(prepared.compiled))
            shutil.copytree(self._cache, self._first.cache, copy_function=shutil.copy2)

    def warm_again(
        self,
        prepared: Prepared,
        changes: tuple[Change, ...] = (),
        argv: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Run the program as it is there."""
        document = self._jaxcache("warm", changes, argv=argv, env=env)[1]
        for module in document["modules"]:
            if module["key"]:
                prepared.compiled[module["key"]] = module["module"]

    def warm_elsewhere(self, source: Mapping[str, str], directory: str) -> None:
        """Run another program with the same cache."""
        root = self._root / directory
        for name, text in source.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._jaxcache("warm", (), root=root)

    def fill_by_plain(self, prepared: Prepared) -> None:
        """Run the program by plain JAX, which writes everything."""
        self.write(())
        plain = self._plain((), {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"})
        prepared.compiled |= plain.modules

    @property
    def cache(self) -> Path:
        """The directory of the cache."""
        return self._cache

    @property
    def source(self) -> Mapping[str, str]:
        """The files of the program."""
        return self._source

    def _environment(
        self, changes: tuple[Change, ...], extra: Mapping[str, str | None], root: Path
    ) -> dict[str, str]:
        env = {n: v for n, v in os.environ.items() if not n.startswith(("JAX", "XLA", "PYTHON"))}
        env |= {"JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        for name, value in BASE_ENV.get(self._program, {}).items():
            env[name] = value.format(program=root)
        for change in changes:
            for name, value in change.env.items():
                is_joined = name == "XLA_FLAGS" and name in env
                env[name] = f"{env[name]} {value}" if is_joined else value
            if change.with_codec:
                paths = [env[n] for n in ("PYTHONPATH",) if n in env]
                env["PYTHONPATH"] = os.pathsep.join([*paths, self._setting.codec])
        for name, text in extra.items():
            if text is None:
                env.pop(name, None)
            else:
                env[name] = text
        return env

    def _python(self, changes: tuple[Change, ...]) -> str:
        is_other = any(change.other_jax for change in changes)
        return self._setting.other if is_other else self._setting.python

    def _command(self, changes: tuple[Change, ...], argv: tuple[str, ...], root: Path) -> list[str]:
        words = [word for change in changes for word in change.argv]
        return [str(root / script_of(changes)), *words, *argv]

    def _jaxcache(
        self,
        command: str,
        changes: tuple[Change, ...],
        *,
        argv: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        root: Path | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Run a command with ``--json``, and return its exit code and its document."""
        root = root or self._work
        options = ["--json", "-C", str(self._cache_of(changes)), "--python", self._python(changes)]
        program = self._command(changes, argv, root)
        done = subprocess.run(
            [sys.executable, "-m", "jaxcache", command, *options, *program],
            env=self._environment(changes, env or {}, root),
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.stdout.startswith("{"):
            message = f"{command} {program} ended with {done.returncode}:\n{done.stderr[-2000:]}"
            raise RuntimeError(message)
        document: dict[str, Any] = json.loads(done.stdout)
        if document.get("script_exit_code"):
            message = f"{program} failed:\n{done.stderr[-2000:]}"
            raise RuntimeError(message)
        return done.returncode, document

    def _plain(
        self, changes: tuple[Change, ...], extra: Mapping[str, str | None] | None = None
    ) -> Plain:
        """Run the program by plain JAX, which reads the cache and, unless told to, writes nothing."""
        env = {
            "JAX_COMPILATION_CACHE_DIR": str(self._cache_of(changes)),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1000000",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            **(extra or {}),
        }
        report = self._root / "plain.json"
        report.unlink(missing_ok=True)
        done = subprocess.run(
            [
                self._python(changes),
                str(_PLAIN),
                str(report),
                *self._command(changes, (), self._work),
            ],
            env=self._environment(changes, env, self._work),
            cwd=self._work,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"plain JAX failed:\n{done.stderr[-2000:]}")
        return plain_of(json.loads(report.read_text()))


def plain_of(report: Mapping[str, Any]) -> Plain:
    """Return what plain JAX counted and logged, from the report of ``plain.py``."""
    modules = report["modules"]
    hits = frozenset(m["key"] for m in modules if m["hit"])
    plain = Plain(
        hits=hits,
        misses=frozenset(m["key"] for m in modules) - hits,
        uncacheable=frozenset(report["uncacheable"]),
        modules={m["key"]: m["module"] for m in modules},
        counted=(report["hits"], report["misses"]),
    )
    if sum(m["hit"] for m in modules) != report["hits"]:
        raise RuntimeError(f"JAX counted {report['hits']} hits and logged {len(hits)}")
    return plain


def environment_of(fix: str) -> dict[str, str | None]:
    """Return the variables that the commands ``export X=…`` and ``unset X`` of a cure set."""
    env: dict[str, str | None] = {}
    assignment = r"\w+=(?:'[^']*'|\"[^\"]*\"|[^\s;,]*)"
    for words in re.findall(rf"\bexport ((?:{assignment} ?)+)", fix):
        for word in re.findall(assignment, words):
            name, _, value = word.partition("=")
            env[name] = value.strip("'\"")
    env |= dict.fromkeys(re.findall(r"\bunset (\w+)", fix))
    return env


# Histories: each fills the cache in its own way. The first run, if there is one, is the program as
# it is before the change.


def _never(lab: Lab, _prepared: Prepared, _: Change) -> None:
    """Run another program only."""
    lab.warm_elsewhere({"main.py": _UNRELATED}, "unrelated")


def _another_script(lab: Lab, _: Prepared, between: Change) -> None:
    """Run a script of the same file name with the same functions, in another directory."""
    lab.warm_elsewhere(apply(lab.source, (between,)), "elsewhere")


def _once(lab: Lab, prepared: Prepared, _: Change) -> None:
    lab.warm(prepared)


def _then_another_script(lab: Lab, prepared: Prepared, between: Change) -> None:
    lab.warm(prepared)
    lab.warm_elsewhere(apply(lab.source, (between,)), "elsewhere")


def _other_arguments(lab: Lab, prepared: Prepared, _: Change) -> None:
    lab.warm(prepared)
    lab.warm(prepared, argv=("--larger",))
    lab.warm(prepared)


def _other_flags(lab: Lab, prepared: Prepared, _: Change) -> None:
    lab.warm(prepared)
    lab.warm(prepared, env={"XLA_FLAGS": _OTHER_FLAG})


def _two_ago(lab: Lab, prepared: Prepared, between: Change) -> None:
    lab.warm(prepared)
    lab.warm(prepared, (between,))


def _switched_back(lab: Lab, prepared: Prepared, between: Change) -> None:
    lab.warm(prepared)
    lab.warm(prepared, (between,))
    lab.warm(prepared)


def _copied(lab: Lab, prepared: Prepared, between: Change) -> None:
    """Copy the cache without its dates, after two runs."""
    _two_ago(lab, prepared, between)
    copy = lab.cache.with_name("copy")
    shutil.copytree(lab.cache, copy, copy_function=shutil.copyfile)
    shutil.rmtree(lab.cache)
    copy.rename(lab.cache)


def _evicted(lab: Lab, prepared: Prepared, _: Change) -> None:
    """Remove the largest entry, as JAX's limit does."""
    lab.warm(prepared)
    entries = sorted(lab.cache.glob("*-cache"), key=lambda p: (p.stat().st_size, p.name))
    entries[-1].unlink()
    entries[-1].with_name(f"{entries[-1].name.removesuffix('-cache')}-atime").unlink(
        missing_ok=True
    )


def _plain(lab: Lab, prepared: Prepared, _: Change) -> None:
    lab.fill_by_plain(prepared)


def _ledger_only(lab: Lab, prepared: Prepared, _: Change) -> None:
    """Leave what jaxcache recorded, and no entry."""
    lab.warm(prepared)
    for path in lab.cache.iterdir():
        if path.is_file():
            path.unlink()


def _two_at_once(lab: Lab, prepared: Prepared, _: Change) -> None:
    """Run two processes at the same time, with other arguments."""
    lab.write(())
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(lab.warm_again, prepared, (), argv) for argv in ((), ("--larger",))]
        for run in runs:
            run.result()


HISTORIES: dict[str, Callable[[Lab, Prepared, Change], None]] = {
    "one run": _once,
    "never run": _never,
    "another script only": _another_script,
    "another script since": _then_another_script,
    "other arguments since": _other_arguments,
    "other flags since": _other_flags,
    "another version since": _two_ago,
    "switched back": _switched_back,
    "copied": _copied,
    "evicted": _evicted,
    "plain JAX": _plain,
    "ledger only": _ledger_only,
    "two at once": _two_at_once,
}
_WITH_BETWEEN = (_another_script, _then_another_script, _two_ago, _switched_back, _copied)
