"""Steps over a generator that begins anew."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def endless(loader):
    while True:
        for batch in loader:
            yield batch


torch.manual_seed(5)
loader = DataLoader(TensorDataset(torch.randn(37, 4), torch.randn(37, 1)), batch_size=4, shuffle=True)
batches = endless(loader)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    x, y = next(batches)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), sys.argv[1])
