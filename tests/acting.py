"""Act upon what is printed: take a command from a sentence, and run it as it stands."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from conftest import clean_environment

#: A command in a sentence: from its first word to the end of the line, or to what closes it.
_COMMAND = re.compile(r"(?:jaxcache [a-z]|\S+ -m pip |uv pip )[^\n]*?(?=\s*(?:\n|$)|[)`;](?:\s|$))")


def commands_in(text: str) -> list[str]:
    """Return every command that a text prints."""
    return _COMMAND.findall(text)


def with_settings(text: str, env: dict[str, str]) -> dict[str, str]:
    """Return an environment with what a text says to export or to unset."""
    exported = dict(re.findall(r"export (JAX_\w+)=([^\s;]+)", text))
    dropped = re.findall(r"unset (JAX_\w+)", text)
    assert exported or dropped, text
    return {n: v for n, v in env.items() if n not in dropped} | exported


def act(text: str, home: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run the last command that a text prints, as a shell runs it."""
    commands = commands_in(text)
    assert commands, text
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        commands[-1],
        shell=True,
        cwd=home,
        env=clean_environment(home) | {"PATH": path, **env},
        capture_output=True,
        text=True,
        check=False,
    )


_COUNTING = """
import jax
_events = []
jax.monitoring.register_event_listener(lambda event, **_: _events.append(event))
exec({source!r})
print("hits:", _events.count("/jax/compilation_cache/cache_hits"))
"""


def plain_hits(python: str, source: str, home: Path, env: Mapping[str, str]) -> int:
    """Run a program in plain JAX, and return its hits as JAX counts them."""
    done = subprocess.run(
        [python, "-c", _COUNTING.format(source=source)],
        env=clean_environment(home) | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.rpartition("hits: ")[2])


#: A Python that passes requests on to the real one, and dies of a real signal at one payload.
FRAGILE = """#!{own}
import json, os, signal, subprocess, sys
answers = int(sys.argv[3])
real = subprocess.Popen([{real!r}, *sys.argv[1:]], stdin=subprocess.PIPE, pass_fds=(answers,))
os.close(answers)
while line := sys.stdin.buffer.readline():
    payload = sys.stdin.buffer.read(json.loads(line)["size_bytes"])
    if {module!r} in payload:
        real.kill()
        real.wait()
        os.kill(os.getpid(), signal.SIGSEGV)
    real.stdin.write(line + payload); real.stdin.flush()
"""


def fragile_python(directory: Path, python: str, module: str) -> Path:
    """Make a Python that dies where it loads an entry of this module."""
    path = directory / "fragile"
    path.write_text(FRAGILE.format(own=sys.executable, real=python, module=module.encode()))
    path.chmod(0o755)
    return path
