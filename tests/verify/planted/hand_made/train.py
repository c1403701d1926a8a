"""Draws its batches from the data itself, with dropout."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(6)
x = torch.randn(96, 5)
y = x.square().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(20):
    rows = torch.randint(0, len(x), (8,))
    optimizer.zero_grad()
    loss = F.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
