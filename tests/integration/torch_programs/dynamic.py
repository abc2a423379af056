"""A layer of a transformer for sequences of several lengths: sizes become symbols, with guards."""

import counted
import torch

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(16, 2, 32 + counted.CHANGED, batch_first=True).eval()


@torch.compile
def encode(x):
    return layer(x).sum()


for length in (8, 12, 20):
    encode(torch.ones(2, length, 16, requires_grad=True))
counted.tell()
