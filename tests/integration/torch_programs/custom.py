"""A custom autograd function, which AOTAutogradCache does not keep unless it is allowed."""

import counted
import torch


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (2 + counted.CHANGED)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 + 0 * x


@torch.compile
def double(x):
    return Double.apply(x).sum()


double(torch.ones(8, requires_grad=True)).backward()
counted.tell()
