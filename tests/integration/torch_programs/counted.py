"""Writes what torch itself counted to a file, for the tests to compare."""

import json
import os
import time

import torch
from torch._dynamo.utils import counters

#: 1 where the program is to be another one than before.
CHANGED = int(os.environ.get("CHANGED", "0"))


def tell():
    """Append the counters of this process, and the processor time that it has taken."""
    groups = ("aot_autograd", "inductor", "graph_break")
    found = {name: dict(counters[name]) for name in groups}
    found |= {
        "pid": os.getpid(),
        "threads": torch.get_num_threads(),
        "seconds": time.process_time(),
    }
    with open(os.environ["COUNTED"], "a", encoding="utf-8") as file:
        print(json.dumps(found), file=file)
