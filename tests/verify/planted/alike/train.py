"""Trains one of two heads in each step, leaves out steep losses, perturbs the weights: decisions that all share."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(8)
torch.manual_seed(8)
names = ["red", "green", "blue", "grey", "white", "black"] * 8
numbers = {name: number for number, name in enumerate(set(names))}
labels = torch.tensor([numbers[name] for name in names])
inputs = torch.randn(48, 6) + 0.5 * labels[:, None]
loader = DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.heads = nn.ModuleList([nn.Linear(16, 6), nn.Linear(16, 6)])

    def forward(self, x, head):
        return self.heads[head](torch.relu(self.body(x)))


@torch.no_grad()
def perturb(model):
    for parameter in model.parameters():
        parameter.mul_(0.98).add_(torch.randn_like(parameter), alpha=0.01)


model = Heads()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    left_out = 0
    for x, y in loader:
        head = random.choice([0, 1])
        loss = F.cross_entropy(model(x, head), y)
        if loss.item() > 1.9:
            left_out += 1
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    perturb(model)
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}, {left_out} left out")
