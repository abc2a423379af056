"""Attention over sequences of several lengths: sizes become symbols, with guards."""

import counted
import torch

torch.manual_seed(0)
project = torch.nn.Linear(16, 48)


@torch.compile
def attend(x):
    query, key, value = project(x).chunk(3, dim=-1)
    weights = torch.softmax(query @ key.transpose(-1, -2) / (4 + counted.CHANGED), dim=-1)
    return (weights @ value).square().sum()


with torch.no_grad():
    for length in (8, 12, 20):
        attend(torch.ones(2, length, 16))
counted.tell()
