"""Trains with batch norm and an average of the weights, and goes on from its last checkpoint."""

import copy
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
x = torch.randn(48, 1, 6, 6)
y = (x.mean((1, 2, 3)) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
average = copy.deepcopy(model)


@torch.no_grad()
def update_average(decay=0.8):
    for mean, now in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        if mean.dtype.is_floating_point:
            mean.mul_(decay).add_(now, alpha=1 - decay)


def run(until):
    start = 0
    if os.path.exists("last.pt"):
        state = torch.load("last.pt")
        model.load_state_dict(state["model"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["epoch"]
        print(f"goes on at epoch {start + 1}")
    for epoch in range(start, until):
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            update_average()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
        state = {"model": model.state_dict(), "average": average.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "epoch": epoch + 1}, "last.pt")


run(1)
run(2)
average.eval()
with torch.no_grad():
    print(f"average: {F.cross_entropy(average(x), y).item():.4f}")
