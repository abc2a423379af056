"""A function whose program turns the caches off."""

import counted
import torch
import torch._inductor.config

torch._inductor.config.force_disable_caches = True


@torch.compile
def off(x):
    return torch.relu(x) + 3.0


off(torch.ones(4, 4))
counted.tell()
