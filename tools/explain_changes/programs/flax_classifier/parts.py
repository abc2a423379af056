"""Blocks."""

import flax.linen as nn


class Block(nn.Module):
    """A layer with a residual."""

    @nn.compact
    def __call__(self, x):
        hidden = nn.Dense(8)(x)
        return x + nn.relu(hidden)
