"""What ``compile`` shows on a terminal while it works."""

import re
import sys
from pathlib import Path

import pytest
from conftest import RunCli
from terminal import Terminal, without_style
from warm_checks import STEP

pytestmark = pytest.mark.jax


def test_the_line_names_what_is_at_work_and_counts_what_is_done(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
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
    line = re.compile(r"\[#*\.*\] (\d+)/(\d+) about [^\[]* left: (\w*)")
    shown = line.findall(without_style(terminal.text))
    done_counts = [int(count) for count, _, _ in shown]
    entries = len([*(tmp_path / "second").glob("*-cache")])
    assert done_counts == sorted(done_counts)
    assert done_counts[-1] == entries
    assert {int(total) for _, total, _ in shown} == {entries}
    # Which of them is at work at the moment of a drawing is a matter of time.
    modules = {
        p.name.rpartition("-")[0].rpartition("-")[0] for p in (tmp_path / "second").iterdir()
    }
    named = {module for _, _, module in shown} - {""}
    assert named and named <= modules
