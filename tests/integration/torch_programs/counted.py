"""Writes what torch itself counted to a file, for the tests to compare."""

import json
import os

from torch._dynamo.utils import counters

#: 1 where the program is to be another one than before.
CHANGED = int(os.environ.get("CHANGED", "0"))


def tell():
    """Append the counters of this process."""
    groups = ("aot_autograd", "inductor", "graph_break")
    with open(os.environ["COUNTED"], "a", encoding="utf-8") as file:
        print(json.dumps({name: dict(counters[name]) for name in groups}), file=file)
