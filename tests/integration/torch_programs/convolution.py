"""A convolution in eval mode, without gradients."""

import counted
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4 + counted.CHANGED, 3), torch.nn.BatchNorm2d(4 + counted.CHANGED)
).eval()
compiled = torch.compile(model)
with torch.no_grad():
    compiled(torch.ones(1, 3, 12, 12))
counted.tell()
