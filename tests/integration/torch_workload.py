"""Functions for torch.compile, with answers that a wrong kernel would change.

Prints one JSON object: the results, and what torch counted. Run by the tests of torch's layout,
and once to make the golden cache in ``tests/data/torch``.
"""

import json
import sys

import torch
from torch._dynamo.utils import counters


@torch.compile
def scale(x):
    """Inference only."""
    return torch.relu(x) * 2.0 + 1.0


@torch.compile
def loss(x, w):
    """With a backward graph."""
    return torch.tanh(x * w).sum()


@torch.compile(dynamic=True)
def spread(x):
    """With symbolic sizes, hence guards."""
    return (x - x.mean()).abs().sum() if x.shape[0] > 4 else x.sum()


def main(wanted):
    """Run the functions named."""
    x = torch.arange(64.0).reshape(8, 8) / 64
    found = {}
    if "scale" in wanted:
        found["scale"] = scale(x).sum().item()
    if "loss" in wanted:
        w = (torch.arange(64.0).reshape(8, 8) / 32).requires_grad_()
        value = loss(x, w)
        value.backward()
        found["loss"] = [value.item(), w.grad.sum().item()]
    if "spread" in wanted:
        found["spread"] = spread(x).item()
    counted = {name: dict(counters[name]) for name in ("aot_autograd", "inductor")}
    print(json.dumps({"results": found, "counters": counted}))


if __name__ == "__main__":
    main(sys.argv[1:] or ["scale", "loss", "spread"])
