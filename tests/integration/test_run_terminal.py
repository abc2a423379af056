"""A terminal shows what a program prints under ``warm`` and ``run``, byte for byte."""

import sys
from pathlib import Path
from typing import Any

import pytest
from terminal import Terminal

pytestmark = pytest.mark.jax

#: Compiles for some seconds in the middle of a line, while another thread prints.
PROGRAM = """
import threading, time
import jax, jax.numpy as jnp

def tick():
    for number in range(16):
        time.sleep(0.2)
        print(f"tick {number} from a thread", flush=True)

@jax.jit
def slow(x):
    for i in range(150):
        x = jnp.sin(x) @ jnp.cos(x) + i
    return x

lowered = slow.lower(jnp.ones((8, 8)))
thread = threading.Thread(target=tick)
print("\\x1b[32mcompiling\\x1b[0m ...", end=" ", flush=True)
thread.start()
lowered.compile()
thread.join()
print("done\\n50 %", end="\\r", flush=True)
print("100 %", flush=True)
"""
BEFORE = "\x1b[32mcompiling\x1b[0m ... tick 0 from a thread\n"
PRINTED = (
    BEFORE + "".join(f"tick {n} from a thread\n" for n in range(1, 16)) + "done\n50 %\r100 %\n"
)


def start(
    command: str, width: int, python: str, script: Any, cache: Path, tmp_path: Path
) -> Terminal:
    program = script(PROGRAM)
    words = ["--", python, program] if command == "run" else ["--python", python, program]
    line = [sys.executable, "-m", "jaxcache", command, "-C", cache, *words]
    return Terminal(line, home=tmp_path, width=width)


@pytest.mark.parametrize(("command", "widths"), [("warm", (20, 80, 200)), ("run", (40, 132))])
def test_nothing_is_drawn_over_what_a_program_prints(
    jax_python: str,
    script: Any,
    cache: Path,
    tmp_path: Path,
    command: str,
    widths: tuple[int, ...],
) -> None:
    terminal = start(command, widths[0], jax_python, script, cache, tmp_path)
    for tick, width in zip((8, 11), widths[1:], strict=False):  # the compile goes on
        terminal.wait_for(f"tick {tick} ")
        terminal.resize(width)
    assert terminal.finish() == 0, terminal.text
    shown, report, _ = terminal.text.partition("0 of ")
    assert shown == PRINTED
    assert report


def test_ctrl_c_leaves_no_line_of_ours_behind(
    jax_python: str, script: Any, cache: Path, tmp_path: Path
) -> None:
    terminal = start("warm", 80, jax_python, script, cache, tmp_path)
    terminal.wait_for("tick 8")  # more than a second after the compile has begun
    terminal.press("\x03")
    terminal.finish()
    assert terminal.text.startswith(BEFORE)
    assert "\x1b[2K" not in terminal.text
    assert "note: interrupted" in " ".join(terminal.text.split())
