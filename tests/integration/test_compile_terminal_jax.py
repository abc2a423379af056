"""What ``compile`` shows on a terminal while it works."""

import re
import sys
from pathlib import Path

import pytest
from conftest import RunCli
from terminal import Terminal, without_style
from warm_checks import STEP

pytestmark = pytest.mark.jax


def test_a_bar_counts_what_is_done(run_cli: RunCli, jax_python: str, tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(STEP)
    python = ("--python", jax_python)
    record = ("--record", tmp_path / "step.recipe", tmp_path / "step.py")
    done = run_cli("warm", "-C", tmp_path / "first", *python, *record)
    assert done.returncode == 0, done.stderr
    compile_ = ("compile", tmp_path / "step.recipe", "-C", tmp_path / "second")
    terminal = Terminal(
        [sys.executable, "-m", "jaxcache", *compile_, *python], home=tmp_path, width=150
    )
    assert terminal.finish() == 0, terminal.text
    bar = re.compile(r"compiling .*?(\d+)/(\d+) ")
    shown = bar.findall(without_style(terminal.text))
    counts = [int(count) for count, _ in shown]
    entries = len([*(tmp_path / "second").glob("*-cache")])
    assert counts and counts == sorted(counts)
    assert {int(total) for _, total in shown} == {entries}
