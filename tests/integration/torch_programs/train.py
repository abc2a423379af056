"""A step of training: forward, backward, and the optimizer compiled, too."""

import counted
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4 + counted.CHANGED)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile
def loss_of(x):
    return model(x).square().mean()


for _ in range(2):
    optimizer.zero_grad()
    loss_of(torch.ones(4, 8)).backward()
    optimizer.step()
counted.tell()
