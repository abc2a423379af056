"""``jaxcache explain`` over golden caches; no jax is needed."""

import hashlib
import json
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import RunCli, clean_environment
from processes import interrupt

from jaxcache.cache.explain.sides import (
    COMPONENTS,
    Cause,
    Comparison,
    Compile,
    Difference,
    Explanation,
)
from jaxcache.cache.ledger.record import COMPILE, Event
from jaxcache.cache.ledger.write import append
from jaxcache.render.explain import explain_view
from jaxcache.render.typeset import set_blocks
from jaxcache.store import open_store

#: Prints what a program gets, and ends before it needs any jax.
ARGUMENTS = "import sys; print(sys.argv, file=sys.stderr)"


@pytest.mark.parametrize("program", ["script", "train.py", "directory", "archive.pyz", "link", "-"])
def test_explain_runs_what_warm_runs(run_cli: RunCli, cache: Path, program: str) -> None:
    """What follows the program is its own, and ``--`` may stand between."""
    here = cache.parent
    cache.mkdir()
    (here / "directory").mkdir()
    for name in ("script", "train.py", "directory/__main__.py"):
        (here / name).write_text(ARGUMENTS)
    (here / "link").symlink_to("script")
    with zipfile.ZipFile(here / "archive.pyz", "w") as archive:
        archive.writestr("__main__.py", ARGUMENTS)
    options = ("-C", str(cache), "--python", sys.executable)
    given = ARGUMENTS if program == "-" else None
    for separator in ([], ["--"]):
        words = (program, *separator, "--steps", "3", "--all")
        done = run_cli("explain", *options, *words, cwd=here, input=given)
        assert f"[{program!r}, '--steps', '3', '--all']" in done.stderr
        assert ("note: --all was passed to" in done.stderr) == (not separator)
        assert (done.returncode, "[unknown-jax]" in done.stderr) == (13, True)


def test_explain_runs_a_module(run_cli: RunCli, cache: Path) -> None:
    cache.mkdir()
    (cache.parent / "training.py").write_text(ARGUMENTS)
    words = ("explain", "-C", cache, "--python", sys.executable, "-m", "training", "--steps")
    done = run_cli(*words, cwd=cache.parent, env={"PYTHONSAFEPATH": ""})
    assert f"[{str(cache.parent / 'training.py')!r}, '--steps']" in done.stderr


SLEEPING = """
import sys, time
try:
    print("ready", file=sys.stderr, flush=True)
    time.sleep(3600)
except KeyboardInterrupt:
    sys.exit(1)
"""


@pytest.mark.jax
@pytest.mark.parametrize("is_command", [True, False])
def test_ctrl_c_ends_explain_with_one_line(tmp_path: Path, is_command: bool) -> None:
    script = tmp_path / "sleeping.py"
    script.write_text(SLEEPING)
    (tmp_path / "cache").mkdir()
    run = ["--", sys.executable, script] if is_command else ["--python", sys.executable, script]
    command = [sys.executable, "-m", "jaxcache", "explain", "-C", tmp_path / "cache", *run]
    ended = interrupt(command, "ready", env=clean_environment(tmp_path))
    assert ended == (130, "jaxcache: interrupted [interrupted]\n")


@pytest.mark.parametrize("words", [("--jsn", "train.py"), ("a.json", "b.json", "--jsn")])
def test_an_option_that_nobody_has_is_refused(run_cli: RunCli, words: tuple[str, ...]) -> None:
    done = run_cli("explain", *words)
    assert (done.returncode, "No such option: --jsn" in done.stderr) == (2, True)


@pytest.mark.parametrize("recorded", [0, 1])
def test_what_is_known_of_one_side_only_is_no_difference(
    run_cli: RunCli, corpus: Path, cache: Path, recorded: int
) -> None:
    """The ledger knows one of the two; the other was written by JAX alone."""
    hashes = dict.fromkeys(COMPONENTS, hashlib.sha256(b"").hexdigest())
    facts = {"components": hashes, "xla_flags": "", "jaxlib_version": "0.12.0.1"}
    keys = [f"jit_f-{number:064x}" for number in range(2)]
    cache.mkdir()
    for key, name in zip(keys, ("jit_mlp", "jit_dtypes"), strict=True):
        (entry,) = (corpus / "0.12.0.1-cpu-zstd").glob(f"{name}-*-cache")
        shutil.copy(entry, cache / f"{key}-cache")
    append(open_store(str(cache)), [Event(keys[recorded], COMPILE, 1, facts)])
    done = run_cli("explain", "--json", *keys, "-C", cache)
    assert {d["component"] for d in json.loads(done.stdout)["differences"]} == {"computation"}


def test_hits_are_compared_with_what_their_module_had_before() -> None:
    own = Compile("jit_step", "jit_step-" + "b" * 64, outcome="hit", source="/at/train.py:7")
    old = replace(own, key="jit_step-" + "a" * 64)
    helper = Compile("jit_sin", "jit_sin-" + "c" * 64, outcome="hit", is_helper=True)
    flag = Difference(
        *("XLA flags", "none", "--xla_a=1", "the XLA flags", None),
        cause=Cause.FLAG,
        title="XLA flags",
    )
    past = Comparison(old, own, (flag,)), Comparison(None, helper, ())
    found = Explanation("cache", "train.py", 2, (), hits=2, past=past)
    view = explain_view(found, "cache")
    lines = [*set_blocks(view.page or (), width=100, color=False)]
    assert lines == [
        "",
        "jit_step (train.py:7): XLA flags: the XLA flags",
        "  left   none",
        "  right  --xla_a=1",
    ]
    said = "2 of 2 hit now; below is why they were compiled when they were written"
    assert (view.headline, view.notes) == (said, [])

    anew = replace(helper, key="jit_sin-" + "d" * 64)
    both = replace(found, past=(*past, Comparison(helper, anew, (flag,))))
    lines = [*set_blocks(explain_view(both, "cache").page or (), width=200, color=False)]
    assert "and 1 helper of JAX, such as jit_sin, differs (--all lists them)" in lines

    first = replace(found, past=(Comparison(None, own, ()),), same=1, hits=1)
    view = explain_view(first, "cache")
    assert (view.rows, view.page) == ([], [])
    assert view.notes == ["1 of 1 hit now: nothing to explain"]
