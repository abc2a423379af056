"""Runs programs, ``NAME`` or ``NAME:1`` for the changed one, each in a fork of its own.

Importing torch takes longer than most of them: what the first imports is imported once for all
others, and what the compiler can do is found out once. No graph is compiled before a fork.
"""

import contextlib
import importlib
import os
import runpy
import sys
from pathlib import Path

from torch._inductor.cpu_vec_isa import pick_vec_isa

pick_vec_isa()
for number, word in enumerate(sys.argv[1:]):
    name, _, changed = word.partition(":")
    modules, told = os.pipe()
    if os.fork() == 0:
        os.environ["CHANGED"] = changed or "0"
        runpy.run_path(str(Path(__file__).with_name(f"{name}.py")), run_name="__main__")
        if number == 0:
            os.write(told, "\n".join(m for m in sys.modules if m.startswith("torch.")).encode())
        break
    os.close(told)
    with open(modules, encoding="utf-8") as file:
        wanted = file.read().split()
    if os.wait()[1]:
        sys.exit(f"{name} failed")
    for module in wanted:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
