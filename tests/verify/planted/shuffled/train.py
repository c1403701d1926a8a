"""Trains on a list that is shuffled itself, before each pass over it."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

random.seed(4)
torch.manual_seed(4)
items = [(torch.randn(5), number % 2) for number in range(48)]
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    random.shuffle(items)
    for x, y in DataLoader(items, batch_size=4):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
